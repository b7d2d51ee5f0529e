"""Means, paired differences and their tests over the seeds of a study."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from scipy import integrate, optimize, stats

LEVEL = 0.95  # of intervals
ALPHA = 0.05  # a difference is beyond noise if its corrected p is below
POWER = 0.8  # of the smallest detectable difference
# Values are float32 sums, so a spread below this share of the values is rounding and says nothing about noise.
_RESOLUTION = float(np.finfo(np.float32).eps)

Values = Mapping[int, float]  # seed -> finite value


@dataclasses.dataclass(frozen=True)
class Summary:
    """The mean over seeds, with the t interval at LEVEL; None where the values do not determine it."""

    num_seeds: int
    mean: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The mean of `first` minus `second` over the seeds that both have, with a paired t test.

    Attributes:
      num_seeds: that both have.
      difference: None without common seeds.
      low, high: t interval at LEVEL of this difference alone, without correction for other comparisons.
      spread: standard deviation of the differences.
      p: of the paired t test, without correction.
      corrected: p after Holm's correction.
      reason: why there is no test; "" if there is one. Without a test, low, high, spread, p and corrected are None.
    """

    first: str
    second: str
    num_seeds: int
    difference: float | None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    p: float | None = None
    corrected: float | None = None
    reason: str = ""

    @property
    def sign(self) -> int:
        """1, 0 or -1 for a difference beyond noise that is positive, for none, and for one that is negative."""
        if self.corrected is None or self.difference is None or self.corrected >= ALPHA:
            return 0
        return int(math.copysign(1, self.difference))


def summarize(values: Values) -> Summary:
    """Returns the mean of `values` with its t interval; no interval for one seed and for equal values."""
    numbers = np.array(list(values.values()), dtype=np.float64)
    if not numbers.size:
        return Summary(0, None, None, None)
    mean = float(numbers.mean())
    if numbers.size < 2 or _is_constant(numbers, numbers):
        return Summary(numbers.size, mean, None, None)
    low, high = stats.t.interval(LEVEL, numbers.size - 1, loc=mean, scale=stats.sem(numbers))
    return Summary(numbers.size, mean, float(low), float(high))


def compare(first: str, second: str, values: Mapping[str, Values]) -> Comparison:
    """Returns the comparison of two variants. values: variant -> seed -> finite value."""
    seeds = sorted(values[first].keys() & values[second].keys())
    a = np.array([values[first][seed] for seed in seeds], dtype=np.float64)
    b = np.array([values[second][seed] for seed in seeds], dtype=np.float64)
    if not seeds:
        return Comparison(first, second, 0, None, reason="no common seeds")
    difference = float((a - b).mean())
    if len(seeds) < 2:
        return Comparison(first, second, 1, difference, reason="one common seed")
    if _is_constant(a - b, np.concatenate([a, b])):
        return Comparison(first, second, len(seeds), difference, reason="equal differences at all seeds")
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(LEVEL)
    return Comparison(
        first,
        second,
        len(seeds),
        difference,
        low=float(interval.low),
        high=float(interval.high),
        spread=float((a - b).std(ddof=1)),
        p=float(test.pvalue),
    )


def compare_all(
    pairs: Iterable[tuple[str, str]], values: Mapping[str, Values], untested: Collection[str] = ()
) -> list[Comparison]:
    """Returns the comparisons of `pairs`, with p corrected over all of them.

    A pair without a test counts in the correction, so that no result looks more certain because runs are missing.

    untested: variants without tests, because their values are those of their better runs alone.
    """
    comparisons = [_without_test(compare(first, second, values), untested) for first, second in pairs]
    corrected = holm([1.0 if comparison.p is None else comparison.p for comparison in comparisons])
    return [
        comparison if comparison.p is None else dataclasses.replace(comparison, corrected=p)
        for comparison, p in zip(comparisons, corrected, strict=True)
    ]


def _without_test(comparison: Comparison, untested: Collection[str]) -> Comparison:
    for variant in (comparison.first, comparison.second):
        if variant in untested:
            return Comparison(
                comparison.first,
                comparison.second,
                comparison.num_seeds,
                comparison.difference,
                reason=f"{variant} has complete runs without a value",
            )
    return comparison


