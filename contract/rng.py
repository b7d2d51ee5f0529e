"""Vectorized random numbers on the host: every example has its own key, as in `jax.random`.

The generator is SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), one stream
per key. One NumPy `Generator` per example would be as independent at ten times the cost. Results do not depend on the
machine, the process, or the order of calls.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment
_PART = 1 << 18  # numbers of a part in `parts`
_NARROW = 64  # fewer columns are computed column by column
_COMPARED = 8  # so many columns are compared pair by pair, in a third of the time of sorting the rows
_INDEX = np.uint64((1 << 24) - 1)  # the bits of a ticket in `draw` that hold a position: rows of up to 16M positions


def mix64(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (variant Mix13): uint64 [...] -> uint64 [...].

    A bijection whose every output bit depends on every input bit.
    """
    y = x >> np.uint64(30)  # in place from here on: up to an eighth faster
    y ^= x
    y *= np.uint64(0xBF58476D1CE4E5B9)
    y ^= y >> np.uint64(27)
    y *= np.uint64(0x94D049BB133111EB)
    y ^= y >> np.uint64(31)
    return y


def mix32(x: Any) -> Any:
    """MurmurHash3's finalizer, an array of NumPy or JAX: uint32 [...] -> uint32 [...], a bijection as `mix64`."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 16)


def argsort(keys_of: Callable[[np.ndarray], np.ndarray], n: int) -> np.ndarray:
    """Returns the stable argsort of the random keys of 0..n-1, uint32 [n] or, if n > 2^32, uint64 [n].

    NumPy sorts values faster than it argsorts them, so the number of each key replaces the key's low bits. The keys
    that are then equal in their high bits are sorted again. The keys and the result are the only large arrays.

    keys_of: numbers, int [k] -> the key of each, uint64 [k].
    """
    low = np.uint64(n.bit_length())
    keys, order = np.empty(n, np.uint64), np.empty(n, np.uint32 if n <= 1 << 32 else np.uint64)
    for numbers in parts(n):
        keys[numbers] = keys_of(numbers) >> low << low | numbers.astype(np.uint64)
    keys.sort()
    for places in parts(n):
        order[places] = keys[places] & ~(~np.uint64(0) << low)
    keys >>= low
    tied = np.flatnonzero(keys[1:] == keys[:-1])
    places = np.union1d(tied, tied + 1)
    order[places] = order[places][np.argsort(keys_of(order[places]), kind="stable")]
    return order


def parts(n: int) -> Iterator[np.ndarray]:
    """Yields 0..n-1 in parts, int64 [k], for functions of arrays that would need the memory of several results."""
    return (np.arange(begin, min(begin + _PART, n)) for begin in range(0, max(n, 1), _PART))


def seed_bits(seed: int, purpose: str) -> int:
    """64 bits, as an int, for one use (`purpose`) of `seed`, any int. Different purposes are independent."""
    return int.from_bytes(hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest())


def example_keys(seed: int, examples: np.ndarray, pieces: np.ndarray, purpose: str = "example") -> np.ndarray:
    """The keys of examples, uint64 [E], a function of (seed, example number, piece) alone.

    Args:
      seed: any int.
      examples: int64 [E], the number of each example's window among all windows of the run.
      pieces: int64 [E], which of its window's examples each is; 0 where a window is one example.
      purpose: as for `seed_bits`.
    """
    windows = mix64(np.uint64(seed_bits(seed, purpose)) + GOLDEN * examples.astype(np.uint64))
    return mix64(windows + GOLDEN * pieces.astype(np.uint64))


def quantiles(seed: int, examples: np.ndarray, pieces: np.ndarray, per_batch: int | None) -> np.ndarray:
    """Antithetic draws: float64 [E] in [0, 1), each uniform by itself, those of a batch evenly spread over [0, 1).

    Example i of a batch of B has (u + i / B) mod 1, with one uniform u for all of them (Kingma et al. 2021, arXiv
    2107.00630, the low-discrepancy sampler). Draws are a function of (seed, example number, piece) and B alone.

    Args:
      seed, examples, pieces: as for `example_keys`. Pieces of the same number have a u of their own.
      per_batch: B; None: the golden ratio's multiples replace those of 1 / B, with one u for all examples, which
        spreads any number of consecutive examples evenly.
    """
    if per_batch is None:
        batches, steps = np.zeros_like(examples), examples * (0.5 * 5**0.5 - 0.5)
    else:
        batches, steps = examples // per_batch, examples % per_batch / per_batch
    return (uniform(example_keys(seed, batches, pieces, "quantiles"), 1)[:, 0] + steps) % 1.0


@functools.cache
def _salt(tag: int) -> np.ndarray:
    return mix64(np.asarray([tag + 1], np.uint64) * GOLDEN)


def fold_in(keys: np.ndarray, tag: int) -> np.ndarray:
    """New keys, uint64 [E], for one use (`tag`, an int) of `keys`, uint64 [E]. Different tags are independent."""
    return mix64(keys ^ _salt(tag))


def bits(keys: np.ndarray, n: int) -> np.ndarray:
    """Uniform uint64 [E, n]; row e depends on keys[e] alone, and its first m < n columns do not depend on n."""
    # Column by column NumPy's innermost loop is over all rows: twice as fast for rows of 4.
    counts = np.arange(1, n + 1, dtype=np.uint64)
    return mix64(np.add(keys[:, None], counts * GOLDEN, order="F" if n < _NARROW else "C"))


def bits_at(keys: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Column columns[i] of `bits` for keys[i]: uint64 [n] from uint64 [n] and int [n]. Faster for a few columns."""
    return mix64(keys + (columns + 1).astype(np.uint64) * GOLDEN)


