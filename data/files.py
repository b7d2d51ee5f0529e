"""Text files: finding them, and reading documents out of them."""

import codecs
import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from contract.errors import ConfigError


def find_files(data_path: str) -> list[str]:
    """Absolute paths of the files that `data.path` (files, folders or globs, separated by commas) names, each once.

    A folder stands for all its regular files that are not hidden, at any depth, sorted. What is there but cannot be
    opened is in the list too, to be met when it is read. Raises ConfigError for a part that names no file.
    """
    paths: dict[str, None] = {}
    for pattern in data_path.split(","):
        paths |= dict.fromkeys(os.path.abspath(path) for path in _resolve(pattern.strip()))
    return list(paths)


def describe_file(path: str) -> tuple[str, int, int]:
    """Path, size in bytes and time of the last change in ns: what a fingerprint takes for the file's contents."""
    try:
        info = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, info.st_size, info.st_mtime_ns


def read_documents(path: str, document_per: str) -> Iterator[str]:
    """The documents of a UTF-8 file; see `split_text`. Empty ones are among them.

    Raises OSError or UnicodeDecodeError, always before the first document.
    """
    if document_per == "file":
        yield Path(path).read_bytes().decode("utf-8")
        return
    _check_utf8(path)
    with open(path, encoding="utf-8", newline="\n") as lines:
        yield from _split_lines(lines, document_per)


def split_text(text: str, document_per: str) -> Iterable[str]:
    """Cuts a text into documents: the whole as it is ("file"), its lines without their ends ("line"), or its blocks
    between blank lines, lines joined by "\\n" ("paragraph"). A line ends at "\\n" or "\\r\\n" and nowhere else."""
    return (text,) if document_per == "file" else _split_lines(text.split("\n"), document_per)


def _split_lines(lines: Iterable[str], document_per: str) -> Iterator[str]:
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


def _check_utf8(path: str) -> None:
    """Reads the whole file once, so that a bad one is left out as a whole, and not from its bad byte on."""
    decoder, position = codecs.getincrementaldecoder("utf-8")(), 0
    with open(path, "rb") as file:
        while True:
            chunk = file.read(1 << 24)
            begun = len(decoder.getstate()[0])  # bytes of a character that the last chunk cut
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                error.start += position - begun
                raise
            if not chunk:
                return
            position += len(chunk)


def _resolve(pattern: str) -> list[str]:
    where, expanded = f"data.path={pattern!r}", os.path.expanduser(pattern)
    if os.path.exists(expanded):
        found = [expanded]
    elif glob.has_magic(expanded):
        found = sorted(glob.glob(expanded, recursive=True))
        if not found:
            raise ConfigError(f"{where} matches no file: correct the pattern")
    else:
        raise ConfigError(f"{where} does not exist: correct it; it may be files, folders or globs, separated by commas")
    files = [file for path in found for file in (_walk(path) if os.path.isdir(path) else [path])]
    files = [file for file in files if _is_regular_or_broken(file)]
    if not files:
        raise ConfigError(f"{where} holds no regular file (hidden ones are not read): name a file or another folder")
    return files


def _walk(folder: str) -> list[str]:
    """Follows links to folders, but enters no folder twice. Folders that cannot be listed stand among the files."""
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
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)  # a folder here is one that could not be listed
