"""Two processes train as one, stop at one step, and refuse to train where their configs or corpora differ."""

import json
import re
import signal
import socket
import time

import pytest

from tests.in_process import run_here
from tests.train.subprocesses import free_port, run_main, start_main
from train import main

pytestmark = pytest.mark.slow

HOST = re.escape(socket.gethostname())
# Several C++ threads of gloo print this message at once, each in pieces whose order varies.
GLOO_GREETING = re.compile(
    r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d+"
)
STEPS = 12
TIMED = {"tokens_per_second", "data_wait_fraction"}  # not of the first step of a start, which compiles


@pytest.fixture(scope="module")
def arguments(corpus):
    return [
        f"--config.data.path={corpus / 'text'}",
        f"--config.data.cache_dir={corpus / 'cache'}",
        f"--config.train.steps={STEPS}",
        "--config.train.eval_every=3",
        "--config.train.checkpoint_every=6",
        "--config.train.log_every=1",
    ]


def start_two(*flags, of_the_second=(), devices=1):
    address = f"--coordinator_address=localhost:{free_port()}"
    of_each = ((), of_the_second)
    return [
        start_main(*flags, address, "--num_processes=2", f"--process_id={index}", *more, devices=devices)
        for index, more in enumerate(of_each)
    ]


def outputs_of(processes):
    try:
        return [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()


def metrics_of(workdir):
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_two_processes_train_as_one_also_after_a_signal_to_one_of_them(arguments, buckets, tmp_path, monkeypatch):
    """With two devices each, and a token store in a bucket that they read by range, which one process has on its disk.

    SIGTERM stops both at one step, and the continued run equals the run of one process.
    """
    config = "--config=tests/small_config.py"
    status, out, err = run_here(main.main, config, *arguments, f"--workdir={tmp_path / 'one'}")
    assert status == 0, out + err
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where copies from buckets are
    workdir, bucket = tmp_path / "two", f"--config.data.cache_dir=s3://test-bucket/{tmp_path.name}"
    flags = [bucket if "cache_dir" in argument else argument for argument in arguments]
    flags += ["--config.data.read_by_range=True", f"--workdir={workdir}"]
    processes = start_two(*flags, "--stopped_status=75", devices=2)
    end = time.monotonic() + 200
    while not metrics_of(workdir) and time.monotonic() < end and processes[1].poll() is None:
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    (stdout, _), (other, _) = printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [75, 75], printed
    assert "4 x cpu (cpu, 2 processes)" in stdout and GLOO_GREETING.sub("", other).split() == []
    step = int(re.search(r"stopped at step (\d+); its checkpoint is saved", stdout)[1])
    assert step < STEPS and str(step) in [path.name for path in (workdir / "checkpoints").iterdir()]

    processes = start_two(*flags, devices=2)
    (stdout, _), _ = printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], printed
    assert f"continuing from step {step}" in stdout
    one, two = metrics_of(tmp_path / "one"), metrics_of(workdir)
    assert [(line["step"], line["split"]) for line in one] == [(line["step"], line["split"]) for line in two]
    for left, right in zip(one, two, strict=True):
        # Weights are whole numbers of tokens: equal fractions of useful tokens and equal denoisers mean equal batches.
        assert left.keys() - TIMED == right.keys() - TIMED
        for name in left:
            if name in ("examples", "raw_tokens", "scored_tokens", "flops") or "_share/" in name:
                assert left[name] == right[name], (left["step"], name)
        for name in ("loss", "accuracy", "useful_token_fraction", *(n for n in left if n.startswith("loss/"))):
            if name in left:
                assert left[name] == pytest.approx(right[name], rel=2e-4), (left["step"], name)


def test_processes_that_cannot_train_together_end_with_the_same_line(arguments, tmp_path):
    processes = start_two(*arguments, f"--workdir={tmp_path / 'run'}", of_the_second=["--config.seed=5"])
    line = rf"process 1 \({HOST}\) has seed=5, and process 0 \({HOST}\) has seed=0: give every process .*"
    printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [1, 1], printed
    for out, err in printed:
        assert re.fullmatch(f"error: {line}\n", err) and "step" not in out, err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_coordinator_that_does_not_answer_ends_the_process_with_one_line(tmp_path):
    address = f"localhost:{free_port()}"
    flags = [f"--coordinator_address={address}", "--num_processes=2", "--process_id=1", "--join_timeout=2"]
    status, out, err = run_main(f"--workdir={tmp_path}", *flags)
    assert status == 1 and out == "" and len(err.splitlines()) == 1
    assert err.startswith("error: process 1 has waited 2 s (--join_timeout)") and address in err
