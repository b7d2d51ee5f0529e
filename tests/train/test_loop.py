"""What the training loop does while the device computes, from the order of its calls and without a clock."""

import types
from unittest import mock

import numpy as np

from tests.table import small_experiment
from train import loop
from train.line_sums import LineSums

STEPS = 4


class Metric:
    """A metric on the device that records when the host reads it, because the host then waits for the step."""

    def __init__(self, step, events):
        self.step, self.events = step, events

    def __int__(self):
        self.events.append(f"wait for {self.step}")
        return 0


def calls_of_a_run(monkeypatch):
    """The calls of the loop in a run of four steps that logs, evaluates and saves at its end only."""
    events, never = [], {"train__log_every": 100, "train__eval_every": 100, "train__checkpoint_every": 100}
    experiment = small_experiment("clm", "decoder_only", train__steps=STEPS, **never)

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
        experiment=experiment, train_batches=train_batches, to_devices=to_devices, train_step=train_step
    )
    monkeypatch.setattr(loop, "evaluate", lambda run, params: {"loss": 1.0})
    stop = mock.Mock()
    stop.requested.return_value = False
    counters = mock.Mock(metrics=dict, state=dict)
    loop._Loop(run, "", mock.Mock(), counters, LineSums(), mock.Mock(), mock.Mock(), stop).train(mock.Mock(), 0)
    return events


def test_the_next_batch_is_on_the_devices_before_the_host_waits_for_a_step(monkeypatch):
    events = calls_of_a_run(monkeypatch)
    for step in range(1, STEPS):
        in_order = [f"read {step + 1}", f"place {step + 1}", f"step {step + 1}", f"wait for {step}"]
        assert [events.index(event) for event in in_order] == sorted(map(events.index, in_order))
    assert [event for event in events if "wait" in event] == [f"wait for {step}" for step in range(1, STEPS + 1)]
    assert events.index("wait for 1") < events.index("read 3")  # at most two steps are in progress at a time
