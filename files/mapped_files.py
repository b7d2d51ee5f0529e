"""One line where a file that is mapped into memory was truncated while the program ran, in place of a bus error."""

import ctypes
import os
import signal
from collections.abc import Mapping

_SIZES: dict[str, int] = {}  # of the files that the program has mapped
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


def remember_mapped(folder: str | os.PathLike, sizes: Mapping[str, int]) -> None:
    """Remembers the files of a folder that are mapped into memory: name -> bytes."""
    _SIZES.update({os.path.join(folder, name): size for name, size in sizes.items()})


def end_at_truncated_files() -> None:
    """Makes a program print one line and exit with status 1 when it reads the missing part of a remembered file.

    Such a read is a signal, SIGBUS, which ends a program with no message; a handler of Python's signal module would not
    run, because the read never returns. A file that was deleted stays readable on a local disk. On a network file
    system it may be a SIGBUS too. If no remembered file has changed, the signal ends the program as before.
    """
    ctypes.CDLL(None).signal(int(signal.SIGBUS), _end)


@_Handler
def _end(number: int) -> None:
    """Handles SIGBUS, in the thread that read. Python code may run: NumPy reads maps with the thread's state intact."""
    changed = [path for path, size in _SIZES.items() if _size(path) != size]
    if not changed:
        ctypes.CDLL(None).signal(number, None)  # SIG_DFL: the read is made again, and ends the program
        return
    line = f"error: {changed[0]} was truncated while it was read: delete its folder, and run the same command again\n"
    try:
        os.write(2, line.encode(errors="backslashreplace"))
    finally:
        os._exit(1)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
