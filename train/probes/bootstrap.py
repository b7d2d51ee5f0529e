"""Bootstrap intervals (Efron 1987, "Better Bootstrap Confidence Intervals"): the spread from the choice of the text.

Documents, or pairs, are drawn with replacement, and the statistic is computed again for each draw. The intervals are
BCa: bias-corrected and accelerated, with the acceleration from the statistic's influence values. Their tails are
expanded for small data (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"): with 20 documents plain BCa
intervals of a ratio cover 92% where they promise 95%, and expanded ones 94%.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
SEED = 0
_CHUNK = 1 << 22  # counts in memory at the same time


class Interval(NamedTuple):
    """A confidence interval with the level CONFIDENCE."""

    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The interval of the statistic times `factor`, above 0."""
        return Interval(self.low * factor, self.high * factor)


def ratio_interval(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """The interval of sum(numerators) / sum(denominators), over documents; None for fewer than two documents.

    numerators, denominators: float [n], such as each document's nats and bytes. Denominators are above 0.
    """
    n = len(numerators)
    if n < 2:
        return None
    rng = np.random.default_rng(SEED)
    sums = np.stack([numerators, denominators], axis=1).astype(np.float64)
    step = max(_CHUNK // n, 1)
    chunks = []
    for first in range(0, NUM_RESAMPLES, step):
        drawn = rng.integers(0, n, (min(step, NUM_RESAMPLES - first), n))
        chunks.append(sums[drawn].sum(axis=1))
    resampled = np.concatenate(chunks)
    estimate = sums[:, 0].sum() / sums[:, 1].sum()
    return _bca(estimate, resampled[:, 0] / resampled[:, 1], sums[:, 0] - estimate * sums[:, 1], n - 1)


def mean_interval(values: np.ndarray, strata: np.ndarray) -> Interval | None:
    """The interval of the mean of `values`, over pairs; None for fewer than two pairs.

    Pairs are drawn within their stratum, so that each draw has as many pairs of each stratum as the data.

    Args:
      values: float [n] with few different values, such as 0, 0.5 and 1.
      strata: int [n].
    """
    if len(values) < 2:
        return None
    rng = np.random.default_rng(SEED)
    influence, resampled = np.empty(len(values)), np.zeros(NUM_RESAMPLES)
    for stratum in np.unique(strata):
        inside = strata == stratum
        own = values[inside]
        influence[inside] = own - own.mean()
        # Draws of values with replacement are multinomial counts of the different values.
        distinct, counts = np.unique(own, return_counts=True)
        resampled += rng.multinomial(len(own), counts / len(own), NUM_RESAMPLES) @ distinct
    freedom = max(len(values) - len(np.unique(strata)), 1)
    return _bca(float(values.mean()), resampled / len(values), influence, freedom)


def _bca(estimate: float, resampled: np.ndarray, influence: np.ndarray, freedom: int) -> Interval:
    """The expanded BCa interval of a statistic.

    Args:
      estimate: the statistic.
      resampled: float [r], its values for draws of the data.
      influence: float [n], proportional to each datum's influence on the statistic.
      freedom: degrees of freedom of the statistic's variance.
    """
    spread = (influence**2).sum()
    if spread == 0 or resampled.min() == resampled.max():
        return Interval(estimate, estimate)
    normal = NormalDist()
    # A resampled value that is equal to the estimate, up to rounding, counts as half below the estimate.
    is_equal = np.isclose(resampled, estimate, rtol=1e-12, atol=0)
    below = ((resampled < estimate) & ~is_equal).mean() + is_equal.mean() / 2
    bias = normal.inv_cdf(float(np.clip(below, 1 / len(resampled), 1 - 1 / len(resampled))))
    acceleration = (influence**3).sum() / (6 * spread**1.5)
    tail = math.sqrt((freedom + 1) / freedom) * _student_t(normal.inv_cdf((1 + CONFIDENCE) / 2), freedom)
    levels = [normal.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-tail, tail)]
    low, high = np.quantile(resampled, levels)
    return Interval(float(low), float(high))


def _student_t(z: float, freedom: int) -> float:
    """The quantile of Student's t at the level of the normal quantile `z` (Abramowitz & Stegun 26.7.5)."""
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return sum(term / freedom**k for k, term in enumerate(terms))
