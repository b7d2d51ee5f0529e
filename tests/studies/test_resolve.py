"""The configs of fine-tuned runs, and commands that repeat a run."""

import shlex

import pytest

from experiment.experiment import make_experiment
from tests.studies.studies import SMALL
from workdir.resolve import command, fine_tuning_fields, resolve, with_fields

DECODER = SMALL | {"model.architecture": "decoder_only"}


@pytest.mark.parametrize(
    ("config", "overrides", "both_sides"),
    [
        ("configs/clm.py", {}, False),
        ("configs/prefix_lm.py", {}, True),
        ("configs/prefix_lm.py", {"data.bidirectional_inputs": False}, False),
        ("configs/ul2.py", {}, True),
        ("configs/ul2_baselines.py:sclm", {}, True),
        ("configs/ul2_baselines.py:sclm", {"objective.denoisers.sc.weight": 0.0}, False),
    ],
)
def test_a_decoder_is_fine_tuned_as_it_read_inputs(config, overrides, both_sides):
    trained = make_experiment(resolve(config, DECODER | overrides, ""))
    fields = fine_tuning_fields(resolve("configs/classification.py", {}, ""), {}, trained, "run")
    assert fields["data"]["bidirectional_inputs"] is both_sides
    assert make_experiment(fields).model.has_prefix is both_sides


def test_overrides_of_the_measure_come_first():
    trained = make_experiment(resolve("configs/clm.py", DECODER, ""))
    overrides = {"data.bidirectional_inputs": True, "data.split_seed": 3}
    fields = fine_tuning_fields(resolve("configs/classification.py", overrides, ""), overrides, trained, "run")
    assert fields["data"]["bidirectional_inputs"] is True and fields["data"]["split_seed"] == 3


def test_a_command_has_the_overrides_that_make_the_fields():
    overrides = DECODER | {"objective.denoisers.s.mode": "", "optimizer.no_decay": ("norm", "a b")}
    fields = with_fields(resolve("configs/ul2.py", overrides, ""), {"train.steps": 7})
    arguments = shlex.split(command("train.main", "configs/ul2.py", fields, workdir="runs/a"))
    assert arguments[:4] == ["python", "-m", "train.main", "--config=configs/ul2.py"]
    assert arguments[-1] == "--workdir=runs/a"
    given = dict(argument.removeprefix("--config.").split("=", 1) for argument in arguments[4:-1])
    assert resolve("configs/ul2.py", given, "") == fields
