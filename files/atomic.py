"""Files and folders that appear whole: a reader sees the old or the new ones, whenever the writer is killed."""

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from contract.errors import ConfigError
from files.paths import check_local, exists, in_bucket, read_text, reason_and_remedy, write_object

UPLOAD_SECONDS = 10.0


def write_bytes(path: str | os.PathLike, contents: bytes, *, replace: bool = True) -> None:
    """Writes the file `path` and waits until the disk or the bucket has it. Several processes may write at once.

    Raises FileExistsError if the file exists and `replace` is False; in a bucket, two processes that create the same
    file at the same moment may both succeed.
    """
    if in_bucket(path):
        if not replace and exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        write_object(path, contents)
        return
    temporary = f"{os.fspath(path)}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
            return
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links, such as exFAT and some network mounts
            open(path, "xb").close()
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_text(path: str | os.PathLike, text: str, *, replace: bool = True) -> None:
    """Writes `text` to the file `path` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"), replace=replace)


def write_json(path: str | os.PathLike, fields: Mapping[str, Any], *, replace: bool = True) -> None:
    """Writes nested mappings of JSON values as `write_text` does. Tuples become lists."""
    write_text(path, json.dumps(fields, indent=2) + "\n", replace=replace)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Returns the value of a JSON text. Raises ValueError for any other text, and for one that is nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | os.PathLike, *, remedy: str = "delete it to make it again") -> dict[str, Any]:
    """Returns what `write_json` wrote. Raises ConfigError, with a remedy, for a file that is not such."""
    try:
        fields = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}: {remedy}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is damaged: it has no fields: {remedy}")
    return fields


class GrowingObject:
    """A file in a bucket, which has no appends: the whole object is written again, at most every UPLOAD_SECONDS.

    What has not been uploaded is lost with a killed process. A reader sees a beginning of the file, never a part of a
    `write`. All methods raise OSError.

    Args:
      path: of the file in a bucket.
      contents: what the file has already.
    """

    def __init__(self, path: str, contents: bytes = b""):
        self._path, self._contents, self._uploaded = path, bytearray(contents), len(contents)
        self._next = time.monotonic() + UPLOAD_SECONDS

    def write(self, data: bytes) -> int:
        """Adds bytes, and returns their number."""
        self._contents += data
        if time.monotonic() >= self._next:
            self.upload()
        return len(data)

    def flush(self) -> None:
        """Does nothing: tensorboardX calls this method after every event."""

    def upload(self) -> None:
        """Returns once the bucket has all bytes."""
        if len(self._contents) > self._uploaded:
            write_object(self._path, bytes(self._contents))
            self._uploaded, self._next = len(self._contents), time.monotonic() + UPLOAD_SECONDS

    def close(self) -> None:
        """Uploads what is left. May be called twice."""
        self.upload()


def open_growing(path: str, contents: bytes) -> IO[bytes] | GrowingObject:
    """Writes `contents` to the file `path`, and returns the file, open for more.

    The file has no buffer, which would be written again when the file is closed after a failed write.
    """
    write_bytes(path, contents)
    return GrowingObject(path, contents) if in_bucket(path) else open(path, "ab", buffering=0)


_PICTURES = (".svg", ".png", ".pdf", ".html")  # which commands write, and write again


def check_output(path: str, flag: str = "--out") -> None:
    """Raises ConfigError if a file cannot be written at `path`, the value of `flag`, or would replace a run's file."""
    check_local(path, f"{flag}={path}")
    destination = _destination(path)
    is_file = os.path.isfile(destination) or not os.path.exists(destination)
    if not is_file or not os.access(os.path.dirname(destination), os.W_OK):
        raise ConfigError(f"{flag}={path} cannot be written: name a file in an existing folder")
    if os.path.exists(destination) and not destination.lower().endswith(_PICTURES):
        for folder in Path(destination).parents:
            if (folder / "config.json").is_file() and (folder / "checkpoints").is_dir():
                raise ConfigError(f"{flag}={path} would replace a file of the run {folder}: name another file")


@contextlib.contextmanager
def writing(path: str, flag: str = "--out", *, binary: bool = False) -> Iterator[Any]:
    """Yields a file that is renamed to `path`, the value of `flag`, at the end, and removed after an exception.

    The text is UTF-8. Raises ConfigError where the file cannot be written, and BrokenPipeError.
    """
    destination = _destination(path)
    # A random name, which no file of the user has, nor one of another command that writes to the same path.
    temporary = os.path.join(os.path.dirname(destination), f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb" if binary else "x", encoding=None if binary else "utf-8") as file:
            yield file
        os.replace(temporary, destination)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{flag}={path} cannot be written: {reason_and_remedy(error)}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


def check_new_folder(path: str | os.PathLike, flag: str) -> None:
    """Raises ConfigError unless `atomic_folder` with the same arguments can make `path`."""
    target, where = Path(os.path.expanduser(path)), f"{flag}={path}"
    if not str(path):
        raise ConfigError(f"{flag} is empty: name a folder")
    check_local(path, where)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"{where} is a file or a link: name a new folder")
    if target.is_dir() and os.listdir(target):
        raise ConfigError(f"{where} exists and is not empty: name a new folder")


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike, flag: str) -> Iterator[Path]:
    """Yields an empty temporary folder next to `path`, which gets the name `path` at the end of the context.

    An error within the context removes the temporary folder, and leaves what is at `path` as it was.

    Args:
      path: does not exist, or is an empty folder. Folders above it are made.
      flag: the flag that names `path`, for messages.

    Raises ConfigError where `path` exists otherwise, or where a file cannot be written.
    """
    check_new_folder(path, flag)
    target = Path(os.path.abspath(os.path.expanduser(path)))
    building = target.with_name(f".{target.name}.new-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        yield building
        check_new_folder(path, flag)  # it may have been made since
        building.rename(target)
    except OSError as error:
        raise ConfigError(f"{flag}={path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _destination(path: str) -> str:
    """Returns where the output is written, with links followed."""
    return os.path.realpath(os.path.expanduser(path))
