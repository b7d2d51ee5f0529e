"""Noise masks: which tokens of each raw example are corrupted. NumPy, vectorized over examples."""

import functools
import math
from typing import Literal

import numpy as np

from contract import rng

Distribution = Literal["fixed", "geometric", "normal", "poisson", "uniform"]  # of the lengths of noise spans
SpanLengthDistribution = Literal["composition", Distribution]

_LEAST_PROBABILITY = 1e-7  # less likely lengths at the end of a distribution are never drawn


def valid_positions(lengths: np.ndarray, width: int) -> np.ndarray:
    """bool [E, width]: True at the positions before lengths[e], int [E]."""
    dtype = np.int16 if width < 1 << 15 else np.int32  # half of the bytes to compare take half of the time
    return np.arange(width, dtype=dtype) < np.minimum(lengths, width).astype(dtype)[:, None]


def count_by_row(places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """int64 [E]: how many of `places` are in each row of an array of `shape`, [E, W].

    places: int [n], ascending indices into the flat array, as np.flatnonzero returns. The sum of a mask reads all E W
    positions and takes three times as long.
    """
    num_rows, width = shape
    counts = places.searchsorted(np.arange(1, num_rows + 1) * width)  # in this row and in those before
    counts[1:] -= counts[:-1].copy()
    return counts


def take(array: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """array[e, columns[e, i]] for array [E, W] and columns int [E, n]: a `np.take_along_axis` three times as fast."""
    return array.ravel().take(columns + (np.arange(len(array)) * array.shape[1])[:, None])


def random_column(keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """int64 [E]: a column of each row, drawn uniformly where `allowed`, bool [E, W]; -1 if no column is allowed."""
    counts = allowed.sum(axis=1)
    columns = np.append(np.flatnonzero(allowed) % allowed.shape[1], 0)
    nth = rng.integers(keys, 0, np.maximum(counts - 1, 0))
    return np.where(counts > 0, columns[np.cumsum(counts) - counts + nth], -1)


def span_counts(
    lengths: np.ndarray, noise_density: float, mean_noise_span_length: float
) -> tuple[np.ndarray, np.ndarray]:
    """The number of noise tokens and of noise spans in T5's `random_spans_noise_mask`: int64 [E], int64 [E].

    Rounding is T5's: half to even, in float32, counts of at least one; lengths below 2 count as 2. Deviation: there are
    at most as many spans as non-noise tokens. With more spans, as at density .9 and a mean length of 1, T5 fails.
    """
    lengths = np.maximum(np.asarray(lengths), 2)
    noise = np.rint(lengths.astype(np.float32) * np.float32(noise_density)).astype(np.int64)
    noise = np.clip(noise, 1, lengths - 1)
    spans = np.rint(noise.astype(np.float32) / np.float32(mean_noise_span_length)).astype(np.int64)
    return noise, np.minimum(np.maximum(spans, 1), np.minimum(noise, lengths - noise))


def span_bounds(
    lengths: np.ndarray, noise_density: float, mean_noise_span_length: float, distribution: SpanLengthDistribution
) -> tuple[np.ndarray, np.ndarray]:
    """The number of noise tokens, and the most noise spans, of `random_spans_noise_mask`: int64 [E], int64 [E].

    The number of noise tokens is that of `span_counts` for every distribution of span lengths. "composition" always has
    as many spans as the bound.
    """
    noise, spans = span_counts(lengths, noise_density, mean_noise_span_length)
    if distribution != "composition":
        clean = np.maximum(np.asarray(lengths), 2) - noise
        spans = np.minimum(most_spans(noise, distribution, mean_noise_span_length), clean)
    return noise, spans


def compositions(keys: np.ndarray, totals: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Splits totals[e] into parts[e] positive integers, every composition equally likely.

    Returns the cumulative sum of the parts, int64 [E, max(parts)], padded with totals[e]. totals and parts: int [E],
    1 <= parts <= totals.
    """
    width = int(totals.max()) - 1
    ends = np.empty((len(totals), int(parts.max())), np.int64)
    ends[:, :-1] = rng.choose(keys, valid_positions(totals - 1, width), parts - 1) + 1
    ends[:, -1] = width + 1
    return np.minimum(ends, totals[:, None])


def random_spans_noise_mask(
    keys: np.ndarray,
    lengths: np.ndarray,
    width: int,
    *,
    noise_density: float,
    mean_noise_span_length: float,
    random_roll: bool = False,
    distribution: SpanLengthDistribution = "composition",
) -> np.ndarray:
    """T5's span noise (t5/data/preprocessors.py, `random_spans_noise_mask`): bool [E, width], False after each example.

    Non-noise and noise spans alternate, non-noise first, so position 0 is never noise and the last position always is.
    `random_roll` rotates each example's mask by a uniform offset, so that every position is equally likely to be noise;
    a span that wraps around then counts as two. An example of length 1 has no noise.

    distribution: of the lengths of noise spans. "composition" is T5's: the number of spans is that of `span_counts`,
    and every composition of the noise tokens into so many lengths is equally likely. For the others, lengths are drawn
    one by one until they sum to the number of noise tokens, and the last is cut (`draw_span_ends`);
    an example has at most as many spans as non-noise tokens. The lengths of non-noise spans are always a composition.
    """
    noise, spans = span_bounds(lengths, noise_density, mean_noise_span_length, distribution)
    working_lengths = np.maximum(lengths, 2)
    if distribution == "composition":
        noise_ends = compositions(rng.fold_in(keys, 0), noise, spans)
    else:
        noise_ends, spans = draw_span_ends(rng.fold_in(keys, 0), noise, spans, distribution, mean_noise_span_length)
    clean_ends = compositions(rng.fold_in(keys, 1), working_lengths - noise, spans)
    noise_begins = clean_ends.copy()
    noise_begins[:, 1:] += noise_ends[:, :-1]
    toggles = np.zeros((len(keys), width + 2), bool)  # the last two columns collect what exceeds the width
    row = (np.arange(len(keys)) * (width + 2))[:, None]
    for begins in (noise_begins, clean_ends + noise_ends):
        toggles.ravel()[np.minimum(begins, width + 1) + row] = True
    mask = (toggles[:, :width].cumsum(axis=1, dtype=np.int32) & 1).astype(bool)
    mask[working_lengths > lengths] = False
    if random_roll:
        offsets = rng.integers(rng.fold_in(keys, 2), 0, lengths - 1)[:, None]
        source = np.arange(width) - offsets
        source += np.where(source < 0, lengths[:, None], 0)
        mask = take(mask, source) & valid_positions(lengths, width)
    return mask


def iid_counts(lengths: np.ndarray, noise_density: float) -> tuple[np.ndarray, np.ndarray]:
    """The fewest and the most noise tokens of `iid_noise_mask`: int64 [E] each, equal or one apart."""
    expected = np.asarray(lengths) * noise_density
    return np.floor(expected).astype(np.int64), np.ceil(expected).astype(np.int64)


def iid_noise_mask(keys: np.ndarray, lengths: np.ndarray, width: int, *, noise_density: float) -> np.ndarray:
    """Noise without spans: bool [E, width], False after each example. Every token is noise with equal probability.

    The probability is `noise_density`, as in T5's `iid_noise_mask`. Deviation: T5 draws each token independently. The
    number of noise tokens then varies (76.7 +- 8.1 of 511 at density .15) without a useful bound, and T5 cuts what does
    not fit a row. Here the number is the expected number, randomly rounded up or down so that the mean is exact, and
    all sets of that many tokens are equally likely. In exchange, tokens are correlated by -1/(L - 1).
    """
    expected = np.asarray(lengths) * noise_density
    least, most = iid_counts(lengths, noise_density)
    counts = np.where(rng.uniform(rng.fold_in(keys, 0), 1)[:, 0] < expected - least, most, least)
    return rng.choose_mask(rng.fold_in(keys, 1), valid_positions(lengths, width), counts)


@functools.cache
def probabilities(distribution: Distribution, mean: float) -> np.ndarray:
    """float64 [K]: the probabilities of span lengths 1, ..., K, with the given mean, 1 or more tokens.

    fixed: the mean.
    geometric: P(n) proportional to (1 - 1 / mean)^n; the tail of less than 1e-7 is cut.
    poisson: a Poisson law without the length 0; the tail of lengths less likely than 1e-7 is cut.
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
    if distribution == "poisson":
        return _poisson(mean)
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


def _poisson(mean: float) -> np.ndarray:
    rate = mean - 1  # of the law with the length 0; the fixed point below is above it
    for _ in range(200):
        rate = mean * -math.expm1(-rate)
    weights = [1.0]  # proportional to the probabilities of 1, 2, ...
    while len(weights) < rate or weights[-1] > _LEAST_PROBABILITY * sum(weights):
        weights.append(weights[-1] * rate / (len(weights) + 1))
    return np.asarray(weights[:-1]) / sum(weights[:-1])


def _normal(mean: float) -> np.ndarray:
    weights = np.exp(-0.5 * (3 / mean * (np.arange(1, round(2 * mean)) - mean)) ** 2)
    return weights / weights.sum()


def most_spans(noise: np.ndarray, distribution: Distribution, mean: float) -> np.ndarray:
    """An upper bound, int64, of the number of spans of `noise` tokens, int, same shape; at most `noise` itself.

    The bound is the expected number plus 3 and five standard deviations, or the number of spans of the least length if
    that is less; both grow with `noise`. A draw needs more spans with a probability below 1e-4; `draw_span_ends` then
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
