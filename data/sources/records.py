"""Documents from the fields of records: JSON objects, rows of tables and tf.train.Examples.

A record has a prompt and its response, or a text and optionally its label. Other fields are ignored:

    {"prompt": "Translate to German: one", "response": "eins"}
    {"text": "The match ended in a draw.", "label": "sport"}

data.text_key is the key of the text: "text", or another one. A label may be an integer, and null is no label.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import split_text, text_digest
from data.sources.from_files import UnreadableFile
from data.sources.source import RawDocument, Skipped

_SHOWN_KEYS = 8


class InvalidRecord(ValueError):
    """An invalid record. The message states the problem and is printed after the number of the line or the row."""


def read_object(line: bytes) -> Any:
    """Returns the JSON value of a line.

    Raises InvalidRecord for a line that is not UTF-8 or not JSON, and for an object that has a key twice: RFC 8259,
    section 4, leaves open which of the values counts.
    """
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_object)
    except InvalidRecord:
        raise
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"is not UTF-8 (byte {error.start} of the line)") from None
    except json.JSONDecodeError as error:
        raise InvalidRecord(f"is not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # integers of too many digits, objects in thousands of others
        raise InvalidRecord(f"is not JSON ({str(error).partition(';')[0]})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidRecord(f"has the key {max(names, key=names.count)!r} more than once")
    return found


def document_keys(names: Sequence[str], text_key: str, kind: str) -> list[str]:
    """Returns those of `names` that make documents: data.text_key and "label", or "prompt" and "response".

    names: of the columns of a table, or of the features of a dataset. kind: what they are, for the message: "column".
    Raises UnreadableFile where they are missing, and where two have one name.
    """
    if text_key in names:
        keys = [name for name in dict.fromkeys([text_key, "label"]) if name in names]
    elif {"prompt", "response"} <= set(names):
        keys = ["prompt", "response"]
    else:
        raise UnreadableFile(
            f"has no {kind} {text_key!r} (data.text_key), and no 'prompt' and 'response', only {sorted(names)}: "
            "set data.text_key"
        )
    for name in keys:
        if (count := list(names).count(name)) > 1:
            raise UnreadableFile(f"has {count} {kind}s {name!r}: rename all but one of them")
    return keys


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
    document = document._replace(file_digest=text_digest((document.prompt or document.text).encode("utf-8")))
    if corpus.document_per == "file":
        yield document
        return
    for text in split_text(document.text.split("\n"), corpus.document_per):
        yield document._replace(text=text)


def count_or_raise(error: InvalidRecord, where: str, kind: str, corpus: CorpusConfig, skipped: Skipped) -> None:
    """Counts an invalid record with data.on_unreadable="skip", and otherwise raises ConfigError.

    where: names the record. kind: what a record is, for the message: "line".
    """
    if corpus.on_unreadable != "skip":
        raise ConfigError(f"{where} {error}: fix that {kind}, or set data.on_unreadable='skip'") from None
    skipped.first_line = skipped.first_line or where
    skipped.lines += 1


def document_of(name: str, fields: Any, text_key: str, *, may_be_blank: bool) -> RawDocument:
    """Returns the document of a record.

    name: of the file, for the document. fields: the record, a dict. text_key: data.text_key, the key of the text.
    may_be_blank: whether the text or the response may be whitespace only.

    Raises InvalidRecord for a value that is neither of the two kinds of records.
    """
    keys = set(fields) if isinstance(fields, dict) else set()
    if {"prompt", "response"} <= keys and text_key not in keys:
        response = string_field(fields, "response", may_be_empty=may_be_blank)
        return RawDocument(name, response, string_field(fields, "prompt", may_be_empty=True))
    if text_key in keys and not {"prompt", "response"} & keys - {text_key}:
        text = string_field(fields, text_key, may_be_empty=may_be_blank)
        return RawDocument(name, text, label=_label(fields) if "label" in keys - {text_key} else "")
    has = f", and has the keys {', '.join(map(repr, sorted(keys)[:_SHOWN_KEYS]))}" if keys else ""
    raise InvalidRecord(
        f"must be an object with the keys 'prompt' and 'response', or {text_key!r} (data.text_key) and optionally "
        f"'label'{has}"
    )


def decoded_value(key: str, value: Any) -> Any:
    """Returns text for UTF-8 bytes, and other values as they are. Raises InvalidRecord for other bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"is not UTF-8 in {key!r} (byte {error.start})") from None
    return value


def class_name(names: Sequence[str], number: int | None) -> str | None:
    """Returns the name of a class; None for no class, which datasets also write as -1 where labels are secret."""
    return names[number] if number is not None and 0 <= number < len(names) else None


def _label(fields: dict[str, Any]) -> str:
    """Returns the label of a record that has one. Raises InvalidRecord for one that is neither text nor an integer."""
    label = fields["label"]
    if label is None:
        return ""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    return string_field(fields, "label", may_be_empty=True)


def string_field(fields: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    """Returns the text at `key`. Raises InvalidRecord for a value that is not text, or that is blank."""
    value = fields[key]
    if not isinstance(value, str):
        raise InvalidRecord(f"has {value!r:.40} for {key!r}, which must be a string")
    if not (value.strip() or may_be_empty):
        raise InvalidRecord(f"has no text in {key!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"has half of a surrogate pair in {key!r}, at character {error.start}") from None
    return value
