"""A folder that appears under its name with all of its contents, or does not appear."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from contract.errors import ConfigError
from files.storage import check_local


def check_new_folder(path: str | os.PathLike, flag: str, *, replaces: Callable[[Path], str] | None = None) -> None:
    """Raises ConfigError unless `new_folder` with the same arguments can make `path`."""
    try:
        _check(path, flag, replaces)
    except OSError as error:
        raise ConfigError(f"{flag}={path} cannot be read: {error.strerror or error}") from error


def _check(path: str | os.PathLike, flag: str, replaces: Callable[[Path], str] | None) -> None:
    """See check_new_folder. Raises OSError too, for a folder that may not be read."""
    target = Path(path)
    where = f"{flag}={path}"
    if not str(path):
        raise ConfigError(f"{flag} is empty: name a folder")
    check_local(str(path), where)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"{where} is a file or a link: name a new folder")
    if target.is_dir() and os.listdir(target):
        reason = "exists and is not empty: name a new folder" if replaces is None else replaces(target)
        if reason:
            raise ConfigError(f"{where} {reason}")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike, flag: str, *, replaces: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """Yields an empty temporary folder next to `path`, which gets the name `path` at the end of the context.

    An error within the context removes the temporary folder, and leaves what is at `path` as it was.

    Args:
      path: does not exist, is an empty folder, or is a folder that `replaces` accepts. Folders above it are made.
      flag: the flag that names `path`, for messages.
      replaces: an existing folder that is not empty -> why it may not be replaced, and what to do; "" if it may. None:
        no such folder may be replaced.

    Raises ConfigError where `path` exists otherwise, or where a file cannot be written.
    """
    check_new_folder(path, flag, replaces=replaces)
    target = Path(os.path.abspath(path))
    names = [target.with_name(f".{target.name}.{kind}-{uuid.uuid4().hex[:8]}") for kind in ("new", "old")]
    building, replaced = names
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        yield building
        check_new_folder(path, flag, replaces=replaces)  # it may have been made since
        if target.exists():
            target.rename(replaced)
        building.rename(target)
    except OSError as error:
        raise ConfigError(f"{flag}={path} cannot be written: {error.strerror or error}") from error
    finally:
        if replaced.exists() and not target.exists():  # after an error or a signal between the two renames
            replaced.rename(target)
        for folder in names:
            shutil.rmtree(folder, ignore_errors=True)
