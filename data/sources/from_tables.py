"""Documents of the rows of Arrow tables, of which only the columns of the documents are read."""

from collections.abc import Iterable, Iterator
from typing import Any

from data.sources.config import CorpusConfig
from data.sources.from_records import read_record
from data.sources.raw import RawDocument, Skipped
from data.sources.records import decoded_value


class InvalidTable(ValueError):
    """A table without documents. The message states the problem and the remedy, and is printed after its name."""


def document_columns(schema: Any, text_key: str) -> list[str]:
    """Returns the columns of the documents: data.text_key and "label", or "prompt" and "response".

    schema: a pyarrow.Schema. Raises InvalidTable for a table without them, for two columns of one name, and for a
    column that is neither text nor bytes. Labels may be integers.
    """
    import pyarrow

    names = list(dict.fromkeys([text_key, "label"])) if text_key in schema.names else ["prompt", "response"]
    if names[0] not in schema.names or (names[0] != text_key and "response" not in schema.names):
        raise InvalidTable(
            f"has no column {text_key!r} (data.text_key), and no 'prompt' and 'response', only {schema.names}: "
            "set data.text_key"
        )
    for name in names:
        if name not in schema.names:
            continue
        if (count := schema.names.count(name)) > 1:
            raise InvalidTable(f"has {count} columns {name!r}: rename all but one of them")
        found = schema.field(name).type
        kind = found.value_type if pyarrow.types.is_dictionary(found) else found
        is_text = any(is_type(kind) for is_type in _text_types(pyarrow.types))
        if not (is_text or (name == "label" != text_key and pyarrow.types.is_integer(kind))):
            remedy = "rename this column" if name == "label" != text_key else "set data.text_key"
            kinds = "text or integers" if name == "label" != text_key else "text"
            raise InvalidTable(f"has the type {found} in column {name!r}, which must be {kinds}: {remedy}")
    return [name for name in names if name in schema.names]


def read_rows(
    batches: Iterable[Any], name: str, first_row: int, corpus: CorpusConfig, skipped: Skipped
) -> Iterator[RawDocument]:
    """Yields the documents of tables with the columns `document_columns`, empty ones included.

    batches: pyarrow.RecordBatches or Tables. name: of the file or dataset. first_row: the number of the first row.
    """
    row = first_row
    for batch in batches:
        columns = [_values(batch.column(index)) for index in range(batch.num_columns)]
        for values in zip(*columns, strict=True):
            fields = dict(zip(batch.schema.names, values, strict=True))
            yield from read_record(name, f"{name}, row {row}", lambda fields=fields: _decoded(fields), corpus, skipped)
            row += 1


def _text_types(types: Any) -> tuple:
    """Returns tests of types. Many programs write text to parquet files as bytes, without its type."""
    of_text = types.is_string, types.is_large_string, types.is_string_view
    return *of_text, types.is_binary, types.is_large_binary, types.is_binary_view


def _values(column: Any) -> list[Any]:
    """Returns the values of a column, texts as bytes: Arrow does not check that they are UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = any(is_type(column.type) for is_type in _text_types(pyarrow.types))
    return (column.cast(pyarrow.large_binary()) if is_text else column).to_pylist()


def _decoded(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row as text. A null is an empty text."""
    return {key: "" if value is None else decoded_value(key, value) for key, value in fields.items()}
