"""Means over the seeds of a study, and tests of their differences.

The seeds of a variant are independent samples. Where Bartlett's test (1937) finds the spreads of the variants similar,
the variance is pooled over all of them and Dunnett's test (1955) compares each with the baseline. Where they may
differ, and for other pairs, t tests with Holm's correction (1979) do. Success rates have Fisher's exact test with
Holm's correction. These are the families of tests of one measure; `families` corrects for the others of the study.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize, special, stats

from command.program import plural

LEVEL = 0.95  # of intervals
ALPHA = 0.05  # a difference is beyond noise if its corrected p is below
POWER = 0.8  # of the smallest detectable difference
MIN_SEEDS = 3  # of a variant that is tested: two say next to nothing about their spread
# Of Bartlett's test, far above the usual 0.05, because it has little power with few seeds: benchmarks.verdicts has the
# errors of studies in which one of five variances is ten times the others'.
_POOLING_LEVEL = 0.7
# Values are float32 sums, so a spread below this share of the values is rounding and says nothing about noise.
_RESOLUTION = float(np.finfo(np.float32).eps)
# Gauss-Legendre quadrature over quantiles of the sample variance, densest at 0: small spreads make large t.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_QUANTILES, _QUANTILE_WEIGHTS = ((_NODES + 1) / 2) ** 4, 2 * ((_NODES + 1) / 2) ** 3 * _WEIGHTS
# And over a normal variable, beyond +-9 of which there is nothing.
_NORMALS, _NORMAL_WEIGHTS = 9 * _NODES, 9 * _WEIGHTS * stats.norm.pdf(9 * _NODES)
_FLOOR = ""  # the name of the sample of a floor's runs; variants have others

Values = Mapping[int, float]  # seed -> finite value
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A mean over seeds, or the share of seeds that succeed, with its interval at LEVEL.

    low, high: None where the values do not determine an interval; mean: None without values.
    """

    num_seeds: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The mean, or the success rate, of `first` minus that of `second`, with a test.

    Attributes:
      mean: the difference; None where one of both has no value.
      low, high: t interval at LEVEL of this difference alone, without correction; None for success rates.
      p: two-sided, of this test alone.
      corrected: p after the correction for the other tests of the family and for the other families.
      detectable: the true difference that this test finds with probability POWER; None for success rates.
      test: its name.
      reason: why there is no test; "" if there is one. Without a test, all fields but mean are None and "".
    """

    first: str
    second: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    corrected: float | None = None
    detectable: float | None = None
    test: str = ""
    reason: str = ""

    @property
    def sign(self) -> int:
        """1, 0 or -1 for a difference beyond noise that is positive, for none, and for one that is negative."""
        if self.corrected is None or self.mean is None or self.corrected >= ALPHA:
            return 0
        return int(math.copysign(1, self.mean))

    @property
    def is_below_detectable(self) -> bool:
        """Whether the difference is smaller than the one that the test finds with probability POWER."""
        return self.detectable is not None and self.mean is not None and abs(self.mean) < self.detectable

    @property
    def reversed(self) -> "Comparison":
        """The same test of `second` minus `first`."""
        mean, low, high = (None if value is None else -value for value in (self.mean, self.high, self.low))
        return dataclasses.replace(self, first=self.second, second=self.first, mean=mean, low=low, high=high)


@dataclasses.dataclass(frozen=True)
class _Noise:
    """The noise of means over seeds. pooled: the variance that all variants share; None if they differ in it."""

    counts: Mapping[str, int]
    variances: Mapping[str, float]
    pooled: float | None

    def of(self, names: Sequence[str]) -> tuple[float, float]:
        """Returns the standard error of a mean, or of the difference of two, and its degrees of freedom.

        Without pooling those of a difference are Welch's (1947).
        """
        if self.pooled is not None:
            freedom = sum(self.counts.values()) - len(self.counts)
            return math.sqrt(self.pooled * sum(1 / self.counts[name] for name in names)), freedom
        shares = {name: self.variances[name] / self.counts[name] for name in names}
        total = sum(shares.values())
        if not total:
            return 0.0, math.inf
        return math.sqrt(total), total**2 / sum(shares[name] ** 2 / (self.counts[name] - 1) for name in names)


def summarize(values: Values) -> Summary:
    """Returns the mean of `values` with its t interval; no interval for one seed and for equal values."""
    numbers = _array(values)
    if not numbers.size:
        return Summary(0)
    mean = float(numbers.mean())
    if not (numbers.size > 1 and _variance(numbers)):
        return Summary(numbers.size, mean)
    low, high = stats.t.interval(LEVEL, numbers.size - 1, loc=mean, scale=stats.sem(numbers))
    return Summary(numbers.size, mean, float(low), float(high))


def summarize_share(successes: int, runs: int) -> Summary:
    """Returns the share of runs that succeed with Wilson's interval (1927)."""
    if not runs:
        return Summary(0)
    interval = stats.binomtest(successes, runs).proportion_ci(LEVEL, method="wilson")
    return Summary(runs, successes / runs, float(interval.low), float(interval.high))


