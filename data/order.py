"""The order of examples: which window of which denoiser is example i, for any i, without going through those before.

grain has both halves of this, `MapDataset.mix` and `shuffle`. They go example by example, at 17 to 25 us each, and its
index_shuffle walks cycles in a domain of at least 65536, which takes 400 us an example where there are 100 windows.
Here a whole batch is drawn at once for a fraction of a microsecond an example, and the order of a run does not change
with grain's version.
"""

import math
from collections.abc import Sequence

import numpy as np

from data.hashing import STEP, mix64, seed_bits
from objectives.errors import ConfigError

_PERIOD = 1 << 16
_ROUNDS = 6


class DrawOrder:
    """Draws from several sources by weight, evenly spread; from each source, every window once an epoch, for ever."""

    def __init__(self, lengths: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool):
        """
        Args:
          lengths: windows in each source, at least 1.
          weights: shares of the sources, in any unit. 0: never drawn.
          seed: any int.
          shuffle: a new order each epoch; else 0, 1, 2, ... every time.

        Raises ConfigError for weights that are negative, not finite, all 0, or too small beside the others.
        """
        shares = np.asarray(weights, np.float64)
        total = shares.sum()
        if not (np.isfinite(total) and total > 0 and shares.min() >= 0):
            raise ConfigError(f"the denoisers' weights {tuple(weights)} must be finite, not negative and not all 0")
        self._per_period = np.round(shares / total * _PERIOD).astype(np.int64)
        if ((self._per_period == 0) & (shares > 0)).any():
            raise ConfigError(f"the denoisers' weights {tuple(weights)}: set one below 1/{_PERIOD} of their sum to 0")
        # A source with c draws in the period takes them at (0.5, 1.5, ..., c - 0.5) / c of it: as even as can be.
        source = np.repeat(np.arange(len(shares), dtype=np.int32), self._per_period)
        nth = np.concatenate([np.arange(count) for count in self._per_period])
        order = np.argsort((nth + 0.5) / self._per_period[source], kind="stable")
        self._source, self._nth = source[order], nth[order]
        self._lengths = np.asarray(lengths, np.int64)
        self._shuffle = shuffle
        self._seeds = np.array([seed_bits(seed, f"shuffle {k}") for k in range(len(shares))], np.uint64)

    def draw(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Examples' numbers in the run, int64 [n] -> their sources, int32 [n], and windows there, int64 [n]."""
        period, slot = np.divmod(examples, len(self._source))
        source = self._source[slot]
        epoch, window = np.divmod(period * self._per_period[source] + self._nth[slot], self._lengths[source])
        if self._shuffle:
            keys = mix64(self._seeds[source] + STEP * epoch.astype(np.uint64))
            window = permute(window, self._lengths[source], keys)
        return source, window


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
            bits = mix64(key + STEP * (right * np.uint64(_ROUNDS) + np.uint64(step)))
            left, right = right, (left + bits % modulus) % modulus
        result[todo] = left * modulus + right
        todo = todo[result[todo] >= length[todo].astype(np.uint64)]
    return result.astype(np.int64)
