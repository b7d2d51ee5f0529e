"""Documents of records: rows of tables, tf.train.Examples and JSON objects, each of which is a text of its own."""

from collections.abc import Callable, Iterator
from typing import Any

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import split_text, text_digest
from data.sources.raw import RawDocument, Skipped
from data.sources.records import InvalidRecord, document_of


def read_record(
    name: str, where: str, read_fields: Callable[[], Any], corpus: CorpusConfig, skipped: Skipped
) -> Iterator[RawDocument]:
    """Yields the documents that data.document_per cuts a record's text into, empty ones included.

    Args:
      name: of the file or dataset, for the documents.
      where: names the record in messages: "corpus.parquet, row 3".
      read_fields: returns the record, a dict. May raise InvalidRecord.
      corpus: the config of the corpus.
      skipped: counts a record that is invalid, with data.on_unreadable="skip".

    Raises ConfigError for an invalid record, and for a prompt with a `data.document_per` that would cut its response.
    """
    try:
        document = document_of(name, read_fields(), corpus.text_key, may_be_blank=True)
    except InvalidRecord as error:
        count_or_raise(error, where, "record", corpus, skipped)
        return
    if document.prompt and corpus.document_per != "file":
        raise ConfigError(
            f"data.document_per={corpus.document_per!r} does not go with prompts and responses, which {where} has: "
            "set data.document_per='file'"
        )
    # The text that documents are cut from. All responses to one prompt are on the same side of a split.
    digest = text_digest((document.prompt or document.text).encode("utf-8"))
    for text in split_text(document.text, corpus.document_per):
        yield document._replace(text=text, file_digest=digest)


def count_or_raise(error: InvalidRecord, where: str, kind: str, corpus: CorpusConfig, skipped: Skipped) -> None:
    """Counts an invalid record with data.on_unreadable="skip", and otherwise raises ConfigError.

    where: names the record. kind: what a record is, for the message: "line".
    """
    if corpus.on_unreadable != "skip":
        raise ConfigError(f"{where} {error}: fix that {kind}, or set data.on_unreadable='skip'") from None
    skipped.first_line = skipped.first_line or where
    skipped.lines += 1
