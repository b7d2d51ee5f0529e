"""Two processes with two devices each train as one process with one device."""

import json
import re

import pytest

from tests.train.subprocesses import free_port, run_main, start_main

# Several C++ threads of gloo print this message at once, each in pieces whose order varies.
GLOO_GREETING = re.compile(
    r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d+"
)


@pytest.fixture(scope="module")
def arguments(corpus):
    return [
        f"--config.data.path={corpus / 'text'}",
        f"--config.data.cache_dir={corpus / 'cache'}",
        "--config.train.steps=6",
        "--config.train.eval_every=3",
        "--config.train.checkpoint_every=3",
    ]


def metrics_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one(arguments, tmp_path):
    status, out, err = run_main(*arguments, f"--workdir={tmp_path / 'one'}")
    assert status == 0, out + err
    address = f"--coordinator_address=localhost:{free_port()}"
    started = [
        start_main(*arguments, f"--workdir={tmp_path / 'two'}", address, "--num_processes=2", f"--process_id={i}",
                   devices=2)
        for i in range(2)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    assert "4 x cpu (cpu, 2 processes)" in printed[0][0]
    assert GLOO_GREETING.sub("", printed[1][0]).split() == [], "process 1 prints nothing"
    one, two = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two")
    assert [(line["step"], line["split"]) for line in one] == [(line["step"], line["split"]) for line in two]
    for left, right in zip(one, two, strict=True):
        # Weights are whole numbers of tokens: equal fractions of useful tokens and equal denoisers mean equal batches.
        assert left.keys() == right.keys()
        for name in left:
            if name in ("examples", "raw_tokens", "scored_tokens", "flops") or "_share/" in name:
                assert left[name] == right[name], (left["step"], name)
        for name in ("loss", "accuracy", "useful_token_fraction", *(n for n in left if n.startswith("loss/"))):
            if name in left:
                assert left[name] == pytest.approx(right[name], rel=2e-4), (left["step"], name)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_processes=2"], "--coordinator_address is missing"),
        (
            ["--coordinator_address=localhost:1", "--num_processes=2", "--process_id=2"],
            "--process_id=2 must be in 0..1",
        ),
    ],
)
def test_an_incomplete_description_of_processes_is_an_error(arguments, tmp_path, flags, message):
    status, out, err = run_main(*arguments, f"--workdir={tmp_path / 'run'}", *flags)
    assert status == 1 and out == "" and err.startswith(f"error: {message}") and len(err.splitlines()) == 1
