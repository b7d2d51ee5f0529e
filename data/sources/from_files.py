"""Corpora that are files: on this machine, or copied to it from a bucket. Each file is a part."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import describe_file, find_files, is_compressed, local_cache, local_copies
from data.sources.source import Part, RawDocument, Skipped, Source, skip_empty
from files.paths import in_bucket, real_path, reason

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
    """A file or table without documents. The message states problem and remedy, and is printed after its name."""


# Yields the documents of a file, empty ones included. A function of a module, so that parts can be pickled. Raises
# OSError, UnicodeDecodeError, SyntaxError or UnreadableFile if the file cannot be read.
ReadFile = Callable[[File, CorpusConfig, Skipped], Iterator[RawDocument]]


def files_source(corpus: CorpusConfig, path: str, field: str, cut: str, read_file: ReadFile) -> Source:
    """Returns the corpus of the files that `path`, the value of the config field `field`, names.

    Raises ConfigError for a path that names no file, or a file in a bucket that cannot be copied.
    """
    names = find_files(path, field)
    try:
        copies = local_copies([name for name in names if in_bucket(name)], local_cache(corpus.cache_dir) / "texts")
    except OSError as error:
        raise ConfigError(f"{field}={path!r} cannot be copied to this machine: {reason(error)}") from None
    described: list[tuple[str, int, int | str]] = []
    parts = []
    for name in names:
        file = File(name, copies[name][0], is_fixed=True) if name in copies else File(name, name)
        _, size, modified = describe_file(file.path)
        # The version of an object, which is the same on all hosts, in place of the time of its copy.
        described.append((name, size, copies[name][1] if name in copies else modified))
        num_bytes = max(size, 0) * (_EXPANSION if is_compressed(name) else 1)
        parts.append(file_part(file, num_bytes, read_file, corpus, field))
    return Source(f"{field}={path!r}", {"files": described}, cut, tuple(parts))


def file_part(file: File, num_bytes: int, read_file: ReadFile, corpus: CorpusConfig, field: str = "data.path") -> Part:
    """Returns the part of a corpus that is a file. With data.on_unreadable='skip' an unreadable file is counted.

    field: the config field that names the file, for messages.
    """
    state = None if file.is_fixed else describe_file(file.path)
    return Part(file.name, num_bytes, functools.partial(_read, read_file, file, state, corpus, field))


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
        if corpus.on_unreadable == "skip":  # a file that is damaged at its end is skipped whole
            for _ in read_file(file, corpus, Skipped()):
                pass
        yield from skip_empty(read_file(file, corpus, skipped), skipped)
    except (OSError, UnicodeDecodeError, SyntaxError, UnreadableFile) as error:
        check_unchanged(state)
        if corpus.on_unreadable == "skip":
            skipped.files.append(file.shown)
            return
        raise ConfigError(
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
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start}): fix the file"
    if isinstance(error, SyntaxError):
        return f"is not Python (line {error.lineno}: {error.msg}): fix the file"
    return f"cannot be read ({reason(error)}): fix the file"
