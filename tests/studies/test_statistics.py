"""The statistics of a report: against scipy, worked examples and simulation."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from studies.statistics import (
    better_than_floor,
    compare_each,
    compare_shares,
    dunnett,
    holm,
    power,
    smallest_detectable,
    spread_between_seeds,
    summarize,
    summarize_share,
)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def seeds(*values):
    return dict(enumerate(values))


def normal(*sizes, seed=0):
    """Returns standard normal samples of these sizes, named a, b, ..."""
    rng = np.random.default_rng(seed)
    return {name: seeds(*rng.normal(size=size)) for name, size in zip("abcdef", sizes, strict=False)}


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


def test_wilsons_interval_by_hand():
    # (k + z^2 / 2) / (n + z^2) +- z / (n + z^2) sqrt(k (n - k) / n + z^2 / 4) with z = 1.959964.
    summary = summarize_share(7, 8)
    centre, width = (7 + 1.9207) / 11.8415, 1.959964 / 11.8415 * math.sqrt(7 / 8 + 0.960365)
    assert (summary.num_seeds, summary.mean) == (8, 0.875)
    assert (summary.low, summary.high) == pytest.approx((centre - width, centre + width), abs=1e-4)
    assert summarize_share(0, 0).mean is None


def test_one_pair_is_an_ordinary_t_test_by_hand():
    # Variances 1 and 1: the standard error is sqrt(2 / 3), t = 3 / sqrt(2 / 3) with 4 degrees of freedom, whose
    # two-sided p is 1 - x (3 - x^2) / 2 with x = t / sqrt(4 + t^2).
    found = compare_each("b", {"b": seeds(1.0, 2.0, 3.0), "a": seeds(6.0, 5.0, 4.0)})["a", "b"]
    t = 3 / math.sqrt(2 / 3)
    x = t / math.sqrt(4 + t**2)
    assert found.mean == 3.0 and found.p == found.corrected == pytest.approx(1 - x * (3 - x**2) / 2)
    assert found.low == pytest.approx(3 - 2.776445 * math.sqrt(2 / 3), abs=1e-6)
    assert found.p == pytest.approx(stats.ttest_ind([6, 5, 4], [1, 2, 3]).pvalue)


@pytest.mark.parametrize(("sizes", "seed"), [((5, 5, 5, 5), 5), ((8, 3, 5, 4), 4), ((3, 3, 3, 3, 3), 4)])
def test_similar_spreads_have_dunnetts_test(sizes, seed):
    values = normal(*sizes, seed=seed)
    values["a"] = {seed: value + 1.0 for seed, value in values["a"].items()}
    samples = [[*of.values()] for of in values.values()]
    assert stats.bartlett(*samples).pvalue > 0.7
    expected = stats.dunnett(*samples[1:], control=samples[0], rng=np.random.default_rng(0)).pvalue
    found = compare_each("a", values)
    assert [found[name, "a"].corrected for name in list(values)[1:]] == pytest.approx(expected, abs=1e-3)
    assert all(pair.test.startswith("Dunnett") for pair in found.values())


@pytest.mark.parametrize("freedom", [2, 4, 10, 40])
def test_dunnetts_test_of_one_variant_is_a_t_test(freedom):
    for t in (0.5, 2.0, 5.0):
        assert dunnett(t, (math.sqrt(0.5),), freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=3e-5)
    # And of independent tests with a known variance, two normal ones.
    assert dunnett(2.0, (0.0, 0.0), 10**6) == pytest.approx(1 - (1 - 2 * stats.norm.sf(2.0)) ** 2, abs=3e-5)


def test_equal_spreads_are_pooled():
    # For equal variances scipy.stats.bartlett has the p value NaN.
    found = compare_each("a", {"a": seeds(0.0, 0.1, 0.2), "b": seeds(0.5, 0.6, 0.7), "c": seeds(2.0, 2.1, 2.2)})
    assert found["b", "a"].test.startswith("Dunnett")


@pytest.mark.parametrize(("ratio", "test"), [(1.2, "Dunnett"), (1.6, "Welch")])
def test_spreads_are_pooled_where_bartletts_p_is_above_70_percent(ratio, test):
    # The p is 0.82 and 0.56.
    found = compare_each("a", {"a": seeds(0.0, 1.0, 2.0), "b": seeds(0.0, ratio, 2 * ratio)})
    assert found["b", "a"].test.startswith(test)


@pytest.mark.slow
def test_spreads_that_bartletts_test_does_not_find_are_not_pooled():
    """A variance of ten times the others': pooled, more than one study in twenty without a difference has a verdict."""
    spreads, rng, wrong = np.array([10**0.5, 1, 1, 1, 1])[:, None], np.random.default_rng(0), 0
    for _ in range(500):
        samples = rng.normal(0, spreads, size=(5, 5))
        found = compare_each("0", {str(name): seeds(*sample) for name, sample in enumerate(samples)})
        wrong += any(pair.sign for pair in found.values())
    assert wrong <= 25


