"""Files and folders that may be in a bucket: every path is one of this machine, or an address gs:// or s3://.

Writing is atomic: a reader sees the old contents or the new ones, whenever the writer is killed. A folder in a bucket
exists while it has files.

All functions raise OSError, whose filename is the path.
"""

import contextlib
import errno
import os
import re
import shutil
import uuid

from contract.errors import ConfigError
from files import buckets
from files.buckets import in_bucket

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):/")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # all characters that end a line are among these


def check_path(path: str, where: str) -> None:
    """Raises ConfigError for an address that is not of a bucket, such as hdfs://host/x, gs:/bucket/x or gs://.

    No such path is written as a folder of this machine. Also raises ConfigError for an address of a bucket with a line
    break or another control character, or with a component "." or "..".

    where: the flag or config field with its value, for messages.
    """
    address = os.fspath(path)
    match = _SCHEME.match(address)
    if match is None:
        return
    if _CONTROL.search(address):
        raise ConfigError(f"{_in_one_line(where)} has a control character, such as a line break: correct the address")
    if in_bucket(address):
        dots = buckets.dots_in(address)
        if dots:
            raise ConfigError(
                f"{where} has the component {dots!r}, which has no meaning in a bucket: write the address without it"
            )
        return
    if match[1] in buckets.SCHEMES:
        raise ConfigError(f"{where} names no bucket: write {match[1]}://BUCKET/FOLDER")
    raise ConfigError(f"{where} has the scheme {match[1]}: use a folder of this machine, or gs:// or s3:// of a bucket")


def check_local(path: str, where: str) -> None:
    """Raises ConfigError for an address, also that of a bucket, where only a path of this machine can be used."""
    if _SCHEME.match(os.fspath(path)):
        raise ConfigError(
            f"{_in_one_line(where)} must be a path on this machine: write to a folder here, and copy it to the bucket"
        )


def check_access(path: str, where: str) -> None:
    """Raises ConfigError as `check_path` does, and where the bucket does not exist or gives this user no access."""
    check_path(path, where)
    if in_bucket(path):
        buckets.check_access(path, where)


def check_writable(folder: str, where: str) -> None:
    """Raises ConfigError as `check_access` does, and where this user cannot write in a bucket."""
    check_path(folder, where)
    if in_bucket(folder):
        buckets.check_writable(folder, where)


def absolute(path: str | os.PathLike) -> str:
    """Returns the absolute path of a file or folder."""
    return buckets.normalized(os.fspath(path)) if in_bucket(path) else os.path.abspath(path)


def real_path(path: str | os.PathLike) -> str:
    """Returns the absolute path of a file or folder, with links followed."""
    return buckets.normalized(os.fspath(path)) if in_bucket(path) else os.path.realpath(path)


def exists(path: str | os.PathLike) -> bool:
    """Returns whether `path` is a file or a folder."""
    return is_file(path) or is_folder(path) if in_bucket(path) else os.path.exists(path)


def is_file(path: str | os.PathLike) -> bool:
    """Returns whether `path` is a file."""
    return buckets.exists(os.fspath(path)) if in_bucket(path) else os.path.isfile(path)


def is_folder(path: str | os.PathLike) -> bool:
    """Returns whether `path` is a folder."""
    return bool(buckets.keys(os.fspath(path))) if in_bucket(path) else os.path.isdir(path)


def make_folder(path: str | os.PathLike) -> None:
    """Makes the folder `path` unless it exists; a bucket needs none."""
    if not in_bucket(path):
        os.makedirs(path, exist_ok=True)


def list_names(folder: str | os.PathLike) -> list[str]:
    """Returns the names of the files and folders in `folder`. Raises FileNotFoundError if it does not exist."""
    if not in_bucket(folder):
        return os.listdir(folder)
    root = buckets.normalized(os.fspath(folder)) + "/"
    names = {key.removeprefix(root).partition("/")[0] for key in buckets.keys(os.fspath(folder))}
    if not names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(folder))
    return sorted(names)


def read_bytes(path: str | os.PathLike) -> bytes:
    """Returns the contents of a file. Raises FileNotFoundError if it does not exist."""
    if in_bucket(path):
        return buckets.read(os.fspath(path))
    with open(path, "rb") as file:
        return file.read()


def read_text(path: str | os.PathLike, *, errors: str = "strict") -> str:
    """Returns the contents of a file in UTF-8, with "\\n" at line ends."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def write_bytes(path: str | os.PathLike, contents: bytes, *, replace: bool = True) -> None:
    """Writes the file `path` and waits until the disk or the bucket has it. Several processes may write at once.

    Raises FileExistsError if the file exists and `replace` is False.
    """
    if in_bucket(path):
        _write_object(os.fspath(path), contents, replace)
        return
    temporary = f"{os.fspath(path)}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def remove(path: str | os.PathLike) -> None:
    """Deletes a file."""
    if in_bucket(path):
        buckets.write(os.fspath(path), None)
    else:
        os.unlink(path)


def rename_folder(folder: str, target: str) -> None:
    """Renames a folder. In a bucket, copies its files and then deletes them: an interruption leaves both folders."""
    if not in_bucket(folder):
        os.rename(folder, target)
        return
    root, new = buckets.normalized(folder) + "/", buckets.normalized(target) + "/"
    for key in buckets.keys(folder):
        buckets.write(new + key.removeprefix(root), buckets.read(key))
    buckets.remove_all(folder)


def copy_folder(folder: str, target: str) -> None:
    """Writes the files of a local folder, at any depth, to the folder `target`."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            copy = os.path.join(target, os.path.relpath(path, folder))
            make_folder(os.path.dirname(copy))
            write_bytes(copy, read_bytes(path))


def remove_folder(path: str | os.PathLike) -> None:
    """Deletes a folder with all its files."""
    if in_bucket(path):
        buckets.remove_all(os.fspath(path))
    else:
        shutil.rmtree(path)


def _write_object(path: str, contents: bytes, replace: bool) -> None:
    if replace:
        buckets.write(path, contents)
        return
    found, version = buckets.read_version(path)
    if found is not None or buckets.write(path, contents, version=version) is None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _in_one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
