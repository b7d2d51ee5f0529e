"""Runs with random parameters, for tests of commands that read a run's folder."""

import os

import jax
import numpy as np

from train.checkpoint import Checkpoints
from train.experiment import make_experiment
from train.run import make_run
from train.run_config import write_config


def save_random_run(config: dict, workdir: str) -> None:
    """Writes the folder of a run of `config`, a config as nested dicts: its config.json and a checkpoint of step 0."""
    run = make_run(make_experiment(config), show_progress=False)
    write_config(workdir, run.experiment.config | {"corpus": {"fingerprint": run.store.content_digest}})
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=1)
    checkpoints.save(0, _random_state(run))
    checkpoints.close()


def _random_state(run):
    """A state with random parameters; initializers take seconds to compile."""
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), run.state_shapes)
    return state._replace(
        params=jax.tree.map(lambda leaf: rng.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype), state.params)
    )