def test_different_spreads_have_welchs_tests():
    values = {"a": seeds(1.0, 1.01, 1.02, 1.0), "b": seeds(1.0, 2.0, 3.0, 4.0), "c": seeds(1.3, 1.31, 1.32, 1.3)}
    found = compare_each("a", values)
    p = [stats.ttest_ind([*values[name].values()], [*values["a"].values()], equal_var=False).pvalue for name in "bc"]
    assert [found[name, "a"].p for name in "bc"] == pytest.approx(p)
    assert [found[name, "a"].corrected for name in "bc"] == pytest.approx(holm(p))
    assert found["c", "a"].sign == 1 and found["a", "c"].sign == -1 and found["b", "a"].test == "Welch, Holm"
    interval = stats.ttest_ind([*values["b"].values()], [*values["a"].values()], equal_var=False).confidence_interval()
    assert (found["b", "a"].low, found["b", "a"].high) == pytest.approx((interval.low, interval.high))


def test_one_constant_variant_is_not_pooled_and_two_are_not_tested():
    found = compare_each("a", {"a": seeds(0.5, 0.5, 0.5), "b": seeds(0.6, 0.7, 0.8), "c": seeds(0.3, 0.1 + 0.2, 0.3)})
    # Welch's test has the freedom of the variant with a spread: t = 0.2 sqrt(3) / 0.1 with 2 degrees of freedom.
    t = 0.2 / 0.1 * math.sqrt(3)
    assert found["b", "a"].p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert found["c", "a"].reason == "no spread between seeds" and found["c", "a"].mean == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("a", "untested", "reason"),
    [
        ((), {}, "a has 0 values, and a test needs 3"),
        ((1.0, 2.0), {}, "a has 2 values, and a test needs 3"),
        ((1.0, 2.0, 3.0), {"a": "has diverged runs"}, "a has diverged runs"),
        ((1.0, 1.0, 1.0), {}, ""),
    ],
)
def test_no_test_says_why(a, untested, reason):
    found = compare_each("b", {"a": seeds(*a), "b": seeds(0.5, 0.6, 0.7)}, untested=untested)["a", "b"]
    assert found.reason == reason
    if reason:
        assert (found.low, found.high, found.p, found.corrected, found.detectable, found.sign) == (None,) * 5 + (0,)


def test_holm_by_hand():
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, and none below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_comparisons_without_a_test_count_in_the_correction():
    values = {"base": seeds(1.0, 2.0, 3.0), "a": seeds(3.1, 4.2, 5.1)}
    alone = compare_each("base", values)["a", "base"].corrected
    found = compare_each("base", values | {"b": {9: 1.0}})
    assert found["a", "base"].p == alone and found["b", "base"].corrected is None
    assert 1.5 * alone < found["a", "base"].corrected < 2 * alone
    # And with Holm's correction, where the variances differ.
    found = compare_each("base", values | {"a": seeds(103.1, 134.2, 165.1), "b": {9: 1.0}})["a", "base"]
    assert found.test == "Welch, Holm" and found.corrected == 2 * found.p < 0.1


