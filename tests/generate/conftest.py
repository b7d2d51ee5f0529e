"""Runs that the tests of train.generate read."""

import os

import jax
import numpy as np
import pytest

from run.compiled_run import abstract_state
from run.sharding import make_mesh
from tests.train.tiny_experiments import random_params, tiny_experiment
from workdir.checkpoint import Checkpoints
from workdir.run_config import write_config


@pytest.fixture(scope="session")
def workdirs(tmp_path_factory):
    """The workdir of a run of each objective, by its name: a config and a checkpoint of step 0."""
    folders = {}
    for objective, architecture in {"ul2": "encoder_decoder", "clm": "decoder_only", "mlm": "encoder_only"}.items():
        experiment = tiny_experiment(objective, architecture, model={"positions": "learned"})
        folders[objective] = str(tmp_path_factory.mktemp(objective))
        write_config(folders[objective], experiment.config)
        checkpoints = Checkpoints(os.path.join(folders[objective], "checkpoints"), keep=1)
        shapes = abstract_state(experiment, make_mesh(experiment.mesh))
        state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
        checkpoints.save(0, state._replace(params={"transformer": random_params(experiment, scale=2.0)}))
        checkpoints.close()
    return folders
