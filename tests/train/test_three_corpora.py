"""Three corpora in one run through the command line: shares, losses, kills, two processes, and the tools on a run."""

import json
import re
import signal
import time

import pytest

from evaluation import __main__ as evaluate
from tests.in_process import run_here
from tests.three_corpora import RATES
from tests.train.subprocesses import ROOT, free_port, start_main
from train import main
from workdir.metrics import read_metrics

pytestmark = pytest.mark.slow

TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}
# What the sum over devices rounds, and by how much; all other metrics are counts.
ROUNDED = dict.fromkeys(("loss", "accuracy", "perplexity", "bits_per_byte", "grad_norm", "loss_stderr"), 1e-3)
ROUNDED["bits_per_byte_stderr"] = 1e-3
ROUNDED["useful_token_fraction"] = 1e-6


@pytest.fixture(scope="module")
def flags(corpus):
    """The flags that name the config and its text."""
    paths = {"modules": "text/[a-b]*.txt", "labelled": "labelled.jsonl", "pairs": "pairs.jsonl"}
    own = [f"--config.data.cache_dir={corpus / 'cache'}"]
    own += [f"--config.data.sources.{name}.path={corpus / path}" for name, path in paths.items()]
    return [f"--config={ROOT}/tests/three_corpora.py", *own]


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """The folder of a run of one process that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_here(main.main, *flags, f"--workdir={folder}")[::2] == (0, "")
    return folder


def lines_of(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]


def shares_of(workdir, metric):
    """The last value of a share, by corpus."""
    [*_, last] = read_metrics(workdir, "train")
    return {name: last[f"{metric}_share/{name}"] for name in RATES}


def test_realised_shares_are_within_1_percent_of_the_rates(whole):
    """1% of each rate, in 3,840 windows, whose lengths differ, so that shares of the examples are not the rates."""
    assert shares_of(whole, "token") == pytest.approx(RATES, rel=0.01)
    assert shares_of(whole, "example") != pytest.approx(RATES, rel=0.01)
    [*_, last] = read_metrics(whole, "train")
    assert sum(last[f"raw_tokens/{name}"] for name in RATES) == last["raw_tokens"] > 100_000
    assert last["epochs/pairs"] > 10 > 2 > last["epochs/labelled"] > 1 > last["epochs/modules"]


def test_losses_of_the_corpora_add_up_to_the_total(whole):
    """Every raw token is scored once, so a corpus' weight in a line is its raw tokens since the line before."""
    read = dict.fromkeys(RATES, 0)
    lines = [line for line in read_metrics(whole, "train") if "raw_tokens/pairs" in line]
    assert len(lines) == 60 and lines[-1]["scored_tokens"] == lines[-1]["raw_tokens"]
    for line in lines:
        new = {name: line[f"raw_tokens/{name}"] - read[name] for name in RATES}
        read = {name: line[f"raw_tokens/{name}"] for name in RATES}
        for metric in ("loss", "accuracy"):
            total = sum(new[name] * line[f"{metric}/{name}"] for name in RATES)
            assert line[metric] == pytest.approx(total / sum(new.values()), rel=1e-5), (line["step"], metric)
    for line in read_metrics(whole, "eval"):
        assert line["loss"] == pytest.approx(sum(rate * line[f"loss/{name}"] for name, rate in RATES.items()), rel=1e-3)
        assert line["tokens/clm"] == sum(line[f"tokens/{name}"] for name in RATES) > 0


def wait_for_lines(workdir, count, processes):
    end = time.monotonic() + 240
    path = workdir / "metrics.jsonl"
    while not (path.exists() and len(path.read_text().splitlines()) >= count):
        assert time.monotonic() < end and all(process.poll() is None for process in processes), [
            process.communicate() for process in processes if process.poll() is not None
        ]
        time.sleep(0.05)


# Appends a line where a token store is begun, and leaves the other process time to begin it too, if it does not wait.
BUILDS = """
import time

from data.store import store

write_store = store.write_store

def counted(*args, **kwargs):
    with open({built!r}, "a") as file:
        print("built", file=file)
    time.sleep(2)
    return write_store(*args, **kwargs)

store.write_store = counted
"""


def test_two_processes_one_of_them_killed_read_the_same(flags, whole, tmp_path):
    """Equal counts of tokens of every corpus, and the losses of one process to its precision: equal batches.

    They share an empty data.cache_dir, in which one of them builds each of the three token stores.
    """
    (tmp_path / "builds.py").write_text(BUILDS.format(built=str(tmp_path / "built.txt")))
    own = [flag for flag in flags if "cache_dir" not in flag]
    own += [f"--config.data.cache_dir={tmp_path / 'cache'}", f"--code={tmp_path / 'builds.py'}"]
    for is_killed in (True, False):
        address = f"--coordinator_address=localhost:{free_port()}"
        started = [
            start_main(*own, f"--workdir={tmp_path / 'run'}", address, "--num_processes=2", f"--process_id={k}")
            for k in range(2)
        ]
        try:
            if is_killed:
                wait_for_lines(tmp_path / "run", 37, started)
                started[1].kill()
            printed = [process.communicate(timeout=240) for process in started]
        finally:
            for process in started:
                process.kill()
        ends = [[1, -signal.SIGKILL], [-signal.SIGABRT, -signal.SIGKILL]] if is_killed else [[0, 0]]  # JAX may abort
        assert [process.returncode for process in started] in ends, printed
    assert re.search(r"continuing from step [1-5]0\b", printed[0][0])
    assert (tmp_path / "built.txt").read_text().split() == ["built"] * len(RATES)
    assert shares_of(tmp_path / "run", "token") == shares_of(whole, "token")
    for one, two in zip(lines_of(whole), lines_of(tmp_path / "run"), strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            tolerance = ROUNDED.get(name.partition("/")[0])
            assert two[name] == (pytest.approx(value, rel=tolerance) if tolerance else value), (one["step"], name)


def test_evaluate(whole):
    printed = json.loads(run_here(evaluate.main, f"--workdir={whole}")[1])
    logged = lines_of(whole)[-1]
    names = {f"{metric}/{name}" for metric in ("loss", "accuracy", "documents", "tokens") for name in RATES}
    assert names < printed.keys() and printed["step"] == 60
    for name in printed.keys() - {"heldout_digest", "heldout_windows", "split", "floors", "floors_train_tokens"}:
        assert printed[name] == pytest.approx(logged[name], rel=1e-6), name
