"""What the training loop does while the device computes, from the order of its calls and without a clock."""

import math
import re
import types
from unittest import mock

import numpy as np
import pytest

from cluster.stopping import StopBarrier
from generate.texts import NamedText, Options, read_texts
from run.compiled_run import CompiledRun
from tests.table import PAIRS, small_experiment
from train.loop import train
from train.recorder import Recorder, closing_hint, final_warnings
from train.start import Start
from workdir.workdir import Workdir

STEPS = 4


class Metric:
    """A metric on the device that records when the host reads it, because the host then waits for the step."""

    def __init__(self, step, events):
        self.step, self.events = step, events

    def __array__(self, *_, **__):
        self.events.append(f"wait for {self.step}")
        return np.zeros(())


def calls_of_a_run(monkeypatch, tmp_path, **fields):
    """The calls of the loop in a run of four steps that logs, evaluates and saves at its end only, unless `fields`."""
    events, never = [], {"train__log_every": 100, "train__eval_every": 100, "train__checkpoint_every": 100}
    experiment = small_experiment("clm", "decoder_only", train__steps=STEPS, **never, **fields)

    def train_batches(start):
        for step in range(start + 1, STEPS + 1):
            events.append(f"read {step}")
            yield {"decoder_segment_ids": np.full((1, 1), step)}

    def to_devices(batch):
        events.append(f"place {batch['decoder_segment_ids'].item()}")
        return batch

    def train_step(state, batch):
        step = batch["decoder_segment_ids"].item()
        events.append(f"step {step}")
        return state, {"skipped_in_a_row_count": Metric(step, events), "scored_tokens": 0}

    run = types.SimpleNamespace(
        experiment=experiment,
        train_dataset=mock.Mock(),
        train_batches=train_batches,
        to_devices=to_devices,
        train_step=train_step,
    )
    monkeypatch.setattr("train.recorder.Totals", lambda *_, **__: mock.Mock(metrics=dict, state=dict))
    monkeypatch.setattr("train.recorder.evaluate", lambda *_: {"loss": 1.0})
    start = Start(Workdir(tmp_path), mock.Mock(), 0, experiment.config, [])
    start.checkpoints.save.side_effect = lambda step, *_, **__: events.append(f"save {step}")
    with StopBarrier(print, experiment.train.checkpoint_minutes) as stop:
        train(run, Recorder(run, start, mock.Mock()), mock.Mock(), 0, stop)
    return events


def test_the_next_batch_is_on_the_devices_before_the_host_waits_for_a_step(monkeypatch, tmp_path):
    events = calls_of_a_run(monkeypatch, tmp_path)
    for step in range(1, STEPS):
        in_order = [f"read {step + 1}", f"place {step + 1}", f"step {step + 1}", f"wait for {step}"]
        assert [events.index(event) for event in in_order] == sorted(map(events.index, in_order))
    assert [event for event in events if "wait" in event] == [f"wait for {step}" for step in range(1, STEPS + 1)]
    assert events.index("wait for 1") < events.index("read 3")  # at most two steps are in progress at a time


@pytest.mark.parametrize("profiled", [1, 3, 10])
def test_a_trace_ends_with_its_steps_or_with_those_of_the_run(profiled, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: calls.append("start"))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: calls.append("stop"))
    calls_of_a_run(monkeypatch, tmp_path, train__profile_steps=profiled)
    assert calls == ["start", "stop"]


def recorder_of(monkeypatch, tmp_path, *, useful=1.0, peak_seconds=None, **fields):
    """A recorder of a run whose learner has no metrics of its own."""
    experiment = small_experiment("clm", "decoder_only", train__steps=20, **fields)
    totals = mock.Mock(metrics=dict, shares=dict, state=dict, take_line=lambda: ({}, useful))
    monkeypatch.setattr("train.recorder.Totals", lambda *_, **__: totals)
    monkeypatch.setattr("train.recorder.summarize", lambda *_: {})
    run = types.SimpleNamespace(experiment=experiment, train_dataset=mock.Mock(), peak_seconds=peak_seconds)
    return Recorder(run, Start(Workdir(tmp_path), mock.Mock(), 0, experiment.config, []), mock.Mock())


def test_the_learning_rate_of_a_line_is_that_of_its_update_whether_or_not_it_was_skipped(monkeypatch, tmp_path):
    """A skipped update would have had the rate of the next one that is not."""
    warmup = {"optimizer__warmup_steps": 10, "optimizer__learning_rate": 10.0, "train__log_every": 1}
    recorder = recorder_of(monkeypatch, tmp_path, **warmup)
    recorder.restart_clock(0)
    for step, (norm, skipped) in enumerate([(1.0, 0), (math.inf, 1), (math.nan, 2), (1.0, 2)], start=1):
        values = {"grad_norm": np.float32(norm), "skipped_count": skipped, "skipped_in_a_row_count": 0}
        recorder.report(step, values)
    rates = [call.args[1]["learning_rate"] for call in recorder.display.train.call_args_list]
    assert rates == pytest.approx([0.0, 1.0, 1.0, 1.0])


