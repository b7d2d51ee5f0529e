"""A finished or running run, opened to read: its experiment from config.json, its parameters from a checkpoint."""

import os

from train import sharding
from train.checkpoint import Checkpoints
from train.experiment import Experiment, make_experiment
from train.run import abstract_state
from train.run_config import read_config
from train.step import Params


def load_experiment(workdir: str) -> Experiment:
    """The experiment that the run in `workdir` was started with. Raises ConfigError where there is none."""
    config = read_config(workdir)
    config.pop("corpus", None)
    return make_experiment(config)


def load_params(experiment: Experiment, workdir: str, step: int | None = None) -> tuple[Params, int]:
    """The parameters of checkpoint `step`, the newest where None, on this machine's devices; and their step.

    Raises ConfigError where there is no such checkpoint.
    """
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    state = checkpoints.restore(abstract_state(experiment, sharding.make_mesh(experiment.mesh)), step)
    checkpoints.close()
    return state.params, int(state.step)
