"""Bin packing of whole documents: which documents share a row."""

import numpy as np

from contract.rng import mix64

_BLOCK = 1 << 13  # documents packed at a time: enough to fill rows, few enough to compare each size with every row


def pack_documents(sizes: np.ndarray, capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packs whole documents into few rows. The result depends on the sizes and the capacity alone.

    Best-fit decreasing, in one pass over the distinct sizes, as in longest-pack-first histogram-packing (Krell et al.
    2021, arXiv:2107.02027). Deviation: a size is a vector, the positions in each stack.

    Args:
      sizes: int64 [D, S], 1..capacity: the positions that each document takes in each stack.
      capacity: int64 [S], the positions of a row in each stack.

    Returns the documents row by row, int64 [D], and where each row ends in that array, int64 [rows]. The rows are in a
    random order, because best-fit decreasing puts the longest documents into the first rows.
    """
    row, num_rows = np.empty(len(sizes), np.int64), 0
    for begin in range(0, len(sizes), _BLOCK):
        row_in_block = _pack_block(sizes[begin : begin + _BLOCK], capacity)
        row[begin : begin + _BLOCK] = num_rows + row_in_block
        num_rows += int(row_in_block.max()) + 1
    places = np.empty(num_rows, np.int64)
    places[np.argsort(mix64(np.arange(num_rows, dtype=np.uint64)), kind="stable")] = np.arange(num_rows)
    row = places[row]
    return np.argsort(row, kind="stable"), np.cumsum(np.bincount(row, minlength=num_rows))


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
