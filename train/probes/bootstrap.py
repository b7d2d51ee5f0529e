"""Bootstrap intervals (Efron 1987, "Better Bootstrap Confidence Intervals"): the spread from the choice of the text.

Documents, or pairs, are drawn with replacement, and the statistic is computed again for each draw. The intervals are
BCa: bias-corrected and accelerated, with the acceleration from the statistic's influence values.
"""

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
    return _bca(estimate, resampled[:, 0] / resampled[:, 1], sums[:, 0] - estimate * sums[:, 1])


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
    return _bca(float(values.mean()), resampled / len(values), influence)


def _bca(estimate: float, resampled: np.ndarray, influence: np.ndarray) -> Interval:
    """The BCa interval of a statistic from its resampled values, and from each datum's influence on the statistic."""
    spread = (influence**2).sum()
    if spread == 0 or resampled.min() == resampled.max():
        return Interval(estimate, estimate)
    normal = NormalDist()
    # A resampled value that is equal to the estimate, up to rounding, counts as half below the estimate.
    is_equal = np.isclose(resampled, estimate, rtol=1e-12, atol=0)
    below = ((resampled < estimate) & ~is_equal).mean() + is_equal.mean() / 2
    bias = normal.inv_cdf(float(np.clip(below, 1 / len(resampled), 1 - 1 / len(resampled))))
    acceleration = (influence**3).sum() / (6 * spread**1.5)
    levels = []
    for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2):
        z = bias + normal.inv_cdf(tail)
        levels.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(resampled, levels)
    return Interval(float(low), float(high))
