"""A line of metrics.jsonl reports the mean over all batches since the line before, and continues exactly."""

import json

import numpy as np
import pytest

from run.line_sums import LineSums
from run.metrics import summarize
from tests.table import reads_corpus, small_experiment
from train.loop import train_and_evaluate

TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}


def step_metrics(losses, weights, f1, useful):
    losses, weights = np.asarray(losses, np.float32), np.asarray(weights, np.float32)
    sums = {
        "loss_sum": losses.sum(),
        "weight_sum": weights.sum(),
        "correct_sum": np.float32(1.0),
        "loss_sum_by_group": losses,
        "weight_sum_by_group": weights,
        "correct_sum_by_group": np.ones(2, np.float32),
        "ratios": {"macro_f1": (np.asarray(f1[0], np.float32), np.asarray(f1[1], np.float32))},
    }
    step = {"grad_norm": 1.0, "useful_token_fraction": useful, "scored_tokens": 4, "skipped_count": 0}
    return sums | step | {"skipped_in_a_row_count": 0}


STEPS = [
    step_metrics([6.0, 0.0], [3.0, 0.0], ([1.0, 0.0], [2.0, 0.0]), 0.5),
    step_metrics([1.0, 4.0], [1.0, 4.0], ([1.0, 1.0], [2.0, 4.0]), 1.0),
]


@pytest.mark.parametrize("saved_after", [None, 1])
def test_sums_of_two_steps_by_hand(saved_after):
    line = LineSums()
    for number, step in enumerate(STEPS, start=1):
        line.add(step)
        if number == saved_after:
            line = LineSums(json.loads(json.dumps(line.state())))
    sums, useful = line.take()
    summary = summarize(sums, ("a", "b"))
    assert summary["loss"] == 11 / 8 and summary["loss/a"] == 7 / 4 and summary["loss/b"] == 1.0
    assert summary["macro_f1"] == (2 / 4 + 1 / 4) / 2 and useful == 0.75
    assert line.state() == []
    line.add(STEPS[1])
    assert summarize(line.take()[0], ("a", "b"))["loss"] == 1.0, "the next line starts from zero"


@pytest.fixture(scope="module")
def lines(corpus, tmp_path_factory):
    """(name, log_every, checkpoints) -> the training lines of a run of 6 steps, stopped at every checkpoint."""

    def lines_of(name, log_every, *stops):
        run = {"train__log_every": log_every, "train__eval_every": 100, "train__checkpoint_every": 100}
        run |= {"optimizer__schedule": "constant", **reads_corpus(name, corpus)}
        architecture = {"ul2": "encoder_decoder", "classification": "encoder_only"}[name]
        workdir = tmp_path_factory.mktemp("run")
        for steps in (*stops, 6):
            train_and_evaluate(small_experiment(name, architecture, train__steps=steps, **run), str(workdir))
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in line.items() if k not in TIMED} for line in lines if line["split"] == "train"]

    return lines_of


def test_a_line_is_the_mean_over_the_scored_tokens_of_its_steps(lines):
    every, third = lines("ul2", 1), lines("ul2", 3)
    assert [line["step"] for line in every] == list(range(1, 7)) and [line["step"] for line in third] == [3, 6]
    tokens = np.diff([0, *(line["scored_tokens"] for line in every)])
    assert len(set(tokens.tolist())) > 1
    for line, steps in zip(third, (slice(0, 3), slice(3, 6)), strict=True):
        for metric in ("loss", "accuracy"):
            mean = np.average([step[metric] for step in every[steps]], weights=tokens[steps])
            assert line[metric] == pytest.approx(mean, rel=1e-5)
        useful = np.mean([step["useful_token_fraction"] for step in every[steps]])
        assert line["useful_token_fraction"] == pytest.approx(useful, rel=1e-6)
        assert line["grad_norm"] == every[steps][-1]["grad_norm"], "of the last step"


@pytest.mark.parametrize("name", ["ul2", "classification"])
def test_a_run_stopped_between_two_lines_writes_the_same_lines(name, lines):
    assert lines(name, 3, 2, 4) == lines(name, 3)
