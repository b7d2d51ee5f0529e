"""data.source="jsonl": files with a JSON object on each line, which is a document (data/sources/records.py).

Blank lines are ignored, and so is a byte order mark at the start of a file (RFC 8259, section 8.1). The files may be
compressed.
"""

import codecs
import dataclasses
import functools
from collections.abc import Iterator

from data.sources.compressed import open_contents
from data.sources.config import CorpusConfig
from data.sources.files import describe_file, file_digest
from data.sources.from_files import File, files_source
from data.sources.from_records import count_or_raise
from data.sources.raw import RawDocument, Skipped
from data.sources.records import InvalidRecord, document_of, read_object
from data.sources.source import Source

_RULES = 2  # add 1 where other lines become documents, or other documents: stores of the corpus then have other names


def open_jsonl(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the JSON-lines files `path`."""
    source = files_source(corpus, path, field, "JSON line", _read_jsonl, has_ranges=True)
    return dataclasses.replace(source, identity=source.identity | {"rules": _RULES})


def _read_jsonl(
    file: File, corpus: CorpusConfig, skipped: Skipped, start: int = 0, end: int | None = None
) -> Iterator[RawDocument]:
    """Yields the documents of the lines that begin in bytes `start` to `end` of a file, in the file's order.

    Raises ConfigError, with file and line number, for an invalid line. With data.on_unreadable='skip' such lines are
    counted instead. Raises OSError before the first document.
    """
    digest = _digest(file, describe_file(file.path))
    with open_contents(file.path, file.name) as lines:
        place = start
        if start:
            lines.seek(start - 1)
            place += len(lines.readline()) - 1  # the rest of a line that begins before; none if a line ends there
        for number, line in enumerate(lines, start=1):
            if end is not None and place >= end:
                return
            place += len(line)
            if number == 1 and not start:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                document = document_of(file.name, read_object(line), corpus.text_key, may_be_blank=False)
            except InvalidRecord as error:
                number += _lines_before(file, start)
                count_or_raise(error, f"{file.name}:{number}", "line", corpus, skipped)
            else:
                yield document._replace(file_digest=digest)


@functools.lru_cache(maxsize=16)
def _digest(file: File, state: tuple) -> int:
    """Returns the digest of a file, of which several parts are read one after another. state: to notice a change."""
    return file_digest(file.path, file.name)


def _lines_before(file: File, start: int) -> int:
    """Returns how many lines begin before byte `start`."""
    count = 0
    with open(file.path, "rb") as contents:
        while chunk := contents.read(min(1 << 20, start - 1 - contents.tell()) if start else 0):
            count += chunk.count(b"\n")
    return count + bool(start)
