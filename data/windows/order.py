"""The order of windows: which window of which reader is window i of the run, for any i, without computing those before.

A reader is a stream of windows: those of one denoiser, or of one denoiser and window length (data/windows/batches.py).

grain's `MapDataset.mix` and `shuffle` do the same for one example at a time, in 17 to 25 us per example, or 400 us if
there are only 100 windows, because grain's index_shuffle walks cycles in a domain of at least 65536. Here a whole batch
is drawn at once, in less than 1 us per example, and the order does not depend on grain's version.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.rng import GOLDEN, mix64, seed_bits
from contract.windows import Ramp

_BLOCKS = 1000  # blocks of constant weights that approximate a ramp
_ROUNDS = 6  # of the Feistel network


class Drawn(NamedTuple):
    """n windows, in the order in which they were requested."""

    reader_ids: np.ndarray  # int32 [n]
    epochs: np.ndarray  # int64 [n], the reader's epoch, from 0
    indices: np.ndarray  # int64 [n], the number of the window in the reader's epoch
    key_numbers: np.ndarray  # int64 [n], the windows' numbers from which the examples' keys are derived


class DrawOrder:
    """Draws from several readers by weight, evenly spaced; from each reader, every window once an epoch.

    A reader's expected draws by example i are the sum of its shares over the examples before i. Its n-th draw,
    n = 0, 1, ..., is due where that sum passes n + 1/2. Example i is the i-th draw of all readers in the order in which
    draws are due; of draws that are due at the same time, the one with the lowest reader id is first. The number of a
    reader's draws in any consecutive examples therefore differs from the sum of its shares by at most the number of
    readers, for constant and for changing weights.
    """

    def __init__(
        self, lengths: Sequence[int], weights: Sequence[float], *, seed: int, ramps: Sequence[Ramp | None] = ()
    ):
        """
        Args:
          lengths: the number of windows of each reader, at least 1.
          weights: the readers' shares of the examples, in any unit. A reader of weight 0 is never drawn.
          seed: any int.
          ramps: how each reader's weight changes, None if it does not; () if no weight changes. A ramp is approximated
            by at most 1000 steps of equal length, each with the ramp's weight in the middle of the step.

        Raises ConfigError where weights are negative or not finite, or where all are 0 at the same time.
        """
        self._starts, shares = _blocks(weights, ramps or (None,) * len(weights))
        totals = shares.sum(axis=1, keepdims=True)
        if not (np.isfinite(totals).all() and totals.min() > 0 and shares.min() >= 0):
            raise ConfigError(f"the denoisers' weights {tuple(weights)} must be finite, not negative and not all 0")
        self._shares = shares / totals
        expected = np.cumsum(self._shares[:-1] * np.diff(self._starts)[:, None], axis=0)
        self._expected_at_start = np.concatenate([np.zeros((1, len(weights))), expected])
        self._epochs = _Epochs(lengths, seed=seed)

    def draw(self, examples: np.ndarray) -> Drawn:
        """The windows with these numbers in the run, int64 [n]."""
        # All examples between the first and the last are drawn. They are those of a batch, or of a few.
        first, last = int(examples.min()), int(examples.max())
        # Each of K readers is at most half a draw early or late, so the i-th draw is due within K/2 examples of i.
        slack = self._shares.shape[1] + 1
        begin, end = self._draws_before(max(first - slack, 0)), self._draws_before(last + slack)
        draws = [np.arange(*span) for span in zip(begin, end, strict=True)]
        due = np.concatenate([self._due(reader_id, nth) for reader_id, nth in enumerate(draws)])
        reader_ids = np.repeat(np.arange(len(draws)), end - begin)
        in_range = np.argsort(due, kind="stable")[first - begin.sum() :][: last - first + 1]
        reader_ids = reader_ids[in_range].astype(np.int32)[examples - first]
        nth = np.concatenate(draws)[in_range][examples - first]
        return Drawn(reader_ids, *self._epochs.windows(reader_ids, nth), examples)

    def _draws_before(self, example: int) -> np.ndarray:
        """int64 [K]: the number of draws of each reader that are due before an example."""
        block = np.searchsorted(self._starts, example, side="right") - 1
        expected = self._expected_at_start[block] + self._shares[block] * (example - self._starts[block])
        return np.maximum(np.ceil(expected - 0.5), 0).astype(np.int64)

    def _due(self, reader_id: int, nth: np.ndarray) -> np.ndarray:
        """float64 [n]: when draws `nth`, int64 [n], of one reader are due, as numbers of examples."""
        at_start, expected = self._expected_at_start[:, reader_id], nth + 0.5
        # A block where the reader has no share ends with the expected draws it begins with: side="right" skips it.
        block = np.searchsorted(at_start, expected, side="right") - 1
        return self._starts[block] + (expected - at_start[block]) / self._shares[block, reader_id]


class PlannedOrder:
    """Draws from several readers in a cycle that repeats; from each reader, every window once an epoch."""

    def __init__(self, lengths: Sequence[int], cycle: np.ndarray, *, seed: int):
        """
        Args:
          lengths: the number of windows of each reader, at least 1.
          cycle: int [n], the readers of examples 0..n-1 of the run, and of every n examples after them.
          seed: any int.
        """
        self._cycle = cycle.astype(np.int32)
        self._per_cycle = np.bincount(cycle, minlength=len(lengths))
        by_reader = np.argsort(cycle, kind="stable")
        first = np.cumsum(self._per_cycle) - self._per_cycle
        self._nth = np.empty(len(cycle), np.int64)  # which of its reader's examples in the cycle each example is
        self._nth[by_reader] = np.arange(len(cycle)) - first[cycle[by_reader]]
        self._epochs = _Epochs(lengths, seed=seed)

    def draw(self, examples: np.ndarray) -> Drawn:
        """The windows with these numbers in the run, int64 [n]."""
        cycles, place = np.divmod(examples, len(self._cycle))
        reader_ids = self._cycle[place]
        nth = cycles * self._per_cycle[reader_ids] + self._nth[place]
        return Drawn(reader_ids, *self._epochs.windows(reader_ids, nth), examples)


class _Epochs:
    """The windows of each reader in epochs: every window once per epoch, in a new random order."""

    def __init__(self, lengths: Sequence[int], *, seed: int):
        self._lengths = np.asarray(lengths, np.int64)
        self._seeds = np.array([seed_bits(seed, f"shuffle {k}") for k in range(len(lengths))], np.uint64)

    def windows(self, reader_ids: np.ndarray, nth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The epochs and windows, int64 [n], of draws `nth`, int64 [n], counted from 0, of readers int [n]."""
        epochs, indices = np.divmod(nth, self._lengths[reader_ids])
        keys = mix64(self._seeds[reader_ids] + GOLDEN * epochs.astype(np.uint64))
        return epochs, permute(indices, self._lengths[reader_ids], keys)


