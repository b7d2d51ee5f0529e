"""Which documents have a digest that other documents have, and whether two corpora have the same documents.

Memory grows with the smaller of two sets of documents, and not with the larger one (files/mapped_arrays.py).
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from contract.rng import mix64
from data.store.store import TokenStore
from data.windows.documents import Documents
from files.mapped_arrays import blocks, new_array, select


class Values(NamedTuple):
    """Integers that are computed in blocks."""

    of: Callable[[slice], np.ndarray]  # a block -> its integers, [n]
    count: int

    def at(self, chosen: np.ndarray) -> "Values":
        """The values with the numbers `chosen`, int64 [n]. `of` must take such numbers too."""
        return Values(lambda block: self.of(chosen[block]), len(chosen))

    def distinct(self) -> np.ndarray:
        """The distinct integers, ascending."""
        parts = [np.unique(self.of(block)) for block in blocks(self.count)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)


def digests_of(documents: Documents, name: str) -> Values:
    """Returns an array of the store of `documents`, such as "text_digests", at these documents."""
    array = getattr(documents.store, name)
    return Values(lambda chosen: array[documents.index[chosen]], len(documents))


def is_in(values: Values, others: Values, folder: Path) -> np.ndarray:
    """Returns which of `values` are among `others`, bool [n]. folder: for temporary files (files/mapped_arrays.py)."""
    if values.count <= others.count:
        known = values.distinct()
        found = np.zeros(len(known), bool)
        for block in blocks(others.count):
            places, exist = _look_up(known, others.of(block))
            found[places[exist]] = True
        known = known[found]
    else:
        known = others.distinct()
    result = new_array(folder, values.count, np.bool_)
    for block in blocks(values.count):
        result[block] = _look_up(known, values.of(block))[1]
    return result


def have_equal_documents(first: TokenStore, second: TokenStore) -> bool:
    """Returns whether two stores have the same documents of the same files, with the same prompts, in any order."""
    if len(first) != len(second):
        return False
    texts = (_sorted(store, functools.partial(_text_digests, store)) for store in (first, second))
    if not _equal(*texts):
        return False
    files = (_distinct(_sorted(store, store.file_digests.__getitem__), store.folder) for store in (first, second))
    return _equal(*files)


def _text_digests(store: TokenStore, block: slice) -> np.ndarray:
    return mix64(store.digests[block] + store.is_heldout[block]) ^ store.text_digests[block]


def _sorted(store: TokenStore, digests_of: Callable[[slice], np.ndarray]) -> np.ndarray:
    """A digest of each document of `store`, uint64 [documents], ascending."""
    digests = new_array(store.folder, len(store), np.uint64)
    for block in blocks(len(store)):
        digests[block] = digests_of(block)
    digests.sort()
    return digests


def _distinct(digests: np.ndarray, folder: Path) -> np.ndarray:
    """Ascending `digests` without repetitions."""

    def is_first(block: slice) -> np.ndarray:
        before = digests[np.maximum(np.arange(block.start, block.stop) - 1, 0)]
        return (digests[block] != before) | (np.arange(block.start, block.stop) == 0)

    return select(digests, is_first, folder)


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    if len(first) != len(second):
        return False
    return all(np.array_equal(first[block], second[block]) for block in blocks(len(first)))


def _look_up(known: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of `values` in `known`, distinct and ascending, int64 [n], and whether they are there, bool [n]."""
    places = np.searchsorted(known, values)
    exist = places < len(known)
    exist[exist] = known[places[exist]] == values[exist]
    return places, exist