def spread_between_seeds(values: Mapping[str, Values]) -> float:
    """Returns the standard deviation between the seeds of a variant, pooled over variants; 0 where none has two."""
    samples = [numbers for of in values.values() if (numbers := _array(of)).size > 1]
    freedom = sum(numbers.size - 1 for numbers in samples)
    return math.sqrt(sum((n.size - 1) * _variance(n) for n in samples) / freedom) if freedom else 0.0


def compare_each(
    baseline: str,
    values: Mapping[str, Values],
    others: Sequence[Pair] = (),
    families: int = 1,
    untested: Mapping[str, str] | None = None,
) -> dict[Pair, Comparison]:
    """Returns (first, second) -> comparison, of each variant with the baseline and of `others`, in both directions.

    The pairs with the baseline are a family and `others` are another. In each the chance of any wrong verdict is at
    most ALPHA / families. A pair without a test counts in the correction, so that no result looks more certain because
    runs are missing.

    Args:
      others: pairs without the baseline that were chosen before the runs.
      families: families of tests in the study, of all its measures; multiplies every p.
      untested: variant -> why it has no test, such as "has diverged runs": a variant whose worst runs are absent.
    """
    samples = {name: _array(of) for name, of in values.items()}
    reasons = {
        name: f"{name} has {plural(len(numbers), 'value')}, and a test needs {MIN_SEEDS}"
        for name, numbers in samples.items()
        if len(numbers) < MIN_SEEDS
    }
    reasons |= {name: f"{name} {why}" for name, why in (untested or {}).items()}
    noise = _noise({name: numbers for name, numbers in samples.items() if name not in reasons})
    to_baseline = [_compare((name, baseline), samples, reasons, noise) for name in values if name != baseline]
    between_others = [_compare(pair, samples, reasons, noise) for pair in others]
    found, level = [], ALPHA / families
    if noise.pooled is not None and to_baseline:
        found += _dunnett_family(to_baseline, noise, level)
    else:
        found += _holm_family(to_baseline, noise, level)
    return _in_both_directions([*found, *_holm_family(between_others, noise, level)], families)


def compare_shares(
    baseline: str, counts: Mapping[str, tuple[int, int]], others: Sequence[Pair] = (), families: int = 1
) -> dict[Pair, Comparison]:
    """Returns the comparisons of `compare_each` for success rates, by Fisher's exact test with Holm's correction.

    counts: variant -> (runs that succeed, runs).
    """
    found = []
    for pairs in ([(name, baseline) for name in counts if name != baseline], others):
        tables = [[[good, runs - good] for good, runs in (counts[name] for name in pair)] for pair in pairs]
        p = [float(stats.fisher_exact(table).pvalue) for table in tables]  # 1 where a variant has no run
        for pair, table, alone, corrected in zip(pairs, tables, p, holm(p), strict=True):
            if all(map(sum, table)):
                first, second = (good / (good + bad) for good, bad in table)
                found.append(Comparison(*pair, first - second, p=alone, corrected=corrected, test="Fisher, Holm"))
            else:
                found.append(Comparison(*pair, reason="no runs"))
    return _in_both_directions(found, families)


