"""Runs that are killed ten times at random moments, in every stage, equal the untouched run (benchmarks/torture)."""

import random

import pytest

from benchmarks.torture.kills import STAGES, torture
from benchmarks.torture.trial import Difference, Trial, check_equal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torture")


def test_ten_kills(folder):
    seed = random.randrange(2**32)
    print("seed", seed)  # for the output of a failed test
    line = torture(10, 1, seed, folder)
    assert line["kills"] == 10 == sum(line["killed_at"].values()) and line["equal"] == line["runs"] >= 2
    assert line["killed_at"].keys() == STAGES.keys()


def test_a_difference_is_found(folder):
    """Otherwise the comparison of test_ten_kills would prove nothing."""
    untouched = Trial(folder / "untouched", folder / "compiled")
    other = Trial(folder / "other", folder / "compiled", overrides=["seed=1"])
    assert other.run_to_end() == 0
    with pytest.raises(Difference, match="the metrics differ from the untouched run's at 0"):
        check_equal(other, untouched)
    (other.workdir / "metrics.jsonl").write_bytes((untouched.workdir / "metrics.jsonl").read_bytes())
    with pytest.raises(Difference, match=r"\['.*'\] differs from the untouched run's"):
        check_equal(other, untouched)