def test_pairs_without_the_baseline_are_a_family_of_their_own():
    values = normal(4, 4, 4, 4, seed=4)
    alone, found = compare_each("a", values), compare_each("a", values, [("c", "b"), ("d", "b")])
    assert all(found[pair] == comparison for pair, comparison in alone.items())
    p = [found[pair].p for pair in (("c", "b"), ("d", "b"))]
    assert [found[pair].corrected for pair in (("c", "b"), ("d", "b"))] == pytest.approx(holm(p))
    for first, second in found:
        one, other = found[first, second], found[second, first]
        assert (one.mean, one.low, one.high) == (-other.mean, -other.high, -other.low)
        assert one.corrected == other.corrected and one.sign == -other.sign
    assert len(found) == 10
    one = compare_each("a", values, [("c", "b")])["c", "b"]  # of two tests each must be beyond a greater t
    assert one.p == found["c", "b"].p and one.detectable < found["c", "b"].detectable


@pytest.mark.parametrize("scale", [1, 30])  # pooled, and Welch
def test_every_p_is_multiplied_by_the_families_and_the_detectable_difference_grows(scale):
    values = normal(5, 5, 5, seed=1)
    values["b"] = {seed: scale * value for seed, value in values["b"].items()}
    one, four = (compare_each("a", values, [("b", "c")], families=n) for n in (1, 4))
    for pair in one:
        assert four[pair].corrected == min(1.0, 4 * one[pair].corrected) and four[pair].p == one[pair].p
        assert four[pair].detectable > one[pair].detectable
    shares = [compare_shares("a", {"a": (0, 8), "b": (7, 8)}, families=n)["b", "a"].corrected for n in (1, 4)]
    assert shares[1] == 4 * shares[0]


def test_the_order_and_the_names_of_seeds_change_nothing():
    values = normal(5, 5, 5, seed=2)
    found = compare_each("a", values)
    shuffled = {name: {9 - seed: of[seed] for seed in (3, 0, 4, 1, 2)} for name, of in values.items()}
    for pair, other in compare_each("a", shuffled).items():
        assert (other.mean, other.corrected, other.low) == pytest.approx(
            (found[pair].mean, found[pair].corrected, found[pair].low)
        )


def test_success_rates_by_hand():
    # 0 and 4 of 4: one of the 70 tables with these margins is as extreme on each side. Holm's factor of two, and one.
    found = compare_shares("a", {"a": (0, 4), "b": (4, 4), "c": (1, 4), "d": (0, 0)}, [("b", "c")], families=1)
    assert found["b", "a"].p == pytest.approx(2 / 70) and found["b", "a"].corrected == pytest.approx(3 * 2 / 70)
    assert found["b", "a"].mean == 1.0 and found["c", "a"].p == 1.0 and found["d", "a"].reason == "no runs"
    # 4 and 1 of 4: (C(4,4) C(4,1) + C(4,1) C(4,4)) / C(8,5).
    assert found["b", "c"].corrected == pytest.approx(8 / 56)


@pytest.mark.parametrize(
    ("values", "floor", "is_better"),
    [
        ((1.0, 1.1, 1.2), 1.4, True),  # t = 0.3 sqrt(3) / 0.1 = 5.2, above the 2.92 of 2 degrees of freedom
        ((1.0, 1.1, 1.2), 1.2, False),  # 1.7
        ((1.0, 1.1, 1.2), 1.0, False),
        ((1.0, 1.0, 1.0), 1.01, True),  # no spread: the mean decides
        ((1.0, 1.0, 1.0), 1.0, False),
        ((1.0, 1.4), 1.3, True),  # two seeds have no test
        ((1.0, 1.1, 1.2), {0: 1.4, 1: 1.5, 2: 1.6}, True),
        ((1.0, 1.1, 1.2), {0: 1.1, 1: 1.2, 2: 1.3}, False),  # t = 1.2, of 4 degrees of freedom
        ((1.0, 1.1, 1.2), {0: 1.15, 1: 1.25, 2: 1.35}, False),  # 1.8 of 2.1; as a number the floor would have 2.6
    ],
)
def test_better_than_a_floor(values, floor, is_better):
    found = {"a"} if is_better else set()
    assert better_than_floor({"a": seeds(*values)}, floor, "lower") == found
    opposite = {seed: -value for seed, value in floor.items()} if isinstance(floor, dict) else -floor
    assert better_than_floor({"a": seeds(*(-value for value in values))}, opposite, "higher") == found


