"""A run that is killed or stopped and then started again equals an uninterrupted run."""

import json
import random
import signal
import time

import numpy as np
import pytest

from tests.train.subprocesses import run_main, start_main
from workdir.run_config import read_config

STEPS = 60
TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}
TOTALS = {"examples", "raw_tokens", "scored_tokens", "flops"}


@pytest.fixture(scope="module")
def arguments(corpus):
    return [
        f"--config.data.path={corpus / 'text'}",
        f"--config.data.cache_dir={corpus / 'cache'}",
        f"--config.train.steps={STEPS}",
        "--config.train.log_every=1",
        "--config.train.eval_every=20",
        "--config.train.checkpoint_every=10",
        "--config.model.dropout_rate=0.1",
        "--config.train.grad_accum_steps=2",
        "--config.train.ema_decay=0.9",
    ]


@pytest.fixture(scope="module")
def uninterrupted(arguments, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    status, stdout, stderr = run_main(*arguments, f"--workdir={workdir}")
    assert status == 0, stdout + stderr
    assert stderr == ""
    return workdir


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMED} for line in lines]


def arrays_of(workdir):
    """The arrays of the final checkpoint, read with Orbax alone."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(workdir / "checkpoints" / str(STEPS) / "state")


def assert_same_run(workdir, uninterrupted):
    assert metrics_of(workdir) == metrics_of(uninterrupted)
    seconds = [json.loads(line)["seconds"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert seconds[0] >= 0 and seconds == sorted(seconds) and seconds[-1] > seconds[0], "they go on after a resume"
    import jax

    jax.tree.map(np.testing.assert_array_equal, arrays_of(workdir), arrays_of(uninterrupted))


def wait_for_lines(process, workdir, count):
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        path = workdir / "metrics.jsonl"
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_a_run_killed_twice_at_random_steps_equals_an_uninterrupted_run(arguments, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    steps = sorted(random.sample(range(2, STEPS), 2))
    print("killed after the lines", steps, "of metrics.jsonl")  # for the output of a failed test
    for step in steps:
        process = start_main(*arguments, f"--workdir={workdir}")
        wait_for_lines(process, workdir, step)
        process.kill()
        process.communicate()
    status, stdout, stderr = run_main(*arguments, f"--workdir={workdir}")
    assert status == 0, stdout + stderr
    assert_same_run(workdir, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_saves_and_prints_how_to_continue(number, arguments, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    process = start_main(*arguments, f"--workdir={workdir}")
    wait_for_lines(process, workdir, 13)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and stderr == ""
    assert f"WARNING: {number.name}: saving a checkpoint, then stopping" in stdout
    assert "its checkpoint is saved. To continue, run the same command again." in stdout
    stopped = int(stdout.split("stopped at step ")[1].split(";")[0])
    assert 13 <= stopped < STEPS and (workdir / "checkpoints" / str(stopped)).is_dir()
    if number == signal.SIGTERM:
        status, stdout, stderr = run_main(*arguments, f"--workdir={workdir}")
        assert status == 0 and f"continuing from step {stopped}" in stdout
        assert_same_run(workdir, uninterrupted)


def test_starting_a_finished_run_again_changes_nothing(arguments, uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    status, stdout, _ = run_main(*arguments, f"--workdir={uninterrupted}")
    assert status == 0 and f"done: {STEPS} steps" in stdout
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_the_workdir_of_another_config_is_refused_with_the_fields_that_differ(arguments, uninterrupted):
    before = (uninterrupted / "config.json").read_bytes()
    status, stdout, stderr = run_main(
        *arguments, f"--workdir={uninterrupted}", "--config.model.d_ff=64", "--config.seed=5"
    )
    assert status == 1 and stdout == "" and len(stderr.splitlines()) == 1
    assert "seed: 0 -> 5" in stderr and "model.d_ff: 48 -> 64" in stderr and "choose another --workdir" in stderr
    assert (uninterrupted / "config.json").read_bytes() == before


def test_evaluate_prints_the_metrics_that_the_run_logged(uninterrupted):
    status, stdout, stderr = run_main(f"--workdir={uninterrupted}", module="train.evaluate")
    assert status == 0, stderr
    printed = json.loads(stdout)
    config = read_config(uninterrupted)
    assert printed.pop("heldout_digest") == config["corpus"]["heldout"]
    assert printed.pop("ema_decay") == config["train"]["ema_decay"]
    logged = [line for line in metrics_of(uninterrupted) if line["split"] == "eval"][-1]
    assert printed.keys() == logged.keys() - TOTALS and printed["step"] == STEPS
    for name in printed.keys() - {"split"}:
        assert printed[name] == pytest.approx(logged[name], rel=1e-6), name
