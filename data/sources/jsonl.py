"""data.source="jsonl": files with a JSON object on each line, which is a document (data/records.py).

Blank lines are ignored.
"""

from collections.abc import Iterator

from contract.errors import ConfigError
from data.config import CorpusConfig
from data.files import file_digest
from data.raw import RawDocument, Skipped
from data.records import InvalidRecord, document_of, read_object
from data.sources.from_files import File, files_source
from data.sources.source import Source


def open_jsonl(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the JSON-lines files `path`."""
    return files_source(corpus, path, field, "JSON line", _read_jsonl)


def _read_jsonl(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a file, in the file's order.

    Raises ConfigError, with file and line number, for an invalid line. With data.on_unreadable='skip' such lines are
    counted instead. Raises OSError before the first document.
    """
    digest = file_digest(file.path)
    with open(file.path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                document = document_of(file.name, read_object(line), may_be_blank=False)
                yield document._replace(file_digest=digest)
            except InvalidRecord as error:
                if corpus.on_unreadable != "skip":
                    raise ConfigError(
                        f"{file.name}:{number} {error}: fix that line, or set data.on_unreadable='skip'"
                    ) from None
                skipped.first_line = skipped.first_line or f"{file.name}:{number}"
                skipped.lines += 1
