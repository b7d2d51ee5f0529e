"""data.source="text" and "jsonl": UTF-8 files, compressed or not.

Documents of "text" are the files, their lines or paragraphs. Documents of "jsonl" are the JSON objects of the lines
(data/sources/records.py). There, blank lines are ignored, and so is a byte order mark at the start of a file (RFC 8259,
section 8.1).
"""

import codecs
from collections.abc import Iterator

from data.sources.config import CorpusConfig
from data.sources.files import decoded_lines, file_digest, open_contents, split_text, text_digest
from data.sources.from_files import File, files_source
from data.sources.records import InvalidRecord, count_or_raise, document_of, read_object
from data.sources.source import RawDocument, Skipped, Source


def open_text(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the text files `path`."""
    return files_source(corpus, path, field, corpus.document_per, _read_text)


def open_jsonl(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the JSON-lines files `path`."""
    return files_source(corpus, path, field, "JSON line", _read_jsonl)


def _read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    for text, digest in read_documents(file, corpus.document_per):
        yield RawDocument(file.name, text, file_digest=digest)


def read_documents(file: File, document_per: str) -> Iterator[tuple[str, int]]:
    """Yields the documents of a text file, empty ones included, and the digest of the file with each.

    document_per: "file": the whole text, unchanged; others as in `split_text`. Raises OSError and UnicodeDecodeError.
    """
    if document_per == "file":
        with open_contents(file.path, file.name) as contents:
            whole = contents.read()
        yield whole.decode("utf-8"), text_digest(whole)
        return
    digest = file_digest(file.path, file.name)
    with open_contents(file.path, file.name) as contents:
        for text in split_text(decoded_lines(contents), document_per):
            yield text, digest


def _read_jsonl(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a file's lines, in order.

    Raises ConfigError, with file and line number, for an invalid line. With data.on_unreadable='skip' such lines are
    counted instead. Raises OSError.
    """
    digest = file_digest(file.path, file.name)
    with open_contents(file.path, file.name) as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                document = document_of(file.name, read_object(line), corpus.text_key, may_be_blank=False)
            except InvalidRecord as error:
                count_or_raise(error, f"{file.name}:{number}", "line", corpus, skipped)
            else:
                yield document._replace(file_digest=digest)