def better_than_floor(values: Mapping[str, Values], floor: float | Values, better: str) -> set[str]:
    """Returns the variants whose mean is beyond a floor by a one-sided t test at the level ALPHA / len(values).

    The variance is pooled over variants as in `compare_each`. A mean without a spread, or of fewer than MIN_SEEDS
    seeds, has no test and is beyond the floor if it is on the better side.

    Args:
      floor: a number, or the values of runs over seeds, which are a sample like those of the variants.
      better: "higher" or "lower".
    """
    samples = {name: numbers for name, of in values.items() if (numbers := _array(of)).size}
    runs = np.array([floor]) if isinstance(floor, int | float) else _array(floor)
    tested = {name: numbers for name, numbers in samples.items() if numbers.size >= MIN_SEEDS}
    noise, is_better = _noise(tested | ({_FLOOR: runs} if runs.size >= MIN_SEEDS else {})), set()
    for name, numbers in samples.items():
        gain = float(numbers.mean() - runs.mean()) * (1 if better == "higher" else -1)
        error, freedom = 0.0, math.inf
        if name in tested and (runs.size == 1 or _FLOOR in noise.counts):
            error, freedom = noise.of((name,) if runs.size == 1 else (name, _FLOOR))
        if gain > 0 and (not error or stats.t.sf(gain / error, freedom) < ALPHA / len(values)):
            is_better.add(name)
    return is_better


def dunnett(t: float, loadings: Sequence[float], freedom: int) -> float:
    """Returns the probability that one of several t statistics against one baseline is beyond +-t, if none differs.

    `scipy.stats.dunnett` draws random numbers for it; here it is a quadrature, so equal results give equal reports.

    loadings: of each variant, sqrt(n / (n + n of the baseline)) for n seeds. The correlation of two statistics is the
      product of their loadings.
    """
    limits_Q = t * np.sqrt(special.chdtri(freedom, 1 - _QUANTILES) / freedom)
    inside_QxZ = np.ones((len(limits_Q), len(_NORMALS)))
    for loading, count in collections.Counter(loadings).items():
        shift_Z, scale = loading * _NORMALS, math.sqrt(1 - loading**2)
        upper, lower = ((sign * limits_Q[:, None] - shift_Z) / scale for sign in (1, -1))
        inside_QxZ *= (special.ndtr(upper) - special.ndtr(lower)) ** count
    return float(np.clip(_QUANTILE_WEIGHTS @ (1 - inside_QxZ) @ _NORMAL_WEIGHTS, 0.0, 1.0))


def holm(p: Sequence[float]) -> list[float]:
    """Returns the p values corrected by Holm's step-down procedure (Holm 1979), in the order given.

    The chance that any true null hypothesis is rejected stays below the level, whatever the dependence of the tests.
    """
    order, corrected = np.argsort(p, kind="stable"), np.ones(len(p))
    corrected[order] = np.maximum.accumulate(np.minimum(np.arange(len(p), 0, -1) * np.asarray(p)[order], 1.0))
    return corrected.tolist()


@functools.lru_cache
def smallest_detectable(critical: float, freedom: float) -> float:
    """Returns the true difference that a t test finds with probability POWER, in standard errors of the difference.

    critical: the absolute t beyond which the test finds it.
    """
    largest = critical * math.sqrt(stats.chi2.isf(0.01, freedom) / freedom) + 3
    return float(optimize.brentq(lambda shift: power(shift, critical, freedom) - POWER, 0.0, largest))


def power(shift: float, critical: float, freedom: float) -> float:
    """Returns the probability that a noncentral t variable is beyond `critical` or -`critical`.

    A quadrature over the sample's variance, because scipy.stats.nct is NaN for large `shift`, which few seeds and many
    tests need. shift: the noncentrality.
    """
    limits = critical * np.sqrt(special.chdtri(freedom, 1 - _QUANTILES) / freedom)
    return float(_QUANTILE_WEIGHTS @ (special.ndtr(shift - limits) + special.ndtr(-limits - shift)))


def _noise(samples: Mapping[str, np.ndarray]) -> _Noise:
    """Returns the noise of the variants that are tested."""
    counts = {name: numbers.size for name, numbers in samples.items()}
    variances = {name: _variance(numbers) for name, numbers in samples.items()}
    is_similar = len(samples) > 1 and all(variances.values())
    if is_similar:  # p is NaN for equal variances
        is_similar = not stats.bartlett(*samples.values()).pvalue < _POOLING_LEVEL
    squares, freedom = sum((counts[name] - 1) * variances[name] for name in samples), sum(counts.values()) - len(counts)
    return _Noise(counts, variances, squares / freedom if is_similar else None)