def as_uniform(bits: np.ndarray) -> np.ndarray:
    """Uniform float64 [...] in [0, 1) from random `bits`, uint64 [...]."""
    return (bits >> np.uint64(11)) * 2.0**-53


def uniform(keys: np.ndarray, n: int) -> np.ndarray:
    """Uniform float64 [E, n] in [0, 1), as `bits` for keys uint64 [E]."""
    return as_uniform(bits(keys, n))


def integers(keys: np.ndarray, low: np.ndarray | int, high: np.ndarray | int) -> np.ndarray:
    """Uniform int64 [E] in low..high, both included. `low` and `high`: int or int [E], low <= high."""
    return low + (uniform(keys, 1)[:, 0] * (np.asarray(high) - low + 1)).astype(np.int64)


def _tickets(keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """uint64 [E, W]: random high bits with the position in the low bits, so that no two of a row are equal.

    The n smallest tickets of a row are n positions drawn without replacement. Positions where bool `allowed` is False
    get the greatest uint64.
    """
    width = allowed.shape[1]
    tickets = bits(keys, width)
    tickets &= ~_INDEX
    tickets |= np.arange(width, dtype=np.uint64)
    if not allowed.all():
        np.copyto(tickets, np.iinfo(np.uint64).max, where=~allowed)
    return tickets


def _smallest(tickets: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """uint64 [E, max(counts)]: the smallest tickets of each row, ascending. Row e is meaningful up to counts[e]."""
    most, tickets = int(counts.max(initial=0)), np.ascontiguousarray(tickets)
    if most < tickets.shape[1]:  # a partition is much faster than sorting whole rows
        tickets = np.partition(tickets, most, axis=1)[:, :most]
    return np.sort(tickets, axis=1)


def draw(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Positions drawn without replacement, in the order of drawing: int64 [E, max(counts)], padded with W.

    Every ordered sample is equally likely.

    Args:
      keys: uint64 [E].
      allowed: bool [E, W], the positions that may be drawn.
      counts: int [E], how many to draw, at most allowed[e].sum().
    """
    smallest = _smallest(_tickets(keys, allowed), counts)
    positions = (smallest & _INDEX).astype(np.int64)
    positions[np.arange(positions.shape[1]) >= counts[:, None]] = allowed.shape[1]
    return positions


def choose(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The positions of `draw`, int64 [E, max(counts)], but ascending in each row."""
    positions = draw(keys, allowed, counts)
    positions.sort(axis=1)
    return positions


def choose_mask(keys: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The positions of `draw` as a mask, bool [E, W]."""
    if not counts.any():
        return np.zeros(allowed.shape, bool)
    tickets = _tickets(keys, allowed)
    if allowed.shape[1] <= _COMPARED:
        ranks = np.zeros(tickets.shape, np.int8, order="F")
        for column in tickets.T:
            ranks += column[:, None] < tickets
        return ranks < counts[:, None]
    last = _smallest(tickets, counts)[np.arange(len(counts)), np.maximum(counts, 1) - 1]
    return (tickets <= last[:, None]) & (counts > 0)[:, None]
