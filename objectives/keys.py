"""Randomness for a batch at once: every example has a key of its own, as in `jax.random`, in vectorised NumPy.

The generator is SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), one stream
per key. A NumPy `Generator` per example would give the same independence at ten times the cost.
"""

import functools

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_INDEX = np.uint64((1 << 24) - 1)  # room for rows of 16M positions in `draw`


def _mix(x: np.ndarray) -> np.ndarray:
    y = x >> np.uint64(30)  # in place from here on: a third less time
    y ^= x
    y *= np.uint64(0xBF58476D1CE4E5B9)
    shifted = y >> np.uint64(27)
    y ^= shifted
    y *= np.uint64(0x94D049BB133111EB)
    np.right_shift(y, np.uint64(31), out=shifted)
    y ^= shifted
    return y


@functools.cache
def _salt(tag: int) -> np.ndarray:
    return _mix(np.asarray([tag + 1], np.uint64) * _GOLDEN)


def fold_in(keys: np.ndarray, tag: int) -> np.ndarray:
    """Independent keys, uint64 [E], for one named use (`tag`) of `keys`, uint64 [E]."""
    return _mix(keys ^ _salt(tag))


def bits(keys: np.ndarray, n: int) -> np.ndarray:
    """uint64 [E, n], uniform; row e depends on keys[e] alone, and its first m < n columns do not depend on n."""
    return _mix(keys[:, None] + np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN)


def bits_at(keys: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """uint64 [n]: of each of n keys one column of `bits`, int [n]. For a few places of many."""
    return _mix(keys + (columns + 1).astype(np.uint64) * _GOLDEN)


def as_uniform(bits: np.ndarray) -> np.ndarray:
    """float64 of bits' shape, uniform in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def uniform(keys: np.ndarray, n: int) -> np.ndarray:
    """float64 [E, n], uniform in [0, 1)."""
    return as_uniform(bits(keys, n))


def integers(keys: np.ndarray, low: np.ndarray | int, high: np.ndarray | int) -> np.ndarray:
    """int64 [E], uniform in low..high, both included; `low` and `high` are int or int [E], low <= high."""
    return low + np.floor(uniform(keys, 1)[:, 0] * (np.asarray(high) - low + 1)).astype(np.int64)


def _lottery(keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """uint64 [E, W]: random high bits and the position in the low bits, so no two are equal; the greatest of all where
    not allowed. The smallest n of a row are n positions drawn without replacement."""
    width = allowed.shape[1]
    tickets = bits(keys, width)
    tickets &= ~_INDEX
    tickets |= np.arange(width, dtype=np.uint64)
    if not allowed.all():
        tickets[~allowed] = np.iinfo(np.uint64).max
    return tickets


def _winners(tickets: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """uint64 [E, max(counts)]: the smallest of each row, ascending; of use up to counts[e]."""
    most = int(counts.max(initial=0))
    if most < tickets.shape[1]:  # far quicker than to sort them all
        tickets = np.partition(tickets, most, axis=1)[:, :most]
    return np.sort(tickets, axis=1)


def draw(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Positions drawn without replacement, in the order of drawing, every ordered sample equally likely.

    allowed: bool [E, W], the positions that may be drawn; counts: int [E], how many, at most allowed[e].sum().
    Returns int64 [E, max(counts)], filled up with W.
    """
    winners = _winners(_lottery(keys, allowed), counts)
    positions = (winners & _INDEX).astype(np.int64)
    positions[np.arange(positions.shape[1]) >= counts[:, None]] = allowed.shape[1]
    return positions


def choose(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The positions of `draw`, ascending in each row."""
    positions = draw(keys, allowed, counts)
    positions.sort(axis=1)
    return positions


def choose_mask(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The positions of `draw` as a mask, bool [E, W]."""
    if not counts.any():
        return np.zeros(allowed.shape, bool)
    tickets = _lottery(keys, allowed)
    last = _winners(tickets, counts)[np.arange(len(counts)), np.maximum(counts, 1) - 1]
    return (tickets <= last[:, None]) & (counts > 0)[:, None]
