"""The statistics of a report: against scipy, worked examples and simulation."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from studies.statistics import Comparison, compare, compare_each, holm, power, smallest_detectable, summarize


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def seeds(*values):
    return dict(enumerate(values))


def test_a_mean_and_its_interval_by_hand():
    # Mean 3, standard error sqrt(1 / 3), and 4.302653 is the 97.5% point of t with 2 degrees of freedom.
    summary = summarize(seeds(2.0, 3.0, 4.0))
    assert (summary.num_seeds, summary.mean) == (3, 3.0)
    assert summary.low == pytest.approx(3 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert summary.high == pytest.approx(3 + 4.302653 / math.sqrt(3), abs=1e-6)


@pytest.mark.parametrize("values", [(), (2.0,), (0.7, 0.7), (0.1 + 0.2, 0.3)])
def test_no_interval_of_values_without_spread(values):
    summary = summarize(seeds(*values))
    assert summary.num_seeds == len(values) and summary.low is None and summary.high is None
    assert summary.mean == (pytest.approx(values[0]) if values else None)


def test_a_paired_comparison_by_hand():
    # The differences 1, 2, 3 have a mean of 2 and a standard error of 1 / sqrt(3): t = 2 sqrt(3). With 2 degrees of
    # freedom the two-sided p is 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    found = compare("a", "b", {"a": seeds(11.0, 22.0, 33.0), "b": seeds(10.0, 20.0, 30.0)})
    assert (found.mean, found.spread, found.num_seeds) == (2.0, 1.0, 3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.reason == ""


def test_only_common_seeds_are_compared():
    values = {"a": {0: 1.0, 1: 2.0, 2: 4.0, 5: 99.0}, "b": {2: 3.5, 1: 1.7, 0: 0.9, 7: -99.0}}
    found = compare("a", "b", values)
    assert found.p == pytest.approx(stats.ttest_1samp([0.1, 0.3, 0.5], 0).pvalue)
    assert found.num_seeds == 3 and found.mean == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ({0: 1.0}, {1: 1.0}, "no common seeds"),
        ({0: 1.0, 1: 1.1}, {1: 1.0, 2: 1.0}, "one common seed"),
        (seeds(0.5, 0.6, 0.7), seeds(0.5, 0.6, 0.7), "equal differences at all seeds"),
        (seeds(0.6, 0.7, 0.8), seeds(0.5, 0.6, 0.7), "equal differences at all seeds"),  # up to rounding
    ],
)
def test_differences_without_spread_are_not_tested(a, b, reason):
    found = compare_each("b", {"a": a, "b": b})["a", "b"]
    assert found.reason == reason and found.sign == 0
    assert (found.low, found.high, found.p, found.corrected, found.spread) == (None,) * 5


def test_holm_by_hand():
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, and none below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_comparisons_without_a_test_count_in_the_correction():
    values = {"base": seeds(1.0, 2.0, 3.0), "a": seeds(1.1, 2.2, 3.1), "b": {9: 1.0}}
    found = compare_each("base", values)
    assert found["a", "base"].corrected == pytest.approx(2 * found["a", "base"].p)
    assert found["b", "base"].corrected is None


def test_the_sign_is_that_of_a_difference_beyond_noise():
    assert Comparison("a", "b", 3, -0.2, corrected=0.049).sign == -1
    assert Comparison("a", "b", 3, 0.2, corrected=0.049).sign == 1
    assert Comparison("a", "b", 3, 0.2, p=0.02, corrected=0.05).sign == 0


def test_each_pair_is_in_one_of_two_families_and_has_one_p():
    rng = np.random.default_rng(4)
    pairs = compare_each("b", {name: seeds(*rng.normal(size=3)) for name in "abcd"})
    for family in ([("a", "b"), ("c", "b"), ("d", "b")], [("a", "c"), ("a", "d"), ("c", "d")]):
        expected = pytest.approx(holm([pairs[pair].p for pair in family]))
        assert [pairs[pair].corrected for pair in family] == expected
        for first, second in family:
            one, other = pairs[first, second], pairs[second, first]
            assert (one.mean, one.low, one.high) == (-other.mean, -other.high, -other.low)
            assert one.corrected == other.corrected and one.sign == -other.sign
    assert len(pairs) == 12


def test_holm_keeps_the_error_of_each_family():
    """Of studies of 5 equal variants, at most 5% have a wrong verdict in a family; without it 12% do."""
    rng, wrong, uncorrected = np.random.default_rng(0), np.zeros(2), 0
    for _ in range(400):
        pairs = compare_each("a", {name: seeds(*rng.normal(size=3)) for name in "abcde"})
        to_baseline = [pair for pair in pairs.values() if pair.second == "a"]
        others = [pair for pair in pairs.values() if "a" not in (pair.first, pair.second)]
        wrong += [any(pair.sign for pair in family) for family in (to_baseline, others)]
        uncorrected += any(pair.p < 0.05 for pair in to_baseline)
    assert (wrong <= 0.05 * 400 + 2 * math.sqrt(400 * 0.05 * 0.95)).all()
    assert uncorrected > 0.08 * 400


@pytest.mark.parametrize(("freedom", "critical", "shift"), [(2, 4.3, 5.6), (4, 2.8, 0.5), (9, 2.26, 3.0)])
def test_power_is_that_of_the_noncentral_t_distribution(freedom, critical, shift):
    expected = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
    assert power(shift, critical, freedom) == pytest.approx(expected, abs=1e-5)


def test_the_smallest_detectable_difference_is_found_four_times_of_five():
    rng = np.random.default_rng(2)
    comparisons = [Comparison("a", "b", 4, 0.0, spread=spread, p=0.5) for spread in (0.1, 0.3)]
    smallest = smallest_detectable(comparisons)
    spread = math.sqrt((0.1**2 + 0.3**2) / 2)
    differences = rng.normal(smallest, spread, size=(4, 4000))
    found = stats.ttest_1samp(differences, 0).pvalue < 0.05 / 2  # two comparisons
    assert found.mean() == pytest.approx(0.8, abs=0.02)


def test_the_smallest_detectable_difference_of_many_comparisons_of_two_seeds_is_finite():
    comparison = Comparison("a", "b", 2, 0.0, spread=1.0, p=0.5)
    assert 100 < smallest_detectable([comparison] * 66) < 2000
    assert smallest_detectable([Comparison("a", "b", 1, 0.0)]) is None
