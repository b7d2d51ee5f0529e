"""data.source="jsonl": files with a JSON object on each line, which is a document (data/records.py).

Blank lines are ignored. The files may be compressed.
"""

from collections.abc import Iterator

from data.compressed import open_contents
from data.config import CorpusConfig
from data.files import file_digest
from data.raw import RawDocument, Skipped
from data.records import InvalidRecord, document_of, read_object
from data.sources.from_files import File, files_source
from data.sources.from_records import count_or_raise
from data.sources.source import Source


def open_jsonl(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the JSON-lines files `path`."""
    return files_source(corpus, path, field, "JSON line", _read_jsonl)


def _read_jsonl(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a file, in the file's order.

    Raises ConfigError, with file and line number, for an invalid line. With data.on_unreadable='skip' such lines are
    counted instead. Raises OSError before the first document.
    """
    digest = file_digest(file.path, file.name)
    with open_contents(file.path, file.name) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                document = document_of(file.name, read_object(line), corpus.text_key, may_be_blank=False)
            except InvalidRecord as error:
                count_or_raise(error, f"{file.name}:{number}", "line", corpus, skipped)
            else:
                yield document._replace(file_digest=digest)
