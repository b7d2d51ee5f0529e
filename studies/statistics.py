"""Means, paired differences and their tests over the seeds of a study."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

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
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The mean of `first` minus `second` over the seeds that both have, with a paired t test.

    Attributes:
      num_seeds: that both have.
      mean: of the differences; None without common seeds.
      low, high: t interval at LEVEL of this difference alone, without correction for other comparisons.
      spread: standard deviation of the differences.
      p: of the paired t test, without correction.
      corrected: p after Holm's correction.
      reason: why there is no test; "" if there is one. Without a test, low, high, spread, p and corrected are None.
    """

    first: str
    second: str
    num_seeds: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    p: float | None = None
    corrected: float | None = None
    reason: str = ""

    @property
    def sign(self) -> int:
        """1, 0 or -1 for a difference beyond noise that is positive, for none, and for one that is negative."""
        if self.corrected is None or self.mean is None or self.corrected >= ALPHA:
            return 0
        return int(math.copysign(1, self.mean))


def summarize(values: Values) -> Summary:
    """Returns the mean of `values` with its t interval; no interval for one seed and for equal values."""
    numbers = np.array(list(values.values()), dtype=np.float64)
    if not numbers.size:
        return Summary(0)
    mean = float(numbers.mean())
    if numbers.size < 2 or _is_constant(numbers, numbers):
        return Summary(numbers.size, mean)
    low, high = stats.t.interval(LEVEL, numbers.size - 1, loc=mean, scale=stats.sem(numbers))
    return Summary(numbers.size, mean, float(low), float(high))


def compare(first: str, second: str, values: Mapping[str, Values], untested: Collection[str] = ()) -> Comparison:
    """Returns the comparison of two variants, p not corrected.

    Args:
      values: variant -> seed -> finite value.
      untested: variants without tests, because their values are those of their better runs alone.
    """
    seeds = sorted(values[first].keys() & values[second].keys())
    a, b = (np.array([values[name][seed] for seed in seeds], dtype=np.float64) for name in (first, second))
    found = Comparison(first, second, len(seeds), mean=float((a - b).mean()) if seeds else None)
    incomplete = [name for name in (first, second) if name in untested]
    reason = ""
    if incomplete:
        reason = f"{incomplete[0]} has complete runs without a value"
    elif len(seeds) < 2:
        reason = "one common seed" if seeds else "no common seeds"
    elif _is_constant(a - b, np.concatenate([a, b])):
        reason = "equal differences at all seeds"
    if reason:
        return dataclasses.replace(found, reason=reason)
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(LEVEL)
    spread = float((a - b).std(ddof=1))
    return dataclasses.replace(
        found, low=float(interval.low), high=float(interval.high), spread=spread, p=float(test.pvalue)
    )


def compare_each(
    baseline: str, values: Mapping[str, Values], untested: Collection[str] = ()
) -> dict[tuple[str, str], Comparison]:
    """Returns (first, second) -> the comparison of two variants, each pair in both directions with one corrected p.

    The pairs are two families, each with Holm's correction: the pairs with the baseline, which is chosen before the
    runs, and all others. In each family the chance of any wrong verdict is at most ALPHA. A pair without a test counts
    in the correction, so that no result looks more certain because runs are missing. untested: as in `compare`.
    """
    others = [name for name in values if name != baseline]
    found = {}
    for family in ([(name, baseline) for name in others], [*itertools.combinations(others, 2)]):
        comparisons = [compare(first, second, values, untested) for first, second in family]
        corrected = holm([1.0 if comparison.p is None else comparison.p for comparison in comparisons])
        for comparison, p in zip(comparisons, corrected, strict=True):
            both = comparison, compare(comparison.second, comparison.first, values, untested)
            for one in both:
                p_or_none = None if one.p is None else p
                found[one.first, one.second] = dataclasses.replace(one, corrected=p_or_none)
    return found


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
    spread = math.sqrt(statistics.fmean([comparison.spread**2 for comparison in tested if comparison.spread]))
    freedom = num_seeds - 1
    critical = stats.t.isf(ALPHA / (2 * len(comparisons)), freedom)
    largest = critical * math.sqrt(stats.chi2.isf(0.01, freedom) / freedom) + 3
    shift = optimize.brentq(lambda shift: power(shift, critical, freedom) - POWER, 0.0, largest)
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