def compare_every_pair(values: Mapping[str, Values], untested: Collection[str] = ()) -> list[Comparison]:
    """Returns the comparisons of all pairs of variants, with p corrected over all of them. untested: as compare_all."""
    return compare_all(itertools.combinations(values, 2), values, untested)


def compare_each(baseline: str, values: Mapping[str, Values], untested: Collection[str] = ()) -> list[Comparison]:
    """Returns one comparison of each pair of variants, in two families that are corrected separately.

    The first family has the pairs with the baseline, which is chosen before the runs. The second has all other pairs,
    so that its correction holds for a variant that is chosen by its results, such as the best. Each pair is in one
    family, and so has one p. In each family the chance of any wrong verdict is at most ALPHA. untested: as compare_all.
    """
    others = {variant: found for variant, found in values.items() if variant != baseline}
    to_baseline = compare_all([(variant, baseline) for variant in others], values, untested)
    return to_baseline + compare_every_pair(others, untested)


def choose_best(values: Mapping[str, Values], better: str) -> str | None:
    """Returns the variant that is no worse than each other variant in the mean over the seeds that both have.

    Tests are over the same seeds, so none can find another variant better. Where all variants have the same seeds, the
    variant is the one with the best mean, and the first of these. None: no such variant, because of missing seeds.
    """
    for first in values:
        if all(_is_no_worse(values[first], values[second], better) for second in values if second != first):
            return first
    return None


def _is_no_worse(first: Values, second: Values, better: str) -> bool:
    seeds = first.keys() & second.keys()
    # Sums without rounding depend on neither the order of the seeds nor the other variant.
    a, b = (math.fsum(found[seed] for seed in seeds) for found in (first, second))
    return bool(seeds) and (a >= b if better == "higher" else a <= b)


def reverse(comparison: Comparison) -> Comparison:
    """Returns the comparison with `first` and `second` exchanged."""

    def minus(value: float | None) -> float | None:
        return None if value is None else -value

    return dataclasses.replace(
        comparison,
        first=comparison.second,
        second=comparison.first,
        difference=minus(comparison.difference),
        low=minus(comparison.high),
        high=minus(comparison.low),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Returns the p values corrected by Holm's step-down procedure (Holm 1979), in the order given.

    The chance that any true null hypothesis is rejected stays below the level, whatever the dependence of the tests.
    """
    corrected = [1.0] * len(p)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = largest
    return corrected


def smallest_detectable(comparisons: Sequence[Comparison]) -> float | None:
    """Returns the smallest true difference that these comparisons find with probability POWER; None without a test.

    The tests are two-sided paired t tests at the level of Holm's first and strictest step. The spread is the root mean
    square, over the comparisons, of the standard deviation of the differences, and the number of seeds is their median.
    """
    tested = [comparison for comparison in comparisons if comparison.spread is not None]
    if not tested:
        return None
    num_seeds = statistics.median_low([comparison.num_seeds for comparison in tested])
    spread = math.sqrt(sum(comparison.spread**2 for comparison in tested if comparison.spread) / len(tested))
    freedom = num_seeds - 1
    critical = stats.t.isf(ALPHA / (2 * len(comparisons)), freedom)

    shift = optimize.brentq(
        lambda shift: power(shift, critical, freedom) - POWER,
        0.0,
        critical * math.sqrt(stats.chi2.isf(0.01, freedom) / freedom) + 3,
    )
    return float(shift) * spread / math.sqrt(num_seeds)


def power(shift: float, critical: float, freedom: int) -> float:
    """Returns the probability that a noncentral t variable is beyond `critical` or -`critical`.

    It integrates over the distribution of the sample's standard deviation, because scipy.stats.nct is NaN for large
    `shift`, which few seeds and many comparisons need. shift: the noncentrality.
    """

    def given(quantile: float) -> float:
        limit = critical * math.sqrt(stats.chi2.ppf(quantile, freedom) / freedom)
        return float(stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift))

    return float(integrate.quad(given, 0.0, 1.0)[0])


def _is_constant(numbers: np.ndarray, scale: np.ndarray) -> bool:
    return bool(np.ptp(numbers) <= _RESOLUTION * np.abs(scale).max())
