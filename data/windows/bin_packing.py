"""Bin packing of whole documents: which documents share a row."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from contract.rng import mix64
from data.windows.epoch_orders import order_by
from files.mapped_arrays import blocks, new_array, sums

_BLOCK = 1 << 13  # documents packed at a time: enough to fill rows, few enough to compare each size with every row


def pack_documents(
    sizes_of: Callable[[slice], np.ndarray], count: int, capacity: np.ndarray, folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Packs whole documents into few rows. The result depends on the sizes and the capacity alone.

    Best-fit decreasing, in one pass over the distinct sizes, as in longest-pack-first histogram-packing (Krell et al.
    2021, arXiv:2107.02027). Deviation: a size is a vector, the positions in each stack.

    Args:
      sizes_of: some documents -> int64 [n, S], 1..capacity: the positions that each takes in each stack.
      count: the number of documents, D.
      capacity: int64 [S], the positions of a row in each stack.
      folder: for temporary files (files/mapped_arrays.py).

    Returns the documents row by row, int64 [D], and where each row ends in that array, int64 [rows]. The rows are in a
    random order, because best-fit decreasing puts the longest documents into the first rows.
    """
    row, num_rows = new_array(folder, count, np.int64), 0
    for block in _packed_at_once(count):
        row_in_block = _pack_block(sizes_of(block), capacity)
        row[block] = num_rows + row_in_block
        num_rows += int(row_in_block.max()) + 1
    shuffled = _shuffle(num_rows, folder)
    in_row = new_array(folder, num_rows, np.int64)  # documents
    for block in _packed_at_once(count):
        row[block] = shuffled[row[block]]
        rows, counts = np.unique(row[block], return_counts=True)
        in_row[rows] = counts  # no other block has documents in these rows
    ends = sums(lambda block: in_row[block], num_rows, folder)
    documents = new_array(folder, count, np.int64)
    for block in _packed_at_once(count):
        by_row = np.argsort(row[block], kind="stable")
        rows = row[block][by_row]
        nth = np.arange(len(rows)) - np.searchsorted(rows, rows)
        documents[ends[rows] - in_row[rows] + nth] = block.start + by_row
    return documents, ends


def _packed_at_once(count: int) -> Iterator[slice]:
    for begin in range(0, count, _BLOCK):
        yield slice(begin, min(begin + _BLOCK, count))


def _shuffle(num_rows: int, folder: Path) -> np.ndarray:
    """int64 [num_rows]: the place of each row in a random order."""
    order = order_by(lambda block: mix64(np.arange(block.start, block.stop, dtype=np.uint64)), num_rows, folder)
    places = new_array(folder, num_rows, np.int64)
    for block in blocks(num_rows):
        places[order[block]] = np.arange(block.start, block.stop)
    return places


def _pack_block(sizes: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """The row of each document, int64 [D], with rows numbered from 0."""
    row = np.empty(len(sizes), np.int64)
    distinct, size_id, counts = np.unique(sizes, axis=0, return_inverse=True, return_counts=True)
    documents_of_size = np.split(np.argsort(size_id.ravel(), kind="stable"), np.cumsum(counts)[:-1])
    free, num_rows = np.repeat(capacity[:, None], len(sizes), axis=1), 0  # [S, rows], the free positions of each row
    for k in np.argsort(-(distinct / capacity).max(axis=1), kind="stable"):
        size, documents = distinct[k][:, None], documents_of_size[k]
        free_in_open = free[:, :num_rows]
        fitting = np.flatnonzero((free_in_open >= size).all(axis=0))
        free_after = free_in_open[:, fitting] - size
        tightest = np.argsort((free_after / capacity[:, None]).sum(axis=0), kind="stable")[: len(documents)]
        copies = 1 + (free_after[:, tightest] // size).min(axis=0)
        rows = np.repeat(fitting[tightest], copies)[: len(documents)]
        remaining = len(documents) - len(rows)
        rows = np.concatenate([rows, num_rows + np.arange(remaining) // int((capacity // distinct[k]).min())])
        row[documents] = rows
        np.subtract.at(free, (slice(None), rows), size)
        num_rows = max(num_rows, int(rows[-1]) + 1)
    return row
