"""Runs that are killed at random moments equal the untouched run (benchmarks/torture.py)."""

import json
import os
import random
import shutil
import subprocess

import pytest

from benchmarks.first_hour import figures, run
from benchmarks.torture import ROOT, STEPS, Difference, Trial, check_equal, torture
from tests.data.test_checksums import flip

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
    untouched = Trial(runs / "untouched")
    expected = untouched.contents()
    other = Trial(shutil.copytree(untouched.folder, runs / "other"))
    check_equal(other, expected)
    metrics = other.folder / "workdir" / "metrics.jsonl"
    lines = metrics.read_text()
    first, _, rest = lines.partition("\n")
    metrics.write_text(json.dumps(json.loads(first) | {"loss": 0.0}) + "\n" + rest)
    with pytest.raises(Difference, match="line 1 of the metrics differs from the untouched run's"):
        check_equal(other, expected)
    metrics.write_text(lines)
    files = (other.folder / "workdir" / "checkpoints" / str(STEPS) / "state").rglob("*")
    largest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)
    flip(largest, 8 * (largest.stat().st_size // 2))
    with pytest.raises(Difference, match=f"{largest.name} of the checkpoint differs from the untouched run's"):
        check_equal(other, expected)


def test_a_run_that_was_not_killed_and_fails_is_a_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(Trial, "run_to_end", lambda trial: trial.folder.mkdir(parents=True))
    monkeypatch.setattr(Trial, "contents", lambda trial: {})
    monkeypatch.setattr(Trial, "run", lambda trial, seconds: 1)
    with pytest.raises(Difference, match="a run that was not killed ended with status 1"):
        torture(1, 0, tmp_path)


def test_runs_find_the_packages_of_pythonpath(tmp_path, monkeypatch):
    environments = []

    def run(command, *, env, **_):
        environments.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("PYTHONPATH", "/packages")
    monkeypatch.setattr(subprocess, "run", run)
    assert Trial(tmp_path / "run").run() == 0
    assert [env["PYTHONPATH"].split(os.pathsep) for env in environments] == [[str(ROOT), "/packages"]]
