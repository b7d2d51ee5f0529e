"""BART's text infilling (Lewis et al. 2020, section 2.2; fairseq DenoisingDataset.add_whole_word_mask), vectorised."""

import math
from typing import NamedTuple

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, compact

_LEAST_PROBABILITY = 1e-7  # longer spans than this are as good as never drawn


def poisson_law(rate: float) -> np.ndarray:
    """float64 [K]: the probability of a length of at most k under Poisson(rate), cut where a length has less than 1e-7.

    fairseq stops at the first length so rare, which for rates above 16 is length 0; here only the tail is cut.
    """
    law = [math.exp(-rate)]
    while len(law) <= rate or law[-1] >= _LEAST_PROBABILITY:
        law.append(law[-1] * rate / len(law))
    return np.cumsum(law) / np.sum(law)


def span_lengths(keys: np.ndarray, budgets: np.ndarray, rate: float) -> tuple[Sequences, np.ndarray]:
    """Lengths of spans drawn from Poisson(rate) until they add up to budgets[e], int [E]; the last is cut to fit.

    Returns the lengths above zero, in the order of drawing (tokens of the result), and how many zeros there were, int64
    [E]. A budget of 0 draws nothing.
    """
    law, width = poisson_law(rate), 8
    most = int(budgets.max(initial=0))
    if most:
        width += math.ceil((most + 4 * math.sqrt(most * (1 + rate))) / rate)
    while True:
        lengths = np.searchsorted(law, rng.uniform(keys, width), side="right")
        reached = np.cumsum(lengths, axis=1)
        if (reached[:, -1] >= budgets).all():
            break
        width *= 2  # the draws so far stay what they were
    before = reached - lengths
    drawn = before < budgets[:, None]
    zeros = (drawn & (lengths == 0)).sum(axis=1)
    return compact(np.minimum(lengths, budgets[:, None] - before), drawn & (lengths > 0)), zeros


class Cover(NamedTuple):
    """What spans cover: bool [E, W] each."""

    heads: np.ndarray  # the first token of each run: of a span, or of several that overlap
    tails: np.ndarray  # the other tokens covered


def cover(keys: np.ndarray, spans: Sequences, lengths: np.ndarray, width: int) -> Cover:
    """Spans of the lengths in `spans` laid at random on examples of `lengths`, int [E].

    Their starts are distinct positions, every set as likely. A span is cut at its example's end. One that starts inside
    another is part of it, so that slightly less is covered than the lengths add up to; spans that touch stay two.
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
    """The share of a long text that `cover` covers with spans of Poisson(rate) that add up to the share `budget` of it.

    A token stays clear where no span starts on it, none longer than one token on the token before it, and so on.
    """
    longer = 1 - poisson_law(rate)  # the share of spans that are longer than 0, 1, 2, ... tokens
    return float(1 - np.prod(1 - budget / rate * longer))


def insert(keys: np.ndarray, sequences: Sequences, tokens: np.ndarray, counts: np.ndarray) -> Sequences:
    """Each sequence with the first counts[e] of tokens[e] put in, in order, at random places, every set as likely.

    tokens: int32 [E, N]; counts: int [E], at most N.
    """
    lengths = sequences.lengths + counts
    valid = valid_positions(lengths, max(int(lengths.max(initial=0)), 1))
    inserted = rng.choose_mask(keys, valid, counts)
    out = np.zeros(valid.shape, np.int32)
    out[inserted] = tokens[valid_positions(counts, tokens.shape[1])]
    out[valid & ~inserted] = sequences.tokens[valid_positions(sequences.lengths, sequences.tokens.shape[1])]
    return Sequences(out, lengths)
