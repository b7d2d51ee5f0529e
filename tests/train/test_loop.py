"""What the training loop does while the device computes, from the order of its calls and without a clock."""

import types
from unittest import mock

import numpy as np

from tests.table import small_experiment
from train.loop import Steps, train
from train.recorder import Recorder
from train.start import Start

STEPS = 4


class Metric:
    """A metric on the device that records when the host reads it, because the host then waits for the step."""

    def __init__(self, step, events):
        self.step, self.events = step, events

    def __int__(self):
        self.events.append(f"wait for {self.step}")
        return 0


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

    run = types.SimpleNamespace(experiment=experiment, count_windows=None, epoch_tokens=None)
    monkeypatch.setattr("train.recorder.Counters", lambda *_, **__: mock.Mock(metrics=dict, state=dict))
    start = Start(str(tmp_path), mock.Mock(), 0, experiment.config, None, [])
    start.checkpoints.save.side_effect = lambda step, *_, **__: events.append(f"save {step}")
    recorder = Recorder(run, start, mock.Mock(), lambda params: {"loss": 1.0})
    stop = mock.Mock()
    stop.requested.return_value = False
    steps = Steps(
        recorders=[recorder],
        batches=train_batches,
        to_devices=to_devices,
        train_step=train_step,
        metrics_of=lambda metrics, k: metrics,
        state_of=lambda state, k: state,
    )
    train(steps, mock.Mock(), 0, stop)
    return events


def test_the_next_batch_is_on_the_devices_before_the_host_waits_for_a_step(monkeypatch, tmp_path):
    events = calls_of_a_run(monkeypatch, tmp_path)
    for step in range(1, STEPS):
        in_order = [f"read {step + 1}", f"place {step + 1}", f"step {step + 1}", f"wait for {step}"]
        assert [events.index(event) for event in in_order] == sorted(map(events.index, in_order))
    assert [event for event in events if "wait" in event] == [f"wait for {step}" for step in range(1, STEPS + 1)]
    assert events.index("wait for 1") < events.index("read 3")  # at most two steps are in progress at a time


def test_it_saves_when_the_minutes_have_passed(monkeypatch, tmp_path):
    """Whatever train.checkpoint_every is."""
    for minutes, steps in ((0.0, [STEPS]), (1e-9, range(1, STEPS + 1)), (1e9, [STEPS])):
        events = calls_of_a_run(monkeypatch, tmp_path, train__checkpoint_minutes=minutes)
        assert [event for event in events if "save" in event] == [f"save {step}" for step in steps], minutes