def _compare(pair: Pair, samples: Mapping[str, np.ndarray], reasons: Mapping[str, str], noise: _Noise) -> Comparison:
    """Returns the t test of one pair, not corrected."""
    a, b = (samples[name] for name in pair)
    found = Comparison(*pair, mean=float(a.mean() - b.mean()) if a.size and b.size else None)
    if untested := [name for name in pair if name in reasons]:
        return dataclasses.replace(found, reason=reasons[untested[0]])
    error, freedom = noise.of(pair)
    if not error:
        return dataclasses.replace(found, reason="no spread between seeds")
    assert found.mean is not None  # MIN_SEEDS
    half = error * float(special.stdtrit(freedom, (1 + LEVEL) / 2))  # scipy.stats.t is slower by far
    p = float(2 * special.stdtr(freedom, -abs(found.mean) / error))
    return dataclasses.replace(found, low=found.mean - half, high=found.mean + half, p=p)


def _in_both_directions(comparisons: Sequence[Comparison], families: int) -> dict[Pair, Comparison]:
    """Returns (first, second) -> comparison, corrected for the number of families too."""
    found = {}
    for one in comparisons:
        if one.corrected is not None:
            one = dataclasses.replace(one, corrected=min(1.0, families * one.corrected))
        found[one.first, one.second], found[one.second, one.first] = one, one.reversed
    return found


def _dunnett_family(comparisons: Sequence[Comparison], noise: _Noise, level: float) -> list[Comparison]:
    """Returns comparisons with one baseline with Dunnett's p, as `corrected`."""
    seeds = noise.counts.get(comparisons[0].second, MIN_SEEDS)
    counts = [noise.counts.get(comparison.first, seeds) for comparison in comparisons]  # also of those without a test
    loadings, found = tuple(math.sqrt(count / (count + seeds)) for count in counts), []
    for one in comparisons:
        if one.p is not None and one.mean is not None:
            error, freedom = noise.of((one.first, one.second))
            corrected = one.p  # of one pair, a t test
            if len(loadings) > 1:
                corrected = max(one.p, dunnett(abs(one.mean) / error, loadings, int(freedom)))
            size = error * smallest_detectable(_dunnett_critical(level, loadings, int(freedom)), freedom)
            one = dataclasses.replace(one, corrected=corrected, detectable=size, test="Dunnett, one variance")
        found.append(one)
    return found


def _holm_family(comparisons: Sequence[Comparison], noise: _Noise, level: float) -> list[Comparison]:
    """Returns comparisons with Holm's p, as `corrected`. What they detect is that of Holm's strictest step."""
    name = "Welch, Holm" if noise.pooled is None else "t with one variance, Holm"
    found = []
    for one, corrected in zip(comparisons, holm([1.0 if c.p is None else c.p for c in comparisons]), strict=True):
        if one.p is not None:
            error, freedom = noise.of((one.first, one.second))
            critical = -float(special.stdtrit(freedom, level / len(comparisons) / 2))
            size = error * smallest_detectable(critical, freedom)
            one = dataclasses.replace(one, corrected=corrected, detectable=size, test=name)
        found.append(one)
    return found


@functools.lru_cache
def _dunnett_critical(level: float, loadings: tuple[float, ...], freedom: int) -> float:
    """Returns the t beyond which Dunnett's p is below `level`."""
    alone, all_alone = (float(stats.t.isf(share / 2, freedom)) for share in (level, level / len(loadings)))
    if len(loadings) == 1:
        return alone
    return float(optimize.brentq(lambda t: dunnett(t, loadings, freedom) - level, 0.99 * alone, 1.01 * all_alone))


def _array(values: Values) -> np.ndarray:
    return np.array(list(values.values()), np.float64)


def _variance(numbers: np.ndarray) -> float:
    """Returns the variance of a sample; 0 for one value and for values that are equal up to rounding."""
    if numbers.size < 2 or np.ptp(numbers) <= _RESOLUTION * np.abs(numbers).max():
        return 0.0
    return float(numbers.var(ddof=1))
