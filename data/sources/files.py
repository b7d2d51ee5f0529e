"""Files, here and in buckets, compressed or not: a corpus of which each is a part, and data.source="text".

Documents of "text", UTF-8, are the files, their lines or paragraphs.
"""

import contextlib
import functools
import glob
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

from contract.errors import ConfigError
from data.sources.config import DEFAULT_CACHE_DIR, CorpusConfig
from data.sources.source import Part, RawDocument, Skipped, Source, skip_empty
from files.paths import (
    absolute,
    check_access,
    copy_file,
    find_objects,
    in_bucket,
    real_path,
    reason,
    version_of,
)

# The end of a file's name -> the codec of PyArrow. The decompressors of Python's standard library ignore what follows
# the first stream of a file in some formats.
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_READ_AHEAD = 1 << 18  # bytes
_REQUESTS = 16  # of a bucket at a time


class File(NamedTuple):
    """A file of a corpus."""

    name: str  # in documents and messages: the absolute path, the address in a bucket, or the path in the library
    path: str  # of the file or its copy on this machine


class UnreadableFile(Exception):
    """A file or table without documents. The message states problem and remedy, and is printed after its name."""


# Yields the documents of a file, empty ones included. A function of a module, so that parts can be pickled. Raises
# OSError, UnicodeDecodeError, SyntaxError or UnreadableFile if the file cannot be read.
ReadFile = Callable[[File, CorpusConfig, Skipped], Iterator[RawDocument]]


def files_source(read_file: ReadFile, corpus: CorpusConfig, path: str, field: str, cut: str = "") -> Source:
    """Returns the corpus of the files that `path`, the value of the config field `field`, names.

    cut: as in Source; "": data.document_per.

    Raises ConfigError for a path that names no file, or a file in a bucket that cannot be copied.
    """
    names = find_files(path, field)
    try:
        copies = _local_copies([name for name in names if in_bucket(name)], local_cache(corpus.cache_dir) / "texts")
    except OSError as error:
        raise ConfigError(f"{field}={path!r} cannot be copied to this machine: {reason(error)}") from None
    described, parts = list[tuple[str, int, int | str]](), list[Part]()
    for name in names:
        # The version of an object, which is the same on all hosts, in place of the time of its copy.
        copy, version = copies.get(name, (name, None))
        _, size, modified = describe_file(copy)
        described.append((name, size, modified if version is None else version))
        parts.append(file_part(File(name, copy), max(size, 0), read_file, corpus, field))
    return Source(f"{field}={path!r}", {"files": described}, cut or corpus.document_per, tuple(parts))


def file_part(file: File, num_bytes: int, read_file: ReadFile, corpus: CorpusConfig, field: str = "data.path") -> Part:
    """Returns the part of a corpus that is a file. With data.on_unreadable='skip' an unreadable file is counted.

    field: the config field that names the file, for messages.
    """
    return Part(file.name, num_bytes, functools.partial(_read, read_file, file, corpus, field))


def _read(read_file: ReadFile, file: File, corpus: CorpusConfig, field: str, skipped: Skipped) -> Iterator[RawDocument]:
    try:
        if corpus.on_unreadable == "skip":  # a file that is damaged at its end is skipped whole
            for _ in read_file(file, corpus, Skipped()):
                pass
        yield from skip_empty(read_file(file, corpus, skipped), skipped)
    except (OSError, UnicodeDecodeError, SyntaxError, UnreadableFile) as error:
        if corpus.on_unreadable == "skip":
            skipped.files.append(file.name)
            return
        raise ConfigError(
            f"{file.name} {_describe(error)}, exclude it from {field}, or set data.on_unreadable='skip'"
        ) from None


def _describe(error: OSError | UnicodeDecodeError | SyntaxError | UnreadableFile) -> str:
    """Returns the problem and a remedy."""
    if isinstance(error, UnreadableFile):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start}): fix the file"
    if isinstance(error, SyntaxError):
        return f"is not Python (line {error.lineno}: {error.msg}): fix the file"
    return f"cannot be read ({reason(error)}): fix the file"


