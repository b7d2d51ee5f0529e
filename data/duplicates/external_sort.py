"""Sorts rows of integers that need not fit into memory: sorted runs in a file, which are merged block by block."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RUN_ROWS = 1 << 20  # rows in memory while they are added
_MERGED_RUNS = 64  # at once: with more, few rows of each would be in memory, and every block would be small


class ExternalSort:
    """Rows of unsigned integers, sorted by their first column, then by their second one, and so on.

    At most `RUN_ROWS` rows are in memory while rows are added, and about as many while they are read.
    """

    def __init__(self, folder: Path, num_columns: int, *, unique: bool = False):
        """folder: of the temporary file, which is removed with the object. unique: drop rows that equal another."""
        self._folder, self._num_columns, self._unique = folder, num_columns, unique
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  open as long as the object
        self._runs: list[int] = []  # the number of rows of each run in the file
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self._is_sorted = False  # of `_pending`

    def add(self, *columns: np.ndarray) -> None:
        """Adds n rows: an array of integers from 0 on, [n], for each column. Raises OSError."""
        self._is_sorted = False
        rows = np.stack([column.astype(np.uint64) for column in columns], axis=1)
        for start in range(0, len(rows), RUN_ROWS):
            self._pending.append(rows[start : start + RUN_ROWS])
            self._num_pending += len(self._pending[-1])
            if self._num_pending >= RUN_ROWS:
                self._write_run()

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the rows in their order, uint64 [n, num_columns] each. May be called again, and after further rows.

        Raises OSError.
        """
        if not self._runs:
            if not self._is_sorted:
                self._pending, self._is_sorted = [self._sorted(self._pending)], True
            yield from (rows for rows in self._pending if len(rows))
            return
        if self._pending:
            self._write_run()
        while len(self._runs) > _MERGED_RUNS:
            self._merge_into_longer_runs()
        yield from self._merged(range(len(self._runs)))

    def _merge_into_longer_runs(self) -> None:
        merged, runs = tempfile.TemporaryFile(dir=self._folder), []  # noqa: SIM115  as in __init__
        for start in range(0, len(self._runs), _MERGED_RUNS):
            runs.append(0)
            for rows in self._merged(range(start, min(start + _MERGED_RUNS, len(self._runs)))):
                merged.write(rows.tobytes())
                runs[-1] += len(rows)
        self._file.close()
        self._file, self._runs = merged, runs

    def _sorted(self, parts: list[np.ndarray]) -> np.ndarray:
        rows = np.concatenate([np.zeros((0, self._num_columns), np.uint64), *parts])
        rows = rows[np.lexsort(rows.T[::-1])]
        if self._unique and len(rows):
            rows = rows[np.concatenate([[True], (rows[1:] != rows[:-1]).any(axis=1)])]
        return rows

    def _write_run(self) -> None:
        rows = self._sorted(self._pending)
        self._pending, self._num_pending = [], 0
        self._file.seek(0, 2)
        self._file.write(rows.tobytes())
        self._runs.append(len(rows))

    def _merged(self, runs: range) -> Iterator[np.ndarray]:
        """Yields the rows of some runs in their order."""
        size = max(RUN_ROWS // len(runs), 1)
        ends = np.cumsum(self._runs)[runs.start : runs.stop]
        positions = ends - self._runs[runs.start : runs.stop]
        buffers = [np.zeros((0, self._num_columns), np.uint64)] * len(runs)
        before: np.ndarray | None = None
        while True:
            for run, buffer in enumerate(buffers):
                if not len(buffer) and positions[run] < ends[run]:
                    buffers[run] = self._read(int(positions[run]), int(min(size, ends[run] - positions[run])))
                    positions[run] += len(buffers[run])
            # Rows up to the least of the last rows in memory cannot follow a row that is still in the file.
            last = [tuple(buffers[run][-1].tolist()) for run in range(len(buffers)) if positions[run] < ends[run]]
            counts = [_rows_up_to(buffer, min(last)) if last else len(buffer) for buffer in buffers]
            rows = self._sorted([buffer[:count] for buffer, count in zip(buffers, counts, strict=True)])
            if not len(rows):
                return
            buffers = [buffer[count:] for buffer, count in zip(buffers, counts, strict=True)]
            if self._unique and before is not None and (rows[0] == before).all():
                rows = rows[1:]
            if len(rows):
                before = rows[-1].copy()
                yield rows

    def _read(self, position: int, count: int) -> np.ndarray:
        row_bytes = 8 * self._num_columns
        self._file.seek(position * row_bytes)
        return np.frombuffer(self._file.read(count * row_bytes), np.uint64).reshape(-1, self._num_columns)


def _rows_up_to(rows: np.ndarray, bound: tuple[int, ...]) -> int:
    """Returns how many of the sorted `rows` are not greater than the row `bound`."""
    up_to = np.ones(len(rows), bool)
    for column, value in reversed(list(zip(rows.T, bound, strict=True))):
        limit = np.uint64(value)
        up_to = (column < limit) | ((column == limit) & up_to)
    return int(np.count_nonzero(up_to))
