"""A run that continues with another length keeps its learning rate, or changes it where optimizer.cycles says so."""

import io
import json
import pathlib
import re
import shutil

import pytest
from rich.console import Console

from contract.errors import ConfigError
from tests.table import reads_corpus, small_experiment
from tests.train.small_runs import array_checksums, files_of
from train.loop import train_and_evaluate
from train.start import _changes, check_schedule
from workdir.workdir import Workdir

# 0.002 + 0.018 * (1 + cos(pi * (n - 50) / (N - 50))) / 2: the rate of update n of N, computed by hand.
COSINE_400_OF_800, COSINE_500_OF_800 = "0.0119408", "0.00821885"
COSINE_299_OF_400, COSINE_299_OF_300, COSINE_799_OF_800 = "0.00545198", "0.00200071", "0.00200008"
COSINE_200_OF_1000, COSINE_200_OF_600 = "0.0189153", "0.0168937"
TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}


def experiment_of(steps, cycles="", schedule="cosine", **overrides):
    fields = {"optimizer__warmup_steps": 50, "train__steps": steps, "train__checkpoint_every": 2}
    fields |= {"optimizer__schedule": schedule, "optimizer__cycles": cycles}
    return small_experiment("clm", "decoder_only", **fields | overrides)


def check(old, new, step):
    return check_schedule(experiment_of(*old).config, experiment_of(*new), step)


@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        ((400,), (400,), 200),
        ((400, "", "constant"), (800, "", "constant"), 400),
        ((400, "", "wsd"), (800, "", "wsd"), 320),  # its decay begins at 320
        ((400, "", "wsd"), (350, "", "wsd"), 200),
        ((400,), (800,), 40),  # in the warm-up
        ((400,), (800, "0-400"), 400),
        ((800, "0-400"), (1200, "0-400"), 800),  # extended again
        ((800, "0-400,400-800"), (1200, "0-400,400-800"), 500),
        ((400,), (400, "0-400"), 300),
        ((400,), (300, "0-400"), 300),  # no update is left
    ],
)
def test_a_length_that_does_not_change_the_next_rate_needs_no_choice(old, new, step):
    assert check(old, new, step) == []


@pytest.mark.parametrize(
    ("old", "new", "step", "rates"),
    [
        ((400,), (800, "0-400,400-800"), 400, "0.002 to 0"),  # a new warm-up
        ((400,), (800, "0-800"), 400, f"0.002 to {COSINE_400_OF_800}"),
        ((800, "0-400"), (1200, "0-400,800-1200"), 800, "0.002 to 0"),
        ((1000,), (800, "0-1000,200-800"), 200, f"{COSINE_200_OF_1000} to 0"),  # before the end of the first cycle
    ],
)
def test_a_change_that_is_chosen_is_reported(old, new, step, rates):
    cycles = new[1]
    assert check(old, new, step) == [
        f"optimizer.cycles={cycles} changes the learning rate after step {step} from {rates}"
    ]