def read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a text file, empty ones included. Raises OSError and UnicodeDecodeError."""
    for text, digest in read_documents(file, corpus.document_per):
        yield RawDocument(file.name, text, file_digest=digest)


def read_documents(file: File, document_per: str) -> Iterator[tuple[str, int]]:
    """Yields the documents of a text file, empty ones included, and the digest of the file with each.

    document_per: "file": the whole text, unchanged; others as in `split_text`. Raises OSError and UnicodeDecodeError.
    """
    if document_per == "file":
        with open_contents(file) as contents:
            whole = contents.read()
        yield whole.decode("utf-8"), text_digest(whole)
        return
    digest = file_digest(file)
    with open_contents(file) as contents:
        for text in split_text(_decoded_lines(contents), document_per):
            yield text, digest


def check_disjoint(source: Source, heldout: Source) -> None:
    """Raises ConfigError where a file is in both."""
    paths = {real_path(name) for name, *_ in source.identity["files"]}
    both = [name for name, *_ in heldout.identity["files"] if real_path(name) in paths]
    if both:
        raise ConfigError(
            f"{source.where} and {heldout.where} both name {both[0]}{f' and {len(both) - 1} more' * (len(both) > 1)}: "
            "held-out text must not be trained on; name different files"
        )


def find_files(data_path: str, field: str = "data.path") -> list[str]:
    """Absolute paths of the files that `data_path` (files, folders or globs, separated by commas) names, each once.

    They may be in buckets, as in gs://bucket/folder/*.txt. Of several paths of one file, as of links, the first stays.

    A folder names all its files that are not hidden, at any depth, sorted. Files that exist but cannot be opened are
    included, so that reading them is an error.

    field: the config field that `data_path` is the value of, for messages. Raises ConfigError for a part of `data_path`
    that names no file.
    """
    paths, real_folder = dict[str, str](), functools.cache(real_path)  # paths: of each file, by its real path
    for pattern in map(str.strip, data_path.split(",")):
        where = f"{field}={pattern!r}"
        check_access(pattern, where)
        found = find_objects(pattern) if in_bucket(pattern) else _find(pattern, where)
        if not found:
            raise ConfigError(f"{where} contains no file (hidden files are ignored): name files, folders or globs")
        for path in found:
            # To resolve a path takes a call of the system for each of its parts, so a folder is resolved once.
            folder, name = os.path.split(real_path(path) if os.path.islink(path) else path)
            paths.setdefault(os.path.join(real_folder(folder), name), path)
    return list(paths.values())


def _find(pattern: str, where: str) -> list[str]:
    expanded = os.path.expanduser(pattern)
    found = [expanded] if os.path.exists(expanded) else sorted(glob.glob(expanded, recursive=True))
    if not found:
        here = "" if os.path.isabs(expanded) else f" in the current folder, {os.getcwd()}"
        raise ConfigError(f"{where} does not exist{here}: name files, folders or globs, separated by commas")
    return [os.path.abspath(file) for path in found for file in (_walk(path, where) if os.path.isdir(path) else [path])]


def _walk(folder: str, where: str) -> list[str]:
    """The paths of all files in `folder` that are not hidden, sorted. Follows links, into each folder once."""

    def refuse(error: OSError) -> None:
        raise ConfigError(f"{where}: {error.filename} cannot be listed ({error.strerror}): change its permissions")

    files, walked = list[str](), set[str]()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        is_new = (path := real_path(parent)) not in walked
        walked.add(path)
        folders[:] = sorted(name for name in folders if is_new and not name.startswith("."))  # what os.walk enters next
        files += [os.path.join(parent, name) for name in names if is_new and not name.startswith(".")]
    return sorted(files)


def local_cache(cache_dir: str) -> Path:
    """Returns the folder of this machine for token stores: `data.cache_dir`, or that of copies if it is in a bucket."""
    folder = f"{DEFAULT_CACHE_DIR}/buckets/{_hash(absolute(cache_dir))}" if in_bucket(cache_dir) else cache_dir
    return Path(os.path.expanduser(folder))


def _local_copies(addresses: Sequence[str], folder: Path) -> dict[str, tuple[str, str]]:
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


def describe_file(path: str) -> tuple[str, int, int]:
    """Path, size in bytes and modification time in ns, which represent the file's contents in a fingerprint.

    Size and time are -1 for a file that cannot be accessed.
    """
    try:
        info = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, info.st_size, info.st_mtime_ns


def open_contents(file: File) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens a file to read its contents, which are decompressed if its name says so.

    Raises OSError, also while the contents are read: for damaged and for incomplete data.
    """
    codec = _CODECS.get(os.path.splitext(file.name)[1])
    return open(file.path, "rb") if codec is None else _decompressed(file.path, codec)


@contextlib.contextmanager
def _decompressed(path: str, codec: str) -> Iterator[BinaryIO]:
    import pyarrow  # a second of imports

    if not os.path.getsize(path):
        raise OSError("the file is empty")
    try:
        with io.BufferedReader(pyarrow.input_stream(path, compression=codec), _READ_AHEAD) as contents:
            yield contents
    except pyarrow.ArrowException as error:  # of damage that is no OSError, as an empty stream of bzip2 between others
        raise OSError(" ".join(str(error).split())) from None


def text_digest(text: bytes) -> int:
    """64 bits of a hash of `text`."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def file_digest(file: File) -> int:
    """`text_digest` of a file's contents, decompressed: see `open_contents`. Raises OSError."""
    with open_contents(file) as contents:
        return int.from_bytes(hashlib.file_digest(contents, lambda: hashlib.blake2b(digest_size=8)).digest())


def _decoded_lines(file: BinaryIO) -> Iterator[str]:
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
