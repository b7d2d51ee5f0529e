"""Finding text files, and reading documents from them."""

import codecs
import errno
import glob
import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from contract.errors import ConfigError
from data.sources.compressed import open_contents
from files.paths import absolute, check_access, find_objects, in_bucket, read_bytes


def find_files(data_path: str, field: str = "data.path") -> list[str]:
    """Absolute paths of the files that `data_path` (files, folders or globs, separated by commas) names, each once.

    They may be in buckets, as in gs://bucket/folder/*.txt.

    A folder names all its regular files that are not hidden, at any depth, sorted. Files and folders that exist but
    cannot be opened are included, so that reading them is an error.

    field: the config field that `data_path` is the value of, for messages. Raises ConfigError for a part of `data_path`
    that names no file.
    """
    paths: dict[str, None] = {}
    for pattern in data_path.split(","):
        _check_commas(pattern, data_path, field)
        found = _resolve(pattern.strip(), field)
        paths |= dict.fromkeys(path if in_bucket(path) else os.path.abspath(path) for path in found)
    return list(paths)


def expand_home(path: str, where: str) -> str:
    """Returns `path` with the home folder for a leading "~" or "~user".

    where: the config field or flag with its value, for the message.

    Raises ConfigError where the home folder is unknown: no such user, or a user of a container without an entry in
    /etc/passwd and without HOME.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") and not os.path.lexists(expanded):
        raise ConfigError(
            f"{where}: the home folder {expanded.split('/')[0]} is unknown: write the whole path, or set HOME"
        )
    return expanded


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


def text_digest(text: bytes) -> int:
    """64 bits of a hash of `text`."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def file_digest(path: str, name: str = "") -> int:
    """`text_digest` of a file's contents, decompressed: see `open_contents`. Raises OSError."""
    with open_contents(path, name) as file:
        return int.from_bytes(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest())


def read_documents(path: str, document_per: str, name: str = "") -> Iterator[str]:
    """Yields the documents of a UTF-8 file, cut as by `split_text`, empty documents included.

    name: of the file, as in `open_contents`. Raises OSError or UnicodeDecodeError, always before the first document.
    """
    if document_per == "file":
        with open_contents(path, name) as file:
            yield file.read().decode("utf-8")
        return
    with open_contents(path, name) as file:
        check_utf8(file)
    with io.TextIOWrapper(open_contents(path, name), encoding="utf-8", newline="\n") as lines:
        yield from split_lines(lines, document_per)


def split_text(text: str, document_per: str) -> Iterable[str]:
    """Cuts a text into documents.

    document_per: "file": the whole text, unchanged. "line": the lines, without their line ends. "paragraph": the blocks
    between blank lines, with lines joined by "\\n". Only "\\n" and "\\r\\n" end a line.
    """
    return (text,) if document_per == "file" else split_lines(text.split("\n"), document_per)


def split_lines(lines: Iterable[str], document_per: str) -> Iterator[str]:
    """Yields the lines, without their line ends, or the paragraphs of the lines of a text, as `split_text` does."""
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


def check_utf8(file: BinaryIO) -> None:
    """Raises UnicodeDecodeError for a file that is not UTF-8, before any of its documents is used."""
    decoder, position = codecs.getincrementaldecoder("utf-8")(), 0
    while True:
        chunk = file.read(1 << 24)
        pending = len(decoder.getstate()[0])  # bytes of a character that the chunk before has begun
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            error.start += position - pending
            raise
        if not chunk:
            return
        position += len(chunk)


def _check_commas(part: str, data_path: str, field: str) -> None:
    """Raises ConfigError for a `part` of `data_path` that is blank, or that is missing where the whole exists."""
    where = f"{field}={data_path!r}"
    if "," in data_path and not part.strip():
        place = "ends in a comma" if data_path.rstrip().endswith(",") else "has nothing before a comma"
        raise ConfigError(f"{where} {place}: remove the comma")
    whole, alone = (os.path.expanduser(path) for path in (data_path, part.strip()))
    if "," in data_path and not in_bucket(data_path) and os.path.exists(whole) and not os.path.exists(alone):
        raise ConfigError(f"{where} exists, but a comma separates paths: rename it, or write ? in place of each comma")


def _resolve(pattern: str, field: str) -> list[str]:
    where = f"{field}={pattern!r}"
    check_access(pattern, where)
    if in_bucket(pattern):
        return _in_bucket(pattern, where)
    expanded = expand_home(pattern, where)
    if os.path.exists(expanded):
        found = [expanded]
    elif glob.has_magic(expanded):
        found = sorted(glob.glob(expanded, recursive=True))
        if not found:
            raise ConfigError(f"{where} matches no file: correct the pattern")
    else:
        raise ConfigError(f"{where} does not exist: name files, folders or globs, separated by commas")
    files = [file for path in found for file in (_walk(path) if os.path.isdir(path) else [path])]
    files = [file for file in files if _is_regular_or_broken(file)]
    if not files:
        raise ConfigError(f"{where} contains no regular file (hidden files are ignored): name a file or another folder")
    return files


def _in_bucket(pattern: str, where: str) -> list[str]:
    """Returns the files in a bucket that `pattern` names (files/paths.py, find_objects)."""
    found = find_objects(pattern)
    if not found:
        raise ConfigError(f"{where} names no file in that bucket: name files, folders or globs, separated by commas")
    for key in found:
        if absolute(key) != key:
            raise ConfigError(f"{where} names the object {key!r}, which has two slashes in a row: rename this object")
    return found


def _walk(folder: str) -> list[str]:
    """The paths of all files in `folder` that are not hidden, sorted, and of folders that cannot be listed.

    Follows links to folders, and visits no folder twice.
    """
    unlisted: list[str] = []
    files: list[str] = []
    seen: set[str] = set()
    walk = os.walk(folder, onerror=lambda error: unlisted.append(error.filename), followlinks=True)
    for parent, folders, names in walk:
        if os.path.realpath(parent) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    return sorted(files + unlisted)


def _is_regular_or_broken(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)  # only folders that could not be listed reach this line