@pytest.mark.parametrize(
    ("old", "new", "step", "message"),
    [
        (
            (400,),
            (800,),
            400,
            f"train.steps=800 changes the learning rate after step 400 from 0.002 to {COSINE_400_OF_800}, because the "
            "run had 400 steps: set optimizer.cycles=0-400 (the schedule so far) or "
            "0-400,400-800 (then a new warm-up and cosine schedule)",
        ),
        (
            (1000,),
            (600,),
            200,
            f"train.steps=600 changes the learning rate after step 200 from {COSINE_200_OF_1000} to "
            f"{COSINE_200_OF_600}, because the run had 1000 steps: set optimizer.cycles=0-1000 (the schedule so far)",
        ),
        (
            (800, "0-400"),  # the choice is forgotten
            (800,),
            500,
            f"train.steps=800 changes the learning rate after step 500 from 0.002 to {COSINE_500_OF_800}, because the "
            "run had 800 steps: set optimizer.cycles=0-400 (the",
        ),
        (
            (400,),  # no update is left, but config.json would say that the run had a schedule of 300 steps
            (300,),
            300,
            f"train.steps=300 changes the learning rate after step 299 from {COSINE_299_OF_400} to "
            f"{COSINE_299_OF_300}, because the run had 400 steps: set optimizer.cycles=0-400 (the schedule so far)",
        ),
        (
            (800, "0-400"),  # the choice is forgotten after the last step, where both rates are the same
            (800,),
            800,
            f"train.steps=800 changes the learning rate after step 799 from 0.002 to {COSINE_799_OF_800}, because the "
            "run had 800 steps: set optimizer.cycles=0-400 (the schedule so far)",
        ),
        ((400,), (300,), 400, "train.steps=300 is below step 400, from which the run continues: set train.steps=400"),
    ],
)
def test_a_change_that_is_not_chosen_is_one_line_with_both_rates_and_the_choices(old, new, step, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as error:
        check(old, new, step)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_longer_run_keeps_the_steps_of_an_objective_that_are_shares_of_its_length(corpus, tmp_path):
    def train(steps, end_step):
        fields = {"train__steps": steps, "optimizer__schedule": "constant", "optimizer__warmup_steps": 1}
        fields |= {"objective__end_step": end_step, **reads_corpus("clm_then_mlm", corpus)}
        experiment = small_experiment("clm_then_mlm", "decoder_only", **fields)
        train_and_evaluate(experiment, str(tmp_path / "run"), console=Console(file=io.StringIO()))
        return lines_of(tmp_path / "run")

    train(4, 0.5)
    with pytest.raises(ConfigError, match=r"another config \(objective.end_step: 2 -> 4"):
        train(8, 0.5)
    train(8, 2.0)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["objective"]["end_step"] == 2.0


def test_a_saved_config_without_its_objective_is_named():
    config = experiment_of(400).config
    with pytest.raises(ConfigError, match=r"another config \(objective\."):
        _changes({name: fields for name, fields in config.items() if name != "objective"}, config)


# Runs of a few steps. Each is trained to the next length with the same command as after a kill.


@pytest.fixture(scope="module")
def train(corpus):
    def train(workdir, steps, cycles=""):
        fields = {"optimizer__warmup_steps": 1, "train__eval_every": 2, **reads_corpus("clm", corpus)}
        console = Console(file=io.StringIO(), width=200)
        assert train_and_evaluate(experiment_of(steps, cycles, **fields), str(workdir), console=console)
        return console.file.getvalue()

    return train


@pytest.fixture
def finished(trained_run) -> pathlib.Path:
    """A run of 4 steps."""
    return trained_run("decoder_only")


def lines_of(workdir):
    return [{name: value for name, value in line.items() if name not in TIMED} for line in Workdir(workdir).metrics()]


def rates_of(workdir):
    return [line["learning_rate"] for line in Workdir(workdir).metrics("train")]


def test_a_longer_run_without_a_choice_is_refused_and_changes_nothing(train, finished):
    before = files_of(finished)
    with pytest.raises(ConfigError, match=r"^train\.steps=8 changes .* after step 4 from 0\.002 to 0\.01"):
        train(finished, 8)
    assert files_of(finished) == before


def test_an_extended_run_equals_one_that_was_started_so(train, finished, tmp_path):
    extended, whole, cycles = shutil.copytree(finished, tmp_path / "extended"), tmp_path / "whole", "0-4,4-8"
    out = train(extended, 8, cycles)
    assert "continuing from step 4" in out and f'optimizer.cycles: "" -> "{cycles}"' in out
    assert "done: 8 steps" in train(whole, 8, cycles)
    assert lines_of(extended) == lines_of(whole)
    assert array_checksums(extended, 8) == array_checksums(whole, 8)
    assert rates_of(extended) == 2 * rates_of(finished)