def test_floors_have_the_variance_and_the_correction_of_all_variants():
    # The pooled variance is 0.01 with 6 degrees of freedom: t = d sqrt(3) / 0.1, at 5% / 3 beyond 2.75: d = 0.159.
    means = {"a": 0.1, "b": 0.15, "c": 2.1}
    values = {name: seeds(mean - 0.1, mean, mean + 0.1) for name, mean in means.items()}
    assert stats.t.isf(0.05 / 3, 6) == pytest.approx(2.75, abs=0.005)
    assert better_than_floor(values, 0.3, "lower") == {"a"}
    assert better_than_floor(values | {"d": {}}, 0.3, "lower") == {"a"}
    # With another spread in c, each has its own: t = 3.5 is below the 5.3 of 2 degrees of freedom.
    assert better_than_floor(values | {"c": seeds(0.0, 9.0, 30.0)}, 0.3, "lower") == set()
    assert stats.ttest_1samp([0.0, 0.1, 0.2], 0.3, alternative="less").pvalue > 0.05 / 3


def test_the_spread_between_seeds_is_pooled():
    # Variances 1 and 4 with 2 and 1 degrees of freedom: sqrt((2 x 1 + 1 x 8) / 3).
    assert spread_between_seeds({"a": seeds(1.0, 2.0, 3.0), "b": seeds(1.0, 5.0), "c": seeds(1.0)}) == pytest.approx(
        math.sqrt((2 * 1 + 8) / 3)
    )
    assert spread_between_seeds({"a": seeds(1.0)}) == 0.0


@pytest.mark.slow
def test_a_study_without_a_difference_has_few_verdicts():
    """5% of 500 studies of 5 equal variants in 2 measures have a verdict; separate t tests would have 30%."""
    rng, wrong, uncorrected, covered = np.random.default_rng(0), 0, 0, 0
    for _ in range(500):
        pairs = []
        for _ in range(2):
            found = compare_each("a", {name: seeds(*rng.normal(size=4)) for name in "abcde"}, families=2)
            pairs += [found[name, "a"] for name in "bcde"]
        wrong += any(pair.sign for pair in pairs)
        uncorrected += any(pair.p < 0.05 for pair in pairs)
        covered += sum(pair.low < 0 < pair.high for pair in pairs)
    assert wrong <= 0.05 * 500 + 2 * math.sqrt(500 * 0.05 * 0.95)
    assert uncorrected > 0.15 * 500
    assert 0.93 < covered / (500 * 8) < 0.97


@pytest.mark.parametrize(("freedom", "critical", "shift"), [(2, 4.3, 5.6), (4, 2.8, 0.5), (9, 2.26, 3.0)])
def test_power_is_that_of_the_noncentral_t_distribution(freedom, critical, shift):
    expected = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
    assert power(shift, critical, freedom) == pytest.approx(expected, abs=5e-5)


@pytest.mark.slow
def test_the_smallest_detectable_difference_is_found_four_times_of_five():
    rng, values = np.random.default_rng(0), normal(4, 4, 4, seed=2)
    spread, size = spread_between_seeds(values), compare_each("a", values)["b", "a"].detectable
    found = []
    for _ in range(1000):
        drawn = rng.normal([[0.0], [size], [0.0]], spread, size=(3, 4))
        pair = compare_each("a", {name: seeds(*of) for name, of in zip("abc", drawn, strict=True)})["b", "a"]
        found += [pair.sign == 1] * pair.test.startswith("Dunnett")
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


def test_the_smallest_detectable_difference_of_strict_tests_is_finite():
    assert 100 < smallest_detectable(stats.t.isf(0.05 / 132, 1), 1) < 2000
