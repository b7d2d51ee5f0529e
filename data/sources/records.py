"""Documents from the fields of records: data.source="jsonl" and "parquet", and the parts that others need.

A record, which is the JSON object of a line or a row of a table, has a prompt and its response, or a text and
optionally its label. Other fields are ignored:

    {"prompt": "Translate to German: one", "response": "eins"}
    {"text": "The match ended in a draw.", "label": "sport"}

data.text_key is the key of the text: "text", or another one. A label may be an integer, and null is no label. In JSON
lines, blank lines are ignored, and so is a byte order mark at the start of a file (RFC 8259, section 8.1). Of a table
only these columns are read.
"""

import codecs
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import File, UnreadableFile, file_digest, open_contents, split_text, text_digest
from data.sources.source import RawDocument, Skipped
from files.atomic import parse_json

_ROWS = 1024  # in memory at a time
_READ_AHEAD = 1 << 20  # bytes of a column


class InvalidRecord(ValueError):
    """An invalid record. The message states the problem and is printed after the number of the line or the row."""


def read_object(line: bytes) -> Any:
    """Returns the JSON value of a line.

    Raises InvalidRecord for a line that is not UTF-8 or not JSON, and for an object that has a key twice: RFC 8259,
    section 4, leaves open which of the values counts.
    """
    try:
        return parse_json(line.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"is not UTF-8 (byte {error.start} of the line)") from None
    except json.JSONDecodeError as error:
        raise InvalidRecord(f"is not JSON ({error.msg}, column {error.colno})") from None
    except InvalidRecord:
        raise
    except ValueError as error:  # nested too deeply, or an integer with too many digits
        raise InvalidRecord(f"cannot be read ({error})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidRecord(f"has the key {key!r} more than once")
    return found


def document_keys(names: Sequence[str], text_key: str, kind: str) -> list[str]:
    """Returns those of `names` that make documents: data.text_key and "label", or "prompt" and "response".

    names: of the columns of a table, or of the features of a dataset. kind: what they are, for the message: "column".
    Raises UnreadableFile where they are missing.
    """
    if text_key in names:
        return [name for name in dict.fromkeys([text_key, "label"]) if name in names]
    if {"prompt", "response"} <= set(names):
        return ["prompt", "response"]
    raise UnreadableFile(
        f"has no {kind} {text_key!r} (data.text_key), and no 'prompt' and 'response', only {sorted(names)}: "
        "set data.text_key"
    )


def keys_and_classes(features: Mapping[str, Any], text_key: str, kind: str, where: str) -> tuple[list[str], tuple]:
    """Returns `document_keys` of the features of a dataset, and the names of its classes, () where it has none.

    where: the config field that names the dataset, for the ConfigError that is raised as `document_keys` raises.
    """
    try:
        keys = document_keys(list(features), text_key, kind)
    except UnreadableFile as error:
        raise ConfigError(f"{where} {error}") from None
    return keys, tuple(getattr(features["label"], "names", ())) if "label" in keys else ()


def read_record(
    name: str,
    where: str,
    read_fields: Callable[[], Any],
    corpus: CorpusConfig,
    skipped: Skipped,
    file_digest: int | None = None,
) -> Iterator[RawDocument]:
    """Yields the documents that data.document_per cuts a record's text into, empty ones included.

    Args:
      name: of the file or dataset, for the documents.
      where: names the record in messages: "corpus.parquet, row 3".
      read_fields: returns the record, a dict. May raise InvalidRecord.
      corpus: the config of the corpus.
      skipped: counts a record that is invalid, with data.on_unreadable="skip".
      file_digest: of the documents; None: that of the record's prompt, or of its text, so that all responses to one
        prompt are on the same side of a split.

    Raises ConfigError for an invalid record, and for a prompt with a `data.document_per` that would cut its response.
    """
    try:
        document = document_of(name, read_fields(), corpus.text_key)
    except InvalidRecord as error:
        if corpus.on_unreadable != "skip":
            raise ConfigError(f"{where} {error}: fix that record, or set data.on_unreadable='skip'") from None
        skipped.first_line = skipped.first_line or where
        skipped.lines += 1
        return
    if document.prompt and corpus.document_per != "file":
        raise ConfigError(
            f"data.document_per={corpus.document_per!r} does not go with prompts and responses, which {where} has: "
            "set data.document_per='file'"
        )
    if file_digest is None:
        file_digest = text_digest((document.prompt or document.text).encode("utf-8"))
    document = document._replace(file_digest=file_digest)
    if corpus.document_per == "file":
        yield document
        return
    for text in split_text(document.text.split("\n"), corpus.document_per):
        yield document._replace(text=text)


def document_of(name: str, fields: Any, text_key: str, *, may_be_blank: bool = True) -> RawDocument:
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
    has = f", and has the keys {sorted(keys)}" if keys else ""
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


def read_jsonl(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a JSON-lines file, empty ones included. Raises OSError."""
    digest = file_digest(file)
    with open_contents(file) as contents:
        for number, line in numbered_lines(contents):
            read_fields = functools.partial(read_object, line)
            yield from read_record(file.name, f"{file.name}:{number}", read_fields, corpus, skipped, digest)


def numbered_lines(contents: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a JSON-lines file that are not blank, with their numbers, without a byte order mark."""
    for number, line in enumerate(contents, start=1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if line.strip():
            yield number, line


def read_parquet(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of a parquet file, empty ones included. Raises OSError and UnreadableFile."""
    yield from read_rows(_batches(file, corpus.text_key), file.name, corpus, skipped)


def _batches(file: File, text_key: str) -> Iterator[Any]:
    """Yields the rows of a file, as pyarrow.RecordBatches. Raises OSError and UnreadableFile."""
    import pyarrow
    from pyarrow import parquet

    open(file.path, "rb").close()  # for the reason of the operating system
    num_rows = 0
    try:
        # Checksums are checked where the file has them. Pages are read one at a time, and not a row group, for memory.
        options = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": _READ_AHEAD}
        with parquet.ParquetFile(file.path, **options) as table:
            names = table.schema_arrow.names
            columns = document_keys(names, text_key, "column")
            if twice := [name for name in columns if names.count(name) > 1]:
                raise UnreadableFile(f"has {names.count(twice[0])} columns {twice[0]!r}: rename all but one of them")
            for batch in table.iter_batches(_ROWS, columns=columns):
                num_rows += batch.num_rows
                yield batch
            if num_rows != table.metadata.num_rows:
                raise ValueError(f"{num_rows:,} rows instead of {table.metadata.num_rows:,}")
    except (pyarrow.ArrowException, OSError, ValueError, IndexError) as error:
        raise UnreadableFile(f"is not a whole parquet file ({' '.join(str(error).split())}): fix the file") from None


def read_rows(
    batches: Iterable[Any], name: str, corpus: CorpusConfig, skipped: Skipped, class_names: Sequence[str] = ()
) -> Iterator[RawDocument]:
    """Yields the documents of tables with the columns `document_keys`, empty ones included.

    batches: pyarrow.RecordBatches or Tables. name: of the file or dataset. class_names: of labels that are numbers.
    """
    row = itertools.count()
    for batch in batches:
        for fields in batch.to_pylist():
            if class_names:
                fields["label"] = class_name(class_names, fields["label"])
            read_fields = functools.partial(_decoded, fields)
            yield from read_record(name, f"{name}, row {next(row)}", read_fields, corpus, skipped)


def _decoded(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row as text, which many programs write as bytes. A null is an empty text."""
    return {key: "" if value is None else decoded_value(key, value) for key, value in fields.items()}
