"""data.source="text": UTF-8 files, compressed or not, whose documents are the files, their lines or paragraphs."""

import functools
from collections.abc import Iterator
from typing import BinaryIO

from data.sources.compressed import open_contents
from data.sources.config import CorpusConfig
from data.sources.files import (
    check_utf8,
    describe_file,
    file_digest,
    read_documents,
    split_lines,
)
from data.sources.from_files import File, files_source
from data.sources.raw import RawDocument, Skipped
from data.sources.source import Source

_BACKWARD_BYTES = 1 << 12


def open_text(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the text files `path`."""
    if corpus.document_per == "file":
        return files_source(corpus, path, field, corpus.document_per, _read_text)
    return files_source(corpus, path, field, corpus.document_per, _read_range, has_ranges=True)


def _read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    digest = file_digest(file.path, file.name)
    for text in read_documents(file.path, corpus.document_per, file.name):
        yield RawDocument(file.name, text, file_digest=digest)


def _read_range(
    file: File, corpus: CorpusConfig, skipped: Skipped, start: int = 0, end: int | None = None
) -> Iterator[RawDocument]:
    """Yields the lines or the paragraphs that begin in bytes `start` to `end` of a file; all for `end` None."""
    digest = _checked_digest(file, describe_file(file.path))
    with open_contents(file.path, file.name) as contents:
        texts = split_lines(_lines(contents, corpus.document_per == "paragraph", start, end), corpus.document_per)
        for text in texts:
            yield RawDocument(file.name, text, file_digest=digest)


def _lines(contents: BinaryIO, in_paragraphs: bool, start: int, end: int | None) -> Iterator[str]:
    """Yields the lines that begin in a range of a file; of paragraphs, all lines of those that begin there."""
    place, is_inside = start, False  # is_inside: of a paragraph that begins before the range
    if start:
        contents.seek(_start_of_line(contents, start - 1))
        place = contents.tell()
        before = contents.readline()
        place += len(before)
        is_inside = in_paragraphs and bool(before.decode("utf-8").strip())
    is_open = False  # whether a paragraph of the range may continue
    for line in contents:
        text = line.decode("utf-8")
        is_blank = not text.strip()
        if end is not None and place >= end and not (is_open and not is_blank):
            return
        place += len(line)
        is_inside = is_inside and not is_blank
        if not is_inside:
            is_open = in_paragraphs and not is_blank
            yield text


def _start_of_line(contents: BinaryIO, place: int) -> int:
    """Returns where the line begins that byte `place` is in; its line end is part of it."""
    while place:
        first = max(place - _BACKWARD_BYTES, 0)
        contents.seek(first)
        found = contents.read(place - first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        place = first
    return 0


@functools.lru_cache(maxsize=16)
def _checked_digest(file: File, state: tuple) -> int:
    """Returns the digest of a file, of which several parts are read one after another. state: to notice a change.

    Raises OSError or UnicodeDecodeError for a file that cannot be read.
    """
    with open_contents(file.path, file.name) as contents:
        check_utf8(contents)
    return file_digest(file.path, file.name)
