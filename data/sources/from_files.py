"""Corpora that are files: on this machine, or copied to it from a bucket. Each file is a part."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from contract.errors import ConfigError
from data.sources.bucket_store import local_cache, local_copies
from data.sources.compressed import is_compressed
from data.sources.config import CorpusConfig
from data.sources.files import describe_file, find_files
from data.sources.raw import RawDocument, Skipped
from data.sources.source import Part, Source, skip_empty
from files.paths import describe_os_error, in_bucket, real_path

_RANGE_BYTES = 1 << 20  # of a large file that is read in several parts, about
_EXPANSION = 3  # bytes of text for a byte of a compressed file, about


class File(NamedTuple):
    """A file of a corpus."""

    name: str  # in documents: the absolute path, the address in a bucket, or the path in the standard library
    path: str  # of the file or its copy on this machine
    is_fixed: bool = False  # whether `path` is the copy of one version, or a file of Python

    @property
    def shown(self) -> str:
        """The address in a bucket or the path, for messages."""
        return self.name if in_bucket(self.name) else self.path


class UnreadableFile(Exception):
    """A file without documents. The message states the problem, and is printed after the file's name.

    has_remedy: whether the message ends with what to do.
    """

    def __init__(self, problem: str, *, has_remedy: bool = False):
        super().__init__(problem)
        self.has_remedy = has_remedy


class ReadError(ConfigError):
    """A file that the operating system could not read. The same corpus may be readable later."""


# Yields the documents of a file, empty ones included. A function of a module, so that parts can be pickled. Raises
# OSError, UnicodeDecodeError, SyntaxError or UnreadableFile if the file cannot be read, and with
# data.on_unreadable="skip" always before the first document.
ReadFile = Callable[[File, CorpusConfig, Skipped], Iterator[RawDocument]]


def files_source(
    corpus: CorpusConfig, path: str, field: str, cut: str, read_file: ReadFile, *, has_ranges: bool = False
) -> Source:
    """Returns the corpus of the files that `path`, the value of the config field `field`, names.

    has_ranges: whether `read_file` reads a part of a file too: it takes the arguments `start` and `end`, in bytes, and
    reads the lines that begin there. A large file is then several parts, unless it is compressed.

    Raises ConfigError for a path that names no file, or a file in a bucket that cannot be copied.
    """
    names = find_files(path, field)
    copies = _copies(corpus, names, f"{field}={path!r}")
    described: list[tuple[str, int, int | str]] = []
    parts = []
    for name in names:
        file = File(name, copies[name][0], is_fixed=True) if name in copies else File(name, name)
        _, size, modified = describe_file(file.path)
        # The version of an object, which is the same on all hosts, in place of the time of its copy.
        described.append((name, size, copies[name][1] if name in copies else modified))
        if is_compressed(name) or not has_ranges:
            num_bytes = max(size, 0) * (_EXPANSION if is_compressed(name) else 1)
            parts.append(file_part(file, num_bytes, read_file, corpus, field))
            continue
        for start, end in _ranges(size):
            read_range = functools.partial(read_file, start=start, end=end)
            parts.append(file_part(file, max(end - start, 0), read_range, corpus, field))
    return Source(f"{field}={path!r}", {"files": described}, cut, tuple(parts))


def file_part(file: File, num_bytes: int, read_file: ReadFile, corpus: CorpusConfig, field: str = "data.path") -> Part:
    """Returns the part of a corpus that is a file. With data.on_unreadable='skip' an unreadable file is counted.

    field: the config field that names the file, for messages.
    """
    state = None if file.is_fixed else describe_file(file.path)
    return Part(file.name, num_bytes, functools.partial(_read, read_file, file, state, corpus, field))


def _ranges(size: int) -> list[tuple[int, int]]:
    """Returns the start and the end of each part of a file of `size` bytes."""
    count = max(size // _RANGE_BYTES, 1)
    bounds = [size * k // count for k in range(count + 1)]
    return list(itertools.pairwise(bounds))


def check_disjoint(source: Source, heldout: Source) -> None:
    """Raises ConfigError where a file is in both."""
    paths = {real_path(name) for name, *_ in source.identity["files"]}
    both = [name for name, *_ in heldout.identity["files"] if real_path(name) in paths]
    if both:
        raise ConfigError(
            f"{source.where} and {heldout.where} both name {both[0]}{f' and {len(both) - 1} more' * (len(both) > 1)}: "
            "held-out text must not be trained on; name different files"
        )


def _read(
    read_file: ReadFile,
    file: File,
    state: tuple[str, int, int] | None,
    corpus: CorpusConfig,
    field: str,
    skipped: Skipped,
) -> Iterator[RawDocument]:
    try:
        yield from skip_empty(read_file(file, corpus, skipped), skipped)
    except (OSError, UnicodeDecodeError, SyntaxError, UnreadableFile) as error:
        check_unchanged(state)
        if corpus.on_unreadable == "skip":
            if file.shown not in skipped.files[-1:]:  # parts of one file
                skipped.files.append(file.shown)
            return
        raise (ReadError if isinstance(error, OSError) else ConfigError)(
            f"{file.shown} {_describe(error)}, exclude it from {field}, or set data.on_unreadable='skip'"
        ) from None
    check_unchanged(state)


def check_unchanged(state: tuple[str, int, int] | None) -> None:
    """Raises ConfigError if a file is not as `describe_file` described it when the corpus was opened."""
    if state is not None and describe_file(state[0]) != state:
        raise ConfigError(f"{state[0]} has changed while it was read: start again when the file is complete")


def _describe(error: OSError | UnicodeDecodeError | SyntaxError | UnreadableFile) -> str:
    """Returns the problem and a remedy."""
    if isinstance(error, UnreadableFile):
        return f"{error}{'' if error.has_remedy else ': fix the file'}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start}): fix the file"
    if isinstance(error, SyntaxError):
        return f"is not Python (line {error.lineno}: {error.msg}): fix the file"
    return f"cannot be read ({error.strerror}): fix the file"


def _copies(corpus: CorpusConfig, names: Sequence[str], where: str) -> dict[str, tuple[str, str]]:
    """Returns address -> (path of a copy on this machine, version), for the files in buckets among `names`."""
    remote = [name for name in names if in_bucket(name)]
    try:
        return dict(zip(remote, local_copies(remote, local_cache(corpus.cache_dir) / "texts"), strict=True))
    except OSError as error:
        raise ConfigError(f"{where} cannot be copied to this machine: {describe_os_error(error) or error}") from None
