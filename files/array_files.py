"""Arrays in files that are written from their beginning to their end, without being in memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

_READ_ROWS = 1 << 18


class ArrayFile:
    """A .npy file, to which rows are appended."""

    def __init__(self, path: Path, dtype: np.typing.DTypeLike, row_shape: tuple[int, ...] = ()):
        """Creates the file, of rows of `row_shape`. Raises OSError."""
        self._dtype, self._row_shape, self._num_rows = np.dtype(dtype), row_shape, 0
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Appends rows, [n, *row_shape]. Raises OSError with its reason, which np.save omits where the disk is full."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._num_rows += len(rows)

    def close(self) -> None:
        """Writes the number of rows into the header, and closes the file. May be called again."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def __enter__(self) -> "ArrayFile":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _write_header(self) -> None:
        # NumPy's headers have space for a first dimension of any length, so that files can grow.
        shape = (self._num_rows, *self._row_shape)
        fields = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, fields)


def read_blocks(path: Path) -> Iterator[np.ndarray]:
    """Yields the rows of a .npy file of one dimension in order, a bounded number at a time. Raises OSError."""
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        _, _, dtype = np.lib.format.read_array_header_1_0(file)
        while len(block := np.fromfile(file, dtype, _READ_ROWS)):
            yield block
