"""data.source="text": UTF-8 files, compressed or not, whose documents are the files, their lines or paragraphs."""

from collections.abc import Iterator

from data.config import CorpusConfig
from data.files import file_digest, read_documents
from data.raw import RawDocument, Skipped
from data.sources.from_files import File, files_source
from data.sources.source import Source


def open_text(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the text files `path`."""
    return files_source(corpus, path, field, corpus.document_per, _read_text)


def _read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    digest = file_digest(file.path, file.name)
    for text in read_documents(file.path, corpus.document_per, file.name):
        yield RawDocument(file.name, text, file_digest=digest)
