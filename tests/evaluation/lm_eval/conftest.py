"""The runs that the tests of lm-eval's model share."""

import os
import tempfile

# Where lm-eval's data sets are written.
os.environ.setdefault("HF_HOME", (_HOME := tempfile.TemporaryDirectory(prefix="cloze-hf-")).name)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest

from tests.evaluation.lm_eval.runs import LAYOUTS, experiment_of
from tests.train.small_runs import save_run
from tests.train.tiny_experiments import random_params
from workdir.workdir import Workdir

MODELS = ("clm", "ul2", "prefix_lm", "diffusion")


@pytest.fixture(scope="session")
def workdirs(tmp_path_factory):
    """The folder of a run of each of the layouts, by name; those in MODELS have a checkpoint with random parameters."""
    folders = {}
    for name in LAYOUTS:
        experiment, folders[name] = experiment_of(name), str(tmp_path_factory.mktemp(name))
        if name in MODELS:
            params = random_params(experiment, scale=2.0)
            params["logits_dense"]["kernel"] *= (np.arange(384) >= 35) & (np.arange(384) < 130)  # generates ASCII
            save_run(experiment, folders[name], params, step=3)
        else:
            Workdir(folders[name]).write_config(experiment.config)
    return folders


@pytest.fixture(scope="session")
def models(workdirs):
    """The lm-eval model of each run with a checkpoint."""
    from evaluation.lm_eval.model import ClozeLM

    return {name: ClozeLM(workdir=workdirs[name]) for name in MODELS}
