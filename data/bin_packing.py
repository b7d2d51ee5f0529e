"""Whole documents in rows: a plan, made once, of which documents stand in a row together."""

import numpy as np

from contract.rng import mix64

_TOGETHER = 1 << 13  # documents planned at once: enough to fill rows, few enough to look at every open row


def plan_rows(sizes: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Puts documents into as few rows as it can, none of them cut. The same sizes give the same plan.

    Best-fit decreasing, in one pass over the distinct sizes, as in longest-pack-first histogram-packing (Krell et al.
    2021, arXiv:2107.02027), here with a size of several parts: the encoder's positions and the decoder's.

    Args:
      sizes: int64 [D, S], at least 1 and at most the room: positions that each document takes of each stack.
      room: int64 [S], positions of each stack in a row.

    Returns the documents row by row, int64 [D], and where in that each row ends, int64 [rows]. Rows stand in a random
    order, so that the first of them are like the others.
    """
    row, num_rows = np.empty(len(sizes), np.int64), 0
    for begin in range(0, len(sizes), _TOGETHER):
        part = _fill(sizes[begin : begin + _TOGETHER], room)
        row[begin : begin + _TOGETHER] = num_rows + part
        num_rows += int(part.max()) + 1
    place = np.empty(num_rows, np.int64)
    place[np.argsort(mix64(np.arange(num_rows, dtype=np.uint64)))] = np.arange(num_rows)
    row = place[row]
    return np.argsort(row, kind="stable"), np.cumsum(np.bincount(row))


def _fill(sizes: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The row of each document, int64 [D], rows being numbered from 0."""
    row = np.empty(len(sizes), np.int64)
    distinct, kind, counts = np.unique(sizes, axis=0, return_inverse=True, return_counts=True)
    of_kind = np.split(np.argsort(kind.ravel(), kind="stable"), np.cumsum(counts)[:-1])
    left, num_rows = np.repeat(room[:, None], len(sizes), axis=1), 0  # [S, rows], what is left of each row
    for k in np.argsort(-(distinct / room).max(axis=1), kind="stable"):
        size, documents = distinct[k][:, None], of_kind[k]
        open_rows = left[:, :num_rows]
        fitting = np.flatnonzero((open_rows >= size).all(axis=0))
        after = open_rows[:, fitting] - size
        tightest = np.argsort((after / room[:, None]).sum(axis=0), kind="stable")[: len(documents)]
        times = 1 + (after[:, tightest] // size).min(axis=0)
        rows = np.repeat(fitting[tightest], times)[: len(documents)]
        rest = len(documents) - len(rows)
        rows = np.concatenate([rows, num_rows + np.arange(rest) // int((room // distinct[k]).min())])
        row[documents] = rows
        np.subtract.at(left, (slice(None), rows), size)
        num_rows = max(num_rows, int(rows[-1]) + 1)
    return row
