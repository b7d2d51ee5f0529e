"""A run that was killed, or asked to stop, and started again is the run that never was interrupted."""

import json
import random
import signal
import time

import numpy as np
import pytest

from tests.train.subprocesses import run_main, start_main

STEPS = 60
TIMED = {"tokens_per_second", "data_wait_fraction"}


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
    ]


@pytest.fixture(scope="module")
def uninterrupted(arguments, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    status, out, err = run_main(*arguments, f"--workdir={workdir}")
    assert status == 0, out + err
    assert err == ""
    return workdir


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMED} for line in lines]


def arrays_of(workdir):
    """The final checkpoint's arrays, read without the program that wrote them."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(workdir / "checkpoints" / str(STEPS) / "state")


def assert_same_run(workdir, uninterrupted):
    assert metrics_of(workdir) == metrics_of(uninterrupted)
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


def test_killed_twice_at_random_steps(arguments, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    steps = sorted(random.sample(range(2, STEPS), 2))
    print("killed at lines", steps)
    for step in steps:
        process = start_main(*arguments, f"--workdir={workdir}")
        wait_for_lines(process, workdir, step)
        process.kill()
        process.communicate()
    status, out, err = run_main(*arguments, f"--workdir={workdir}")
    assert status == 0, out + err
    assert_same_run(workdir, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_says_how_to_continue(number, arguments, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    process = start_main(*arguments, f"--workdir={workdir}")
    wait_for_lines(process, workdir, 13)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == ""
    assert f"WARNING: {number.name}: saving after this step" in out
    assert "its checkpoint is saved. To continue, run the same command again." in out
    stopped = int(out.split("stopped at step ")[1].split(";")[0])
    assert 13 <= stopped < STEPS and (workdir / "checkpoints" / str(stopped)).is_dir()
    if number == signal.SIGTERM:
        status, out, err = run_main(*arguments, f"--workdir={workdir}")
        assert status == 0 and f"continuing from step {stopped}" in out
        assert_same_run(workdir, uninterrupted)


def test_a_finished_run_says_so_and_changes_nothing(arguments, uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    status, out, _ = run_main(*arguments, f"--workdir={uninterrupted}")
    assert status == 0 and f"done: {STEPS} steps" in out
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_another_runs_workdir_is_refused_with_the_fields_named(arguments, uninterrupted):
    before = (uninterrupted / "config.json").read_bytes()
    status, out, err = run_main(*arguments, f"--workdir={uninterrupted}", "--config.model.d_ff=64", "--config.seed=5")
    assert status == 1 and out == "" and len(err.splitlines()) == 1
    assert "seed: 0 -> 5" in err and "model.d_ff: 48 -> 64" in err and "choose another --workdir" in err
    assert (uninterrupted / "config.json").read_bytes() == before


def test_evaluate_prints_the_runs_own_numbers(uninterrupted):
    status, out, err = run_main(f"--workdir={uninterrupted}", module="train.evaluate")
    assert status == 0, err
    printed = json.loads(out)
    logged = [line for line in metrics_of(uninterrupted) if line["split"] == "eval"][-1]
    assert printed.keys() == logged.keys() and printed["step"] == STEPS
    for name in logged.keys() - {"split"}:
        assert printed[name] == pytest.approx(logged[name], rel=1e-6), name
