"""Runs that the tests of train.generate read."""

import pytest

from tests.train.small_runs import save_run
from tests.train.tiny_experiments import random_params, tiny_experiment


@pytest.fixture(scope="session")
def workdirs(tmp_path_factory):
    """The workdir of a run of each objective, by its name: a config and a checkpoint of step 0."""
    folders = {}
    for objective, architecture in {"ul2": "encoder_decoder", "clm": "decoder_only", "mlm": "encoder_only"}.items():
        experiment = tiny_experiment(objective, architecture, model={"positions": "learned"})
        folders[objective] = str(tmp_path_factory.mktemp(objective))
        save_run(experiment, folders[objective], random_params(experiment, scale=2.0))
    return folders
