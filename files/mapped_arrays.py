"""Arrays with a row for each document, which are memory maps of temporary files unless they are small.

The pages of a mapped file are no memory of the process: the system writes them to the disk, and drops them, where
memory is short. The files have no names, so that they are gone with the arrays, also if the process is killed.
Processes that are forked have the same arrays.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from contract.errors import ConfigError
from files.paths import reason, reason_and_remedy

IN_MEMORY_BYTES = 1 << 20  # of an array without a file, at most
BLOCK = 1 << 16  # rows that are computed at once
_ZEROS = 1 << 20  # bytes that are written at once
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def new_array(folder: Path, count: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns zeros [count] of `dtype`, to be written: in a temporary file if they have more than IN_MEMORY_BYTES.

    folder: of the file, which is in the folder of temporary files where `folder` cannot be written.

    Raises ConfigError where the file cannot be made.
    """
    num_bytes = count * np.dtype(dtype).itemsize
    if num_bytes <= IN_MEMORY_BYTES:
        return np.zeros(count, dtype)
    try:
        return _mapped(folder, num_bytes, dtype)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise _no_file(folder, num_bytes, error, "set data.cache_dir to a folder on another one") from None
    folder = Path(tempfile.gettempdir())
    try:
        return _mapped(folder, num_bytes, dtype)
    except OSError as error:
        raise _no_file(folder, num_bytes, error, "set TMPDIR to a folder on another one") from None


def blocks(count: int) -> Iterator[slice]:
    """Yields the slices of `count` rows, in order, that are computed at once."""
    for begin in range(0, count, BLOCK):
        yield slice(begin, min(begin + BLOCK, count))


def sums(values_of: Callable[[slice], np.ndarray], count: int, folder: Path) -> np.ndarray:
    """Returns the cumulative sums, int64 [count], of integers. values_of: the integers of a block, int64 [n]."""
    result, total = new_array(folder, count, np.int64), 0
    for block in blocks(count):
        np.cumsum(values_of(block), out=result[block])
        result[block] += total
        total = int(result[block.stop - 1])
    return result


def select(values: np.ndarray, is_chosen: Callable[[slice], np.ndarray], folder: Path) -> np.ndarray:
    """Returns the values [n] that are chosen, in their order. is_chosen: of a block, bool [n]."""
    count = sum(int(np.count_nonzero(is_chosen(block))) for block in blocks(len(values)))
    result, end = new_array(folder, count, values.dtype), 0
    for block in blocks(len(values)):
        chosen = values[block][is_chosen(block)]
        result[end : end + len(chosen)] = chosen
        end += len(chosen)
    return result


def allocate(file: IO[bytes], num_bytes: int) -> None:
    """Gives an empty file `num_bytes` zeros, all of which the disk has. Raises OSError.

    Without room on the disk, a write to a memory map of a sparse file would end the process (SIGBUS).
    """
    try:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    except (AttributeError, OSError) as error:  # macOS, and file systems such as ZFS, have no such call
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        for begin in range(0, num_bytes, _ZEROS):
            file.write(bytes(min(_ZEROS, num_bytes - begin)))
        file.flush()
        os.fsync(file.fileno())


def _mapped(folder: Path, num_bytes: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    with tempfile.TemporaryFile(dir=folder) as file:
        allocate(file, num_bytes)
        return np.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype)


def _no_file(folder: Path, num_bytes: int, error: OSError, remedy: str) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why = f"{reason(error)}: free space on that disk, or {remedy}"
    else:
        why = reason_and_remedy(error)
    return ConfigError(
        f"a temporary file of {num_bytes:,} bytes for the order of the documents cannot be made in {folder}: {why}"
    )
