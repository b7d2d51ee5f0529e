"""Distributions of the lengths of noise spans, and draws from them. NumPy, vectorized over examples.

The lengths of an example's spans are independent draws whose sum is the example's number of noise tokens, because the
last one is cut. The number of spans thus varies, up to `most_spans`.
"""

import functools
import math
from typing import Literal

import numpy as np

from contract import rng

_LEAST_PROBABILITY = 1e-7  # less likely lengths at the end of a distribution are never drawn

Distribution = Literal["fixed", "geometric", "normal", "uniform"]


@functools.cache
def probabilities(distribution: Distribution, mean: float) -> np.ndarray:
    """float64 [K]: the probabilities of span lengths 1, ..., K, with the given mean, 1 or more tokens.

    fixed: the mean.
    geometric: P(n) proportional to (1 - 1 / mean)^n; the tail of less than 1e-7 is cut.
    uniform: 1, ..., 2 mean - 1, all equally likely.
    normal: proportional to a normal density around the mean with a standard deviation of mean / 3, at the lengths
      1, ..., 2 mean - 1. The standard deviation is a choice of this codebase: the UL2 paper does not give one.

    Between the means for which these definitions give whole lengths, which are whole numbers ("fixed") or multiples of
    0.5 ("uniform", "normal"), the distribution is the mixture of its neighbours that has the mean.
    """
    if distribution == "geometric":
        if mean == 1:
            return np.ones(1)
        lengths = np.arange(math.ceil(math.log(_LEAST_PROBABILITY) / math.log1p(-1 / mean)))
        weights = (1 - 1 / mean) ** lengths
        return weights / weights.sum()
    shape = {"fixed": _fixed, "uniform": _uniform, "normal": _normal}[distribution]
    step = 1 if distribution == "fixed" else 0.5  # between the means of neighbouring distributions
    lower = math.floor(mean / step) * step
    upper_share = (mean - lower) / step
    result = np.zeros(len(shape(lower + step)))
    result[: len(shape(lower))] = (1 - upper_share) * shape(lower)
    if upper_share:
        result += upper_share * shape(lower + step)
    return np.trim_zeros(result, "b")


def _fixed(mean: float) -> np.ndarray:
    return np.arange(1, round(mean) + 1) == round(mean)


def _uniform(mean: float) -> np.ndarray:
    longest = round(2 * mean - 1)
    return np.full(longest, 1 / longest)


def _normal(mean: float) -> np.ndarray:
    weights = np.exp(-0.5 * (3 / mean * (np.arange(1, round(2 * mean)) - mean)) ** 2)
    return weights / weights.sum()


def most_spans(noise: np.ndarray, distribution: Distribution, mean: float) -> np.ndarray:
    """An upper bound, int64, of the number of spans of `noise` tokens, int, same shape; at most `noise` itself.

    The bound is the expected number plus 3 and five standard deviations, or the number of spans of the least length if
    that is less. It grows with `noise`. A draw needs more spans with a probability below 1e-4; `draw_span_ends` then
    makes the last span longer.
    """
    shares = probabilities(distribution, mean)
    lengths = np.arange(1, len(shares) + 1)
    variance = shares @ (lengths - mean) ** 2
    noise = np.asarray(noise, np.int64)
    expected = noise / mean
    likely = np.ceil(expected + 5 * np.sqrt(expected * variance) / mean + 3).astype(np.int64)
    return np.minimum(likely, -(-noise // (1 + int(np.argmax(shares > 0)))))


def draw_lengths(keys: np.ndarray, cdf: np.ndarray, num: int) -> np.ndarray:
    """Independent draws from a distribution of whole numbers: int64 [E, num], 0-based indices into `cdf`.

    keys: uint64 [E]. cdf: float64 [K], the cumulative distribution function, whose last entry is 1. A wider draw begins
    with the same numbers.
    """
    return np.minimum(np.searchsorted(cdf, rng.uniform(keys, num), side="right"), len(cdf) - 1)


def draw_span_ends(
    keys: np.ndarray, noise: np.ndarray, spans: np.ndarray, distribution: Distribution, mean: float
) -> tuple[np.ndarray, np.ndarray]:
    """Splits noise[e] tokens into at most spans[e] spans, of lengths from `distribution`; the last is cut to fit.

    Returns the cumulative sum of the lengths, int64 [E, n], padded with noise[e], and the number of spans, int64 [E].
    If the first spans[e] lengths sum to less than noise[e], the last span is longer than its draw.

    keys: uint64 [E]. noise, spans: int [E], 1 <= spans <= noise.
    """
    cdf = np.cumsum(probabilities(distribution, mean))
    ends = np.cumsum(draw_lengths(keys, cdf, int(spans.max())) + 1, axis=1)
    is_last = np.arange(ends.shape[1]) >= spans[:, None] - 1
    ends = np.where(is_last, noise[:, None], np.minimum(ends, noise[:, None]))
    counts = (ends < noise[:, None]).sum(axis=1) + 1
    return ends[:, : counts.max()], counts