def test_the_speeds_of_lines_by_hand(monkeypatch, tmp_path):
    """Lines of two steps of 8 rows of 40 + 20 positions, a quarter of them padding, in 10 seconds and in 20."""
    recorder = recorder_of(monkeypatch, tmp_path, useful=0.75, peak_seconds=0.5, train__log_every=2)
    clock = iter([100.0, 104.0, 110.0, 121.0, 130.0])
    monkeypatch.setattr("train.recorder.time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    recorder.restart_clock(0)
    for step in (1, 2, 3, 4):
        recorder.read({f"{stack}_segment_ids": np.ones((8, length)) for stack, length in (("e", 40), ("d", 20))}, 2.0)
        recorder.report(step, {"grad_norm": np.float32(1), "skipped_count": 0, "skipped_in_a_row_count": 0})
    for call, seconds in zip(recorder.display.train.call_args_list, (10, 20), strict=True):
        line = call.args[1]
        assert line["tokens_per_second"] == 2 * 8 * 60 * 0.75 / seconds
        assert (line["mfu"], line["data_wait_fraction"]) == (2 * 0.5 / seconds, 2 * 2.0 / seconds)
    totals = recorder._totals.add.call_args_list
    assert [call.args[1] for call in totals] == [4, 6, 11, 9]


def test_the_utilization_is_of_the_peak_of_all_devices(monkeypatch):
    """A step of 2 * 10^15 operations takes a second on two chips of 10^15 a second."""
    chip = types.SimpleNamespace(peak_flops=1e15)
    monkeypatch.setattr("run.compiled_run.chip_of", lambda kind: chip)
    monkeypatch.setattr("run.compiled_run.jax.device_count", lambda: 2)
    run = types.SimpleNamespace(experiment=types.SimpleNamespace(train_step_flops=2e15))
    assert CompiledRun.peak_seconds.fget(run) == 1


@pytest.mark.parametrize(
    ("name", "architecture", "losses", "expected"),
    [
        ("clm", "decoder_only", [3.0, 2.0, 2.1], None),
        ("clm", "decoder_only", [3.0], None),
        ("clm", "decoder_only", [], None),
        ("clm", "decoder_only", [7.0, math.log(366) - 0.001], None),
        ("clm", "decoder_only", [7.0, 5.91], "the held-out loss at step 20, 5.910, is above 5.903, the logarithm"),
        ("classification", "encoder_only", [9.0, 8.0], None),  # its loss is not of tokens
        ("electra", "encoder_only", [9.0, 8.0], "the held-out loss at step 20, 8.000, is above"),
        ("clm", "decoder_only", [3.0, None], "the held-out loss at step 20 is not finite: lower optimizer.learning_"),
        ("clm", "decoder_only", [2.0, 2.4, 2.3], "the lowest held-out loss, 2.000, is that of the first evaluation"),
        ("clm", "decoder_only", [2.0, 2.0, 2.0], None),
        # The evaluation before the first update, of a run with train.init_from
        ("clm", "decoder_only", {0: 1.9, 10: 2.0, 20: 1.95}, "the lowest held-out loss, 1.900, is that of the start"),
        ("clm", "decoder_only", {0: 2.1, 10: 2.0, 20: 2.05}, "the lowest held-out loss, 2.000, is that of the first "),
        ("clm", "decoder_only", {0: 2.1, 10: 2.0, 20: 1.9, 30: 2.0}, None),
        ("clm", "decoder_only", {0: 2.1, 20: 2.0}, None),
    ],
)
def test_warnings_at_the_end(name, architecture, losses, expected):
    losses = losses if isinstance(losses, dict) else dict(zip((10, 20, 30), losses, strict=False))
    found = final_warnings(small_experiment(name, architecture), losses, 0)
    assert found[:1] == [] if expected is None else found[0].startswith(expected)


def test_many_skipped_updates_are_a_warning_at_the_end():
    experiment = small_experiment("clm", "decoder_only", train__steps=20)
    assert final_warnings(experiment, {}, 2) == []  # float16 finds its loss scale
    [warning] = final_warnings(experiment, {}, 3)
    assert warning.startswith("3 of 20 updates were skipped, as their gradients were not finite")


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("clm", "decoder_only", "To sample: python -m train.generate --workdir=runs/x --prompt=..."),
        ("mlm", "encoder_only", "To sample: python -m train.generate --workdir=runs/x --prompt='... [MASK] ...'"),
        ("classification", "encoder_only", "To evaluate: python -m train.evaluate --workdir=runs/x"),
    ],
)
def test_the_hint_at_the_end_names_the_command_that_reads_the_run(name, architecture, expected):
    assert closing_hint(small_experiment(name, architecture), Workdir("runs/x")) == expected
    quoted = expected.replace("runs/x", "'my runs/x'")  # as a shell reads the name
    assert closing_hint(small_experiment(name, architecture), Workdir("my runs/x")) == quoted


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_the_prompt_of_the_hint_is_one_that_the_model_reads(name, architecture):
    experiment = small_experiment(name, architecture)
    hint = closing_hint(experiment, Workdir("runs/x"))
    flag = re.search(r"--prompt='?(.*?)'?$", hint)
    assert (flag is None) == hint.startswith("To evaluate: ")
    if flag is not None:
        prompts, _ = read_texts(experiment, [NamedText(flag[1], "--prompt")], Options())
        assert len(prompts) == 1


def test_it_saves_when_the_minutes_have_passed(monkeypatch, tmp_path):
    """Whatever train.checkpoint_every is."""
    for minutes, steps in ((0.0, [STEPS]), (1e-9, range(1, STEPS + 1)), (1e9, [STEPS])):
        events = calls_of_a_run(monkeypatch, tmp_path, train__checkpoint_minutes=minutes)
        assert [event for event in events if "save" in event] == [f"save {step}" for step in steps], minutes
