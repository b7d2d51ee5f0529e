"""Random orders of documents, and the order of each epoch, with memory that does not grow with the documents.

The arrays are those of files/mapped_arrays.py, and are computed in blocks.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from contract.rng import GOLDEN, mix64, seed_bits
from files import mapped_arrays
from files.mapped_arrays import blocks, new_array, sums

_MOST_PARTS_BITS = 16  # NumPy sorts numbers of parts of 16 bits in linear time
# Orders are kept for the epochs that some reader is in, at most. Large corpora have few epochs.
_EPOCHS = 32
_UNUSED = 10_000  # uses of other orders, after which one is dropped: its epoch has ended for all readers


def order_by(keys_of: Callable[[slice], np.ndarray], count: int, folder: Path) -> np.ndarray:
    """Returns the numbers 0, ..., count - 1 in the order of their keys, int64 [count]; those of equal keys ascending.

    Distributes the numbers by the highest bits of their keys, and then sorts each part. Memory is bounded where the
    keys are evenly distributed, as those of a hash are.

    Args:
      keys_of: a slice of the numbers -> their keys, uint64 [n]. It is called twice for each.
      count: how many numbers there are.
      folder: for temporary files.
    """
    order = new_array(folder, count, np.int64)
    num_parts_bits = min(max(count - 1, 0) // mapped_arrays.BLOCK, (1 << _MOST_PARTS_BITS) - 1).bit_length()
    if not num_parts_bits:
        order[:] = _stable_order(keys_of(slice(0, count)))
        return order
    shift, num_parts = np.uint64(64 - num_parts_bits), 1 << num_parts_bits
    counts = np.zeros(num_parts, np.int64)
    for block in blocks(count):
        counts += np.bincount((keys_of(block) >> shift).astype(np.uint16), minlength=num_parts)
    keys, ends = new_array(folder, count, np.uint64), np.cumsum(counts)
    begins = ends - counts  # of what is still to be filled of each part
    for block in blocks(count):
        keys_of_block = keys_of(block)
        parts = (keys_of_block >> shift).astype(np.uint16)
        by_part = np.argsort(parts, kind="stable")
        in_block = np.bincount(parts, minlength=num_parts)
        places = np.arange(len(parts)) + np.repeat(begins - (np.cumsum(in_block) - in_block), in_block)
        order[places], keys[places] = block.start + by_part, keys_of_block[by_part]
        begins += in_block
    for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
        order[begin:end] = order[begin:end][_stable_order(keys[begin:end])]
    return order


def _stable_order(keys: np.ndarray) -> np.ndarray:
    """np.argsort(keys, kind="stable"), which takes several times as long as an unstable sort."""
    order = np.argsort(keys)
    in_order = keys[order]
    if (in_order[1:] == in_order[:-1]).any():
        return np.argsort(keys, kind="stable")
    return order


class EpochOrder(NamedTuple):
    """The order of D documents in an epoch."""

    documents: np.ndarray  # int64 [D]
    ends: np.ndarray  # int64 [D], where each ends in the documents so ordered


class EpochOrders:
    """The orders of the same documents in all epochs. Thread-safe: one thread computes an order, and others wait."""

    def __init__(self, ends: np.ndarray, folder: Path):
        """ends: int64 [D], where each document ends in the concatenated documents. folder: for temporary files."""
        self._ends, self._folder = ends, folder
        self._lock = threading.Lock()
        self._orders: dict[tuple[int, int], _Order] = {}  # by seed and epoch, the one that was used last at the end
        self._uses = 0

    def of(self, seed: int, epoch: int) -> EpochOrder:
        """Returns a random order of the documents, a function of `seed`, any int, and `epoch`, at least 0.

        The readers of a run share it. Raises ConfigError where it has no room on the disk.
        """
        with self._lock:
            self._uses += 1
            order = self._orders.pop((seed, epoch), None) or _Order()
            order.last_use = self._uses
            self._orders[seed, epoch] = order
            for key, other in list(self._orders.items()):
                if len(self._orders) > _EPOCHS or self._uses - other.last_use > _UNUSED:
                    del self._orders[key]
        with order.lock:
            if order.value is None:
                order.value = self._compute(seed, epoch)
            return order.value

    def _compute(self, seed: int, epoch: int) -> EpochOrder:
        key = np.uint64(seed_bits(seed, f"documents {epoch}"))

        def keys_of(block: slice) -> np.ndarray:
            return mix64(key + GOLDEN * np.arange(block.start, block.stop, dtype=np.uint64))

        count = len(self._ends)
        documents = order_by(keys_of, count, self._folder)
        return EpochOrder(documents, sums(lambda block: lengths_of(self._ends, documents[block]), count, self._folder))


class _Order:
    """The order of one epoch, once it is computed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.value: EpochOrder | None = None
        self.last_use = 0


def begins_of(ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns where each of `numbers`, int64 [n], begins, for parts that end at `ends`, int64 [D], each."""
    return np.where(numbers > 0, ends[numbers - 1], 0)


def lengths_of(ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the lengths of `numbers`, int64 [n], for parts that end at `ends`, int64 [D], each."""
    return ends[numbers] - begins_of(ends, numbers)
