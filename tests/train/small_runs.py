"""Runs with random parameters, for tests of commands that read a run's folder."""

import os

import jax
import numpy as np

from experiment.experiment import make_experiment
from run.compiled_run import make_run
from workdir.checkpoint import Checkpoints
from workdir.run_config import write_config


def save_random_run(config: dict, workdir: str, *, steps: tuple[int, ...] = (0,), raw_tokens: int = 0) -> None:
    """Writes the folder of a run of `config`, a config as nested dicts: its config.json and a checkpoint of each step.

    raw_tokens: of a step, in the counters.
    """
    run = make_run(make_experiment(config), show_progress=False)
    write_config(workdir, run.experiment.config | {"corpus": {"fingerprint": run.corpora.content_digest}})
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=len(steps))
    for step in steps:
        checkpoints.save(step, _random_state(run, seed=1 + step), counters={"raw_tokens": [raw_tokens * step]})
        checkpoints.wait()
    checkpoints.close()


def _random_state(run, seed):
    """A state with random parameters, averaged ones too; initializers take seconds to compile."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        return rng.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype)

    state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), run.state_shapes)
    return state._replace(params=jax.tree.map(draw, state.params), ema_params=jax.tree.map(draw, state.ema_params))
