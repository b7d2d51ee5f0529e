"""BART's text infilling (Lewis et al. 2020, section 2.2; fairseq DenoisingDataset.add_whole_word_mask), vectorized."""

import math
from typing import NamedTuple

import numpy as np

from contract import rng
from objectives.algebra.noise import draw_lengths, valid_positions
from objectives.algebra.sequences import Sequences, compact

_LEAST_PROBABILITY = 1e-7  # less likely span lengths are never drawn


def poisson_cdf(rate: float) -> np.ndarray:
    """float64 [K]: the cumulative distribution function of Poisson(rate) at 0, ..., K - 1; the last entry is 1.

    The upper tail, of lengths less likely than 1e-7, is cut. Deviation: fairseq stops at the first length that is less
    likely than 1e-7, which is length 0 for rates above 16.
    """
    probabilities = [math.exp(-rate)]
    while len(probabilities) <= rate or probabilities[-1] >= _LEAST_PROBABILITY:
        probabilities.append(probabilities[-1] * rate / len(probabilities))
    return np.cumsum(probabilities) / np.sum(probabilities)


def span_lengths(keys: np.ndarray, budgets: np.ndarray, rate: float) -> tuple[Sequences, np.ndarray]:
    """Draws span lengths from Poisson(rate) until their sum is budgets[e], int [E]; the last length is cut to fit.

    Returns the positive lengths, in the order of drawing, as the tokens of `Sequences`, and the number of zero lengths,
    int64 [E]. A budget of 0 draws nothing.
    """
    cdf, width = poisson_cdf(rate), 8
    most = int(budgets.max(initial=0))
    if most:
        width += math.ceil((most + 4 * math.sqrt(most * (1 + rate))) / rate)
    while True:
        lengths = draw_lengths(keys, cdf, width)
        reached = np.cumsum(lengths, axis=1)
        if (reached[:, -1] >= budgets).all():
            break
        width *= 2  # a wider draw begins with the same numbers
    before = reached - lengths
    drawn = before < budgets[:, None]
    zeros = (drawn & (lengths == 0)).sum(axis=1)
    return compact(np.minimum(lengths, budgets[:, None] - before), drawn & (lengths > 0)), zeros


class Cover(NamedTuple):
    """The tokens that spans cover, bool [E, W] each. Overlapping spans form one run."""

    heads: np.ndarray  # the first token of each run
    tails: np.ndarray  # the other tokens of each run


def cover(keys: np.ndarray, spans: Sequences, lengths: np.ndarray, width: int) -> Cover:
    """Places spans at random in examples: bool [E, width] in each field of `Cover`.

    The starts are distinct positions, every set equally likely. A span is cut at its example's end. A span that starts
    inside another span merges with it, so spans cover slightly fewer tokens than the sum of their lengths. Adjacent
    spans do not merge.

    Args:
      keys: uint64 [E].
      spans: the span lengths of each example, in place of tokens.
      lengths: int [E], the lengths of the examples.
      width: positions of an example.
    """
    starts = rng.draw(keys, valid_positions(lengths, width), spans.lengths)
    stops = np.zeros((len(starts), width + 1), np.int64)
    np.put_along_axis(stops, starts, starts + spans.tokens, axis=1)
    heads = stops[:, :width] > 0
    reach = np.maximum.accumulate(stops[:, :width], axis=1)
    tails = np.zeros_like(heads)
    tails[:, 1:] = np.arange(1, width) < reach[:, :-1]
    tails &= valid_positions(lengths, width)
    return Cover(heads & ~tails, tails)


def covered_share(budget: float, rate: float) -> float:
    """The share of a long text that `cover` covers with Poisson(rate) spans of total length `budget`, also a share.

    A token is not covered if no span starts at the token, no span longer than one token starts one token before, no
    span longer than two tokens starts two tokens before, and so on.
    """
    longer = 1 - poisson_cdf(rate)  # shares of the spans that are longer than 0, 1, 2, ... tokens
    return float(1 - np.prod(1 - budget / rate * longer))


def insert(keys: np.ndarray, sequences: Sequences, tokens: np.ndarray, counts: np.ndarray) -> Sequences:
    """The sequences with the first counts[e] tokens of tokens[e] inserted, in order, at random places.

    Every set of places is equally likely. tokens: int32 [E, N]; counts: int [E], at most N.
    """
    lengths = sequences.lengths + counts
    valid = valid_positions(lengths, max(int(lengths.max(initial=0)), 1))
    inserted = rng.choose_mask(keys, valid, counts)
    out = np.zeros(valid.shape, np.int32)
    out[inserted] = tokens[valid_positions(counts, tokens.shape[1])]
    out[valid & ~inserted] = sequences.tokens[valid_positions(sequences.lengths, sequences.tokens.shape[1])]
    return Sequences(out, lengths)
