"""benchmarks.verdicts: the statistics of before, and the simulation."""

import math

import pytest

from benchmarks.verdicts import SETTINGS, paired, simulate


def test_the_paired_test_of_before_by_hand():
    # The differences 1, 2, 3 have a mean of 2 and a standard error of 1 / sqrt(3): t = 2 sqrt(3). With 2 degrees of
    # freedom the two-sided p is 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14). Holm's factor is 2.
    values = {"b": {0: 10.0, 1: 20.0, 2: 30.0}, "a": {0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, "c": {0: 11.0, 1: 21.0}}
    assert paired("b", values) == {"a": pytest.approx(2 * (1 - math.sqrt(12 / 14))), "c": 1.0}


def test_the_simulation_has_a_line_for_each_setting():
    lines = list(simulate(2))
    assert [(line["setting"], line["seeds"]) for line in lines] == [(name, n) for name in SETTINGS for n in (3, 5, 8)]
    assert all(0 <= line[name] <= 1 for line in lines for name in ("found", "found_paired", "coverage"))
