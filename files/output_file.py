"""Files that a command writes where a flag says: whole, or not at all."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

from contract.errors import ConfigError
from files.os_errors import reason_and_remedy
from files.storage import check_local


def check_output(path: str, flag: str = "--out") -> None:
    """Raises ConfigError if a file cannot be written at `path`, the value of `flag`."""
    check_local(path, f"{flag}={path}")
    destination, replaces = _destination(path)
    folder = os.path.dirname(destination)
    is_writable = os.path.isdir(folder) and os.access(folder if replaces else destination, os.W_OK)
    if not is_writable or os.path.isdir(destination):
        raise ConfigError(f"{flag}={path} cannot be written: name a file in an existing folder")


def is_replaced(path: str) -> bool:
    """Returns whether `writing` replaces what is at `path`, so that the last of several writes remains."""
    return _destination(path)[1]


@contextlib.contextmanager
def writing(path: str, flag: str = "--out", *, binary: bool = False) -> Iterator[Any]:
    """Yields a file that is renamed to `path`, the value of `flag`, at the end, and removed after an exception.

    The text is UTF-8. A device, a pipe or a socket, such as /dev/null, is not replaced by a file: what is written goes
    there at once. Raises ConfigError where the file cannot be written, and BrokenPipeError.
    """
    destination, replaces = _destination(path)
    # A random name, which no file of the user has, nor one of another command that writes to the same path.
    name = os.path.join(os.path.dirname(destination), f".{uuid.uuid4().hex}.tmp") if replaces else destination
    try:
        mode, encoding = "x" if replaces else "w", None if binary else "utf-8"
        with open(name, mode + "b" * binary, encoding=encoding) as file:
            yield file
        if replaces:
            os.replace(name, destination)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{flag}={path} cannot be written: {reason_and_remedy(error)}") from error
    finally:
        if replaces:
            with contextlib.suppress(FileNotFoundError):
                os.remove(name)


def _destination(path: str) -> tuple[str, bool]:
    """Returns where the output is written, with links followed, and whether a new file is renamed to this path."""
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.islink(path) and path.startswith(("/dev/", "/proc/")):  # /dev/stdout, an open file of this process
        return path, False
    path = os.path.realpath(path)
    return path, os.path.isfile(path) or not os.path.exists(path)
