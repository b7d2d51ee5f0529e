"""The order of examples: which window of which denoiser is example i, for any i, without going through those before.

grain has both halves of this, `MapDataset.mix` and `shuffle`. They go example by example, at 17 to 25 us each, and its
index_shuffle walks cycles in a domain of at least 65536, which takes 400 us an example where there are 100 windows.
Here a whole batch is drawn at once for a fraction of a microsecond an example, and the order of a run does not change
with grain's version.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from contract.errors import ConfigError
from contract.rng import GOLDEN, mix64, seed_bits
from contract.windows import Ramp

_BLOCKS = 1000  # of constant shares, that stand for a ramp
_GAP = 1000  # examples: what lies farther apart is drawn apart
_ROUNDS = 6


class DrawOrder:
    """Draws from several sources by weight, evenly spread; from each source, every window once an epoch, for ever.

    A source's shares of the examples, added up from the start of the run, say how many draws it is due by any example;
    its n-th draw, n = 0, 1, ..., falls due where that sum passes n + 1/2. Example i is the i-th draw of all to fall
    due, of several at once the first source's. So of any examples in a row a source has what its shares come to, give
    or take at most one for each source there is, whether they are constant or not; and it goes through its windows
    without a gap.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        shuffle: bool,
        ramps: Sequence[Ramp | None] = (),
    ):
        """
        Args:
          lengths: windows in each source, at least 1.
          weights: shares of the sources, in any unit. 0: never drawn.
          seed: any int.
          shuffle: a new order each epoch; else 0, 1, 2, ... every time.
          ramps: how the weight of each source changes, None where it does not; none at all where no weight does. The
            line of a ramp is stairs of at most 1000 equal steps, each as high as the line in its middle.

        Raises ConfigError for weights that are negative, not finite, or all 0 at once.
        """
        self._starts, shares = _blocks(weights, ramps or (None,) * len(weights))
        totals = shares.sum(axis=1, keepdims=True)
        if not (np.isfinite(totals).all() and totals.min() > 0 and shares.min() >= 0):
            raise ConfigError(f"the denoisers' weights {tuple(weights)} must be finite, not negative and not all 0")
        self._shares = shares / totals
        grown = np.cumsum(self._shares[:-1] * np.diff(self._starts)[:, None], axis=0)
        self._due_at_start = np.concatenate([np.zeros((1, len(weights))), grown])
        self._epochs = _Epochs(lengths, seed=seed, shuffle=shuffle)

    def draw(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Examples' numbers in the run, int64 [n] -> their sources, int32 [n], and windows there, int64 [n]."""
        source, nth = np.empty(len(examples), np.int32), np.empty(len(examples), np.int64)
        ascending = np.argsort(examples, kind="stable")
        for part in np.split(ascending, np.flatnonzero(np.diff(examples[ascending]) > _GAP) + 1):
            if part.size:
                wanted = examples[part]
                sources, draws = self._from_to(int(wanted[0]), int(wanted[-1]))
                source[part], nth[part] = sources[wanted - wanted[0]], draws[wanted - wanted[0]]
        return source, self._epochs.windows(source, nth)

    def _from_to(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Of examples first..last: the source, int64 [n], and which of its draws it is, int64 [n], counted from 0."""
        # Of K sources each is at most half a draw ahead or behind, so example i falls due within K/2 examples of i.
        slack = self._shares.shape[1] + 1
        begin, end = self._drawn_before(max(first - slack, 0)), self._drawn_before(last + slack)
        draws = [np.arange(*span) for span in zip(begin, end, strict=True)]
        due = np.concatenate([self._falls_due(k, nth) for k, nth in enumerate(draws)])
        source = np.repeat(np.arange(len(draws)), end - begin)
        here = np.argsort(due, kind="stable")[first - begin.sum() :][: last - first + 1]
        return source[here], np.concatenate(draws)[here]

    def _drawn_before(self, example: int) -> np.ndarray:
        """int64 [K]: the draws of each source that fall due before an example."""
        block = np.searchsorted(self._starts, example, side="right") - 1
        due = self._due_at_start[block] + self._shares[block] * (example - self._starts[block])
        return np.maximum(np.ceil(due - 0.5), 0).astype(np.int64)

    def _falls_due(self, source: int, nth: np.ndarray) -> np.ndarray:
        """Where draws nth, int64 [n], of one source fall due, float64 [n], counted in examples."""
        at_start, due = self._due_at_start[:, source], nth + 0.5
        block = np.searchsorted(at_start, due, side="right") - 1  # of the blocks without a share none: the next
        return self._starts[block] + (due - at_start[block]) / self._shares[block, source]


class PlannedOrder:
    """Draws from several sources in a cycle that comes round and round; from each, every window once an epoch."""

    def __init__(self, lengths: Sequence[int], cycle: np.ndarray, *, seed: int, shuffle: bool):
        """
        Args:
          lengths: windows in each source, at least 1.
          cycle: int [n], the sources of examples 0..n-1 of the run, and of those after them.
          seed: any int.
          shuffle: a new order each epoch; else 0, 1, 2, ... every time.
        """
        self._cycle = cycle.astype(np.int32)
        self._in_cycle = np.bincount(cycle, minlength=len(lengths))
        by_denoiser = np.argsort(cycle, kind="stable")
        first = np.cumsum(self._in_cycle) - self._in_cycle
        self._nth = np.empty(len(cycle), np.int64)  # of its source's examples in the cycle
        self._nth[by_denoiser] = np.arange(len(cycle)) - first[cycle[by_denoiser]]
        self._epochs = _Epochs(lengths, seed=seed, shuffle=shuffle)

    def draw(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Examples' numbers in the run, int64 [n] -> their sources, int32 [n], and windows there, int64 [n]."""
        round_, place = np.divmod(examples, len(self._cycle))
        source = self._cycle[place]
        return source, self._epochs.windows(source, round_ * self._in_cycle[source] + self._nth[place])


class _Epochs:
    """Goes through all windows of a source before it comes to any of them again."""

    def __init__(self, lengths: Sequence[int], *, seed: int, shuffle: bool):
        self._lengths = np.asarray(lengths, np.int64)
        self._shuffle = shuffle
        self._seeds = np.array([seed_bits(seed, f"shuffle {k}") for k in range(len(lengths))], np.uint64)

    def windows(self, source: np.ndarray, nth: np.ndarray) -> np.ndarray:
        """The windows, int64 [n], of draws `nth` from 0, int64 [n], of sources, int [n]."""
        epoch, window = np.divmod(nth, self._lengths[source])
        if not self._shuffle:
            return window
        keys = mix64(self._seeds[source] + GOLDEN * epoch.astype(np.uint64))
        return permute(window, self._lengths[source], keys)


def _blocks(weights: Sequence[float], ramps: Sequence[Ramp | None]) -> tuple[np.ndarray, np.ndarray]:
    """The run in blocks of constant weights: the examples at which they begin, float64 [S], and the weights, [S, K]."""
    edges = sorted({0}.union(*(ramp[:2] for ramp in ramps if ramp)))
    starts = []
    for begin, end in itertools.pairwise(edges):
        changes = any(ramp and ramp.begin <= begin < ramp.end for ramp in ramps)
        starts.append(np.linspace(begin, end, min(_BLOCKS, end - begin) if changes else 1, endpoint=False))
    starts = np.concatenate([*starts, edges[-1:]])
    return starts, weights_at(weights, ramps, (starts + np.append(starts[1:], edges[-1] + 2)) / 2)


def weights_at(weights: Sequence[float], ramps: Sequence[Ramp | None], examples: np.ndarray) -> np.ndarray:
    """The weights of K sources at examples of the run, float [n] -> float64 [n, K]."""
    columns = [
        np.interp(examples, ramp[:2], (weight, ramp.weight)) if ramp else np.full(len(examples), weight)
        for weight, ramp in zip(weights, ramps, strict=True)
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def permute(index: np.ndarray, length: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Position in a random order of 0..length-1; for one key, a bijection of them.

    A Feistel network on pairs of digits to the base ceil(sqrt(length)), walked on from while it ends outside the range
    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002: generalised Feistel with cycle walking).

    Args:
      index: int64 [n], each below its length.
      length: int64 [n], at least 1.
      keys: uint64 [n].

    Returns int64 [n].
    """
    base = np.array([math.isqrt(n - 1) + 1 for n in length.tolist()], np.uint64)
    result = index.astype(np.uint64)
    todo = np.arange(len(index))
    while todo.size:
        modulus, key = base[todo], keys[todo]
        left, right = np.divmod(result[todo], modulus)
        for step in range(_ROUNDS):
            bits = mix64(key + GOLDEN * (right * np.uint64(_ROUNDS) + np.uint64(step)))
            left, right = right, (left + bits % modulus) % modulus
        result[todo] = left * modulus + right
        todo = todo[result[todo] >= length[todo].astype(np.uint64)]
    return result.astype(np.int64)
