"""Runs with random parameters, for tests of commands that read a run's folder."""

import json
import pathlib

import jax
import numpy as np

from experiment.experiment import Experiment, make_experiment
from models.parameters import Params
from run.compiled_run import abstract_state, make_run
from run.sharding import make_mesh
from workdir.workdir import LOCK_FILE, Workdir


def array_checksums(run: pathlib.Path, step: int) -> dict:
    """Name -> the type and the checksum of each array of a checkpoint, which equal arrays alone have in common."""
    return json.loads((run / "checkpoints" / str(step) / "record" / "record.json").read_text())["arrays"]


def save_random_run(config: dict, workdir: str, *, steps: tuple[int, ...] = (0,), raw_tokens: int = 0) -> None:
    """Writes the folder of a run of `config`, a config as nested dicts: its config.json and a checkpoint of each step.

    raw_tokens: of a step, in the counters.
    """
    run = make_run(make_experiment(config), show_progress=False)
    folder = Workdir(workdir)
    folder.write_config(run.experiment.config | {"corpus": {"fingerprint": run.corpora.content_digest}})
    with folder.checkpoints(keep=len(steps)) as checkpoints:
        for step in steps:
            checkpoints.save(step, _random_state(run, seed=1 + step), counters={"raw_tokens": [raw_tokens * step]})
            checkpoints.wait()


def save_run(experiment: Experiment, workdir: str, params: Params, step: int = 0) -> None:
    """Writes the folder of a run without a corpus, whose checkpoint has these parameters of the Transformer."""
    folder = Workdir(workdir)
    folder.write_config(experiment.config)
    shapes = abstract_state(experiment, make_mesh(experiment.mesh))
    state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
    with folder.checkpoints(keep=1) as checkpoints:
        checkpoints.save(step, state._replace(params={"transformer": params}), counters={"raw_tokens": [0]})


def _random_state(run, seed):
    """A state with random parameters, averaged ones too; initializers take seconds to compile."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        return rng.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype)

    state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), run.state_shapes)
    return state._replace(params=jax.tree.map(draw, state.params), ema_params=jax.tree.map(draw, state.ema_params))


def files_of(workdir: pathlib.Path) -> dict[pathlib.Path, bytes]:
    """The contents of a run's files, but for its lock."""
    return {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.name != LOCK_FILE}
