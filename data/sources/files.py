"""Finding text files, here and in buckets, and opening them, compressed or not."""

import errno
import functools
import glob
import hashlib
import io
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from contract.errors import ConfigError
from data.sources.config import DEFAULT_CACHE_DIR
from files.paths import absolute, check_access, copy_file, find_objects, in_bucket, read_bytes, version_of

# The end of a file's name -> the codec of PyArrow. The decompressors of Python's standard library ignore what follows
# the first stream of a file in some formats.
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_READ_AHEAD = 1 << 18  # bytes
_REQUESTS = 16  # of a bucket at a time


def find_files(data_path: str, field: str = "data.path") -> list[str]:
    """Absolute paths of the files that `data_path` (files, folders or globs, separated by commas) names, each once.

    They may be in buckets, as in gs://bucket/folder/*.txt.

    A folder names all its regular files that are not hidden, at any depth, sorted. Files that exist but cannot be
    opened are included, so that reading them is an error.

    field: the config field that `data_path` is the value of, for messages. Raises ConfigError for a part of `data_path`
    that names no file.
    """
    paths: dict[str, None] = {}
    for pattern in data_path.split(","):
        if not pattern.strip():
            raise ConfigError(f"{field}={data_path!r} has nothing before or after a comma: remove the comma")
        where = f"{field}={pattern.strip()!r}"
        check_access(pattern.strip(), where)
        found = find_objects(pattern.strip()) if in_bucket(pattern.strip()) else _find(pattern.strip(), where)
        if not found:
            raise ConfigError(
                f"{where} contains no regular file (hidden files are ignored): name files, folders or globs"
            )
        paths |= dict.fromkeys(found)
    return list(paths)


def _find(pattern: str, where: str) -> list[str]:
    expanded = expand_home(pattern, where)
    if os.path.exists(expanded):
        found = [expanded]
    elif glob.has_magic(expanded):
        found = sorted(glob.glob(expanded, recursive=True))
        if not found:
            raise ConfigError(f"{where} matches no file: correct the pattern")
    else:
        raise ConfigError(f"{where} does not exist: name files, folders or globs, separated by commas")
    files = [file for path in found for file in (_walk(path, where) if os.path.isdir(path) else [path])]
    return [os.path.abspath(file) for file in files if os.path.isfile(file) or not os.path.exists(file)]


def _walk(folder: str, where: str) -> list[str]:
    """The paths of all files in `folder` that are not hidden, sorted. Follows links, and visits no folder twice."""

    def refuse(error: OSError) -> None:
        raise ConfigError(f"{where}: {error.filename} cannot be listed ({error.strerror}): change its permissions")

    files: list[str] = []
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if os.path.realpath(parent) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    return sorted(files)


def expand_home(path: str, where: str) -> str:
    """Returns `path` with the home folder for a leading "~" or "~user".

    where: the config field or flag with its value, for the message. Raises ConfigError where the home folder is
    unknown: no such user, or a user of a container without an entry in /etc/passwd and without HOME.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") and not os.path.lexists(expanded):
        raise ConfigError(
            f"{where}: the home folder {expanded.split('/')[0]} is unknown: write the whole path, or set HOME"
        )
    return expanded


def local_cache(cache_dir: str) -> Path:
    """Returns the folder of this machine for token stores: `data.cache_dir`, or that of copies if it is in a bucket."""
    folder = f"{DEFAULT_CACHE_DIR}/buckets/{_hash(absolute(cache_dir))}" if in_bucket(cache_dir) else cache_dir
    return Path(expand_home(folder, f"data.cache_dir={cache_dir!r}"))


def local_copies(addresses: Sequence[str], folder: Path) -> dict[str, tuple[str, str]]:
    """Returns address -> (path of a copy in `folder`, version) for objects of buckets. Raises OSError.

    A copy that has the object's version is not transferred again. Older copies of an object are deleted.
    """
    if not addresses:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return dict(zip(addresses, threads.map(functools.partial(_local_copy, folder), addresses), strict=True))


def _local_copy(folder: Path, address: str) -> tuple[str, str]:
    version = version_of(address)
    path = folder / f"{_hash(address)}-{_hash(version)}"
    if not path.exists():
        temporary = folder / f"{path.name}.{uuid.uuid4().hex}.tmp"
        try:
            copy_file(address, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        for old in folder.glob(f"{_hash(address)}-*"):
            if old != path and old.suffix != ".tmp":
                old.unlink(missing_ok=True)
    return str(path), version


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_regular_file(path: str | os.PathLike) -> bytes:
    """Returns the contents of a file. Raises OSError, also for a FIFO, a socket or a device, which may have no end."""
    if in_bucket(path):
        return read_bytes(path)
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, and no regular file", os.fspath(path))
    return Path(path).read_bytes()


def describe_file(path: str) -> tuple[str, int, int]:
    """Path, size in bytes and modification time in ns, which represent the file's contents in a fingerprint.

    Size and time are -1 for a file that cannot be accessed.
    """
    try:
        info = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, info.st_size, info.st_mtime_ns


def is_compressed(name: str) -> bool:
    """Returns whether a file's name ends in .gz, .zst or .bz2."""
    return os.path.splitext(name)[1] in _CODECS


def open_contents(path: str, name: str = "") -> BinaryIO:
    """Opens a file to read its contents, which are decompressed if its name says so.

    name: of the file, where `path` is a copy. Raises OSError, also while the contents are read: for damaged and for
    incomplete data.
    """
    codec = _CODECS.get(os.path.splitext(name or path)[1])
    if codec is None:
        return open(path, "rb")
    import pyarrow  # a second of imports

    if not os.path.getsize(path):
        raise OSError("the file is empty")
    return io.BufferedReader(pyarrow.input_stream(path, compression=codec), _READ_AHEAD)


def text_digest(text: bytes) -> int:
    """64 bits of a hash of `text`."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def file_digest(path: str, name: str = "") -> int:
    """`text_digest` of a file's contents, decompressed: see `open_contents`. Raises OSError."""
    with open_contents(path, name) as file:
        return int.from_bytes(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest())


def decoded_lines(file: BinaryIO) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, with their ends. Raises UnicodeDecodeError with the place in the file."""
    place = 0
    for line in file:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            error.start += place
            raise
        place += len(line)


def split_text(lines: Iterable[str], document_per: str) -> Iterator[str]:
    """Cuts the lines of a text, which end in "\\n" or "\\r\\n" or were cut there, into documents.

    document_per: "line": the lines, without their line ends. "paragraph": the blocks between blank lines, with lines
    joined by "\\n".
    """
    block: list[str] = []
    for line in lines:
        line = line.rstrip("\r\n")
        if document_per == "line":
            yield line
        elif line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)