def _blocks(weights: Sequence[float], ramps: Sequence[Ramp | None]) -> tuple[np.ndarray, np.ndarray]:
    """Splits the run into S blocks of constant weights: their first examples, float64 [S]; weights, float64 [S, K]."""
    edges = sorted({0}.union(*(ramp[:2] for ramp in ramps if ramp)))
    parts = []
    for begin, end in itertools.pairwise(edges):
        changes = any(ramp and ramp.begin <= begin < ramp.end for ramp in ramps)
        parts.append(np.linspace(begin, end, min(_BLOCKS, end - begin) if changes else 1, endpoint=False))
    starts = np.concatenate([*parts, edges[-1:]])
    return starts, weights_at(weights, ramps, (starts + np.append(starts[1:], edges[-1] + 2)) / 2)


def weights_at(weights: Sequence[float], ramps: Sequence[Ramp | None], examples: np.ndarray) -> np.ndarray:
    """The K weights at examples of the run, float [n] -> float64 [n, K]. ramps: None for a constant weight."""
    columns = [
        np.interp(examples, ramp[:2], (weight, ramp.weight)) if ramp else np.full(len(examples), weight)
        for weight, ramp in zip(weights, ramps, strict=True)
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def permute(index: np.ndarray, length: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The positions of `index` in a random order of 0..length-1, int64 [n]. For one key, a bijection.

    For fewer than about ten windows not all orders are equally likely.

    A Feistel network on pairs of digits in base ceil(sqrt(length)), applied again to results outside the range (Black
    and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002: generalized Feistel with cycle walking).

    Args:
      index: int64 [n], each below its length.
      length: int64 [n], at least 1.
      keys: uint64 [n].
    """
    distinct, place = np.unique(length, return_inverse=True)  # as many as readers
    base = np.array([math.isqrt(n - 1) + 1 for n in distinct.tolist()], np.uint64)[place]
    result = index.astype(np.uint64)
    pending = np.arange(len(index))
    while pending.size:
        modulus, key = base[pending], keys[pending]
        left, right = np.divmod(result[pending], modulus)
        for step in range(_ROUNDS):
            bits = mix64(key + GOLDEN * (right * np.uint64(_ROUNDS) + np.uint64(step)))
            left, right = right, (left + bits % modulus) % modulus
        result[pending] = left * modulus + right
        pending = pending[result[pending] >= length[pending].astype(np.uint64)]
    return result.astype(np.int64)
