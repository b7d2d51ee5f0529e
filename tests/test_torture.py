"""Runs that are killed at random moments equal the untouched run (benchmarks/torture.py)."""

import os
import random
import subprocess

import pytest

from benchmarks.first_hour import figures, run
from benchmarks.torture import ROOT, Difference, Trial, check_equal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torture")


def test_kills(folder, monkeypatch):
    """The part `resume` of benchmarks.first_hour, with more kills."""
    seed = random.randrange(2**32)
    print("seed", seed)  # for the output of a failed test
    monkeypatch.setenv("TMPDIR", str(folder))
    [line], error = run(("-m", "benchmarks.torture", "--kills=6", f"--seed={seed}"), 900)
    assert not error and figures({"equal": ">= 1"}, [line])[0]["met"]
    assert line["kills"] == 6 and line["equal"] == line["runs"]


def test_a_difference_is_found(folder):
    """Otherwise the comparison of test_kills would prove nothing."""
    [runs] = folder.glob("cloze-torture-*")
    untouched, other = Trial(runs / "untouched"), Trial(runs / "other", ("seed=1",))
    other.run_to_end()
    with pytest.raises(Difference, match="line 1 of the metrics differs from the untouched run's"):
        check_equal(other, untouched.contents())
    metrics = untouched.folder / "workdir" / "metrics.jsonl"
    (other.folder / "workdir" / "metrics.jsonl").write_bytes(metrics.read_bytes())
    with pytest.raises(Difference, match="of the checkpoint differs from the untouched run's"):
        check_equal(other, untouched.contents())


def test_runs_find_the_packages_of_pythonpath(tmp_path, monkeypatch):
    environments = []

    def run(command, *, env, **_):
        environments.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("PYTHONPATH", "/packages")
    monkeypatch.setattr(subprocess, "run", run)
    assert Trial(tmp_path / "run").run() == 0
    assert [env["PYTHONPATH"].split(os.pathsep) for env in environments] == [[str(ROOT), "/packages"]]
