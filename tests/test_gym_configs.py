"""The configs of the gym: every task with every objective, in rows that hold an instance."""

import dataclasses
import importlib

import pytest

from configs.gym.common import OBJECTIVES
from data.sources.gym import TASKS
from data.sources.gym.task import DrawnTask
from experiment.experiment import make_experiment
from run.corpus import open_corpora


@pytest.mark.parametrize("task", TASKS)
def test_a_row_holds_an_instance_of_every_objective(task, tmp_path):
    """open_corpora refuses rows that are too short."""
    module, shapes = importlib.import_module(f"configs.gym.{task}"), set()
    for preset in ("clm", "span_corruption_roll", "prefix_lm", "sft", "teacherless", "mlm_u"):
        config = module.get_config(preset)
        assert config.data.path == task
        if issubclass(TASKS[task], DrawnTask):
            config.data.path = f"{task}:train_size=60,test_size=20"
        config.data.cache_dir = str(tmp_path)
        experiment = make_experiment(config.to_dict())
        assert len(open_corpora(experiment, show_progress=False).heldout_documents) >= 20
        shapes.add(dataclasses.replace(experiment.row_shape, architecture=""))
    assert len(shapes) == 1


@pytest.mark.parametrize("preset", OBJECTIVES)
def test_every_objective_has_a_preset(preset):
    experiment = make_experiment(importlib.import_module("configs.gym.mqar").get_config(preset).to_dict())
    assert experiment.objective_name == OBJECTIVES[preset]["name"]


def test_an_unknown_objective_is_refused():
    with pytest.raises(ValueError, match=r"unknown preset 'gpt': use 'clm', 'sft'"):
        importlib.import_module("configs.gym.mqar").get_config("gpt")
