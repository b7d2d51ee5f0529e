"""Measurements of a run: the trace of the requested steps, and the MFU."""

import json

import pytest
from jax.profiler import ProfileData

from cluster.devices import Chip
from experiment.experiment import make_experiment
from tests.table import small_config
from train.loop import train_and_evaluate


@pytest.fixture(scope="module")
def workdir(corpus, tmp_path_factory):
    """The workdir of a run of 4 steps on a chip with a peak of 10^9 FLOPs per second; steps 2 and 3 are traced."""
    workdir = tmp_path_factory.mktemp("profile") / "run"
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    fields = small_config("clm", "decoder_only", train__steps=4, train__profile_steps=2, **text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("run.compiled_run.chip_of", lambda kind: Chip("slow", 1e9, 2**30, 1e9))
        train_and_evaluate(make_experiment(fields), str(workdir))
    return workdir


def test_the_trace_contains_two_steps_of_the_compiled_program(workdir):
    [trace] = workdir.glob("tensorboard/plugins/profile/*/*.xplane.pb")
    data = ProfileData.from_file(str(trace))
    names = [event.name for plane in data.planes for line in plane.lines for event in line.events]
    assert sum("train_step)" in name for name in names) >= 2


def test_mfu_is_model_flops_over_time_and_peak(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "mfu" in line]
    experiment = make_experiment(small_config("clm", "decoder_only"))
    flops = experiment.learner.train_step_flops(rows=8, inputs_length=40, targets_length=40)
    assert steps
    for line in steps:
        seconds = 8 * 40 * line["useful_token_fraction"] / line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(flops / 1e9 / seconds, rel=1e-6)
