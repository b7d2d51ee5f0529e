"""data.source="parquet", and the rows of Arrow tables: a document in each row. Only its columns are read."""

from collections.abc import Iterable, Iterator
from typing import Any

from data.sources.config import CorpusConfig
from data.sources.from_files import File, UnreadableFile, files_source
from data.sources.records import decoded_value, document_keys, read_record
from data.sources.source import RawDocument, Skipped, Source

_ROWS = 1024  # in memory at a time
_READ_AHEAD = 1 << 20  # bytes of a column


def open_parquet(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the parquet files `path`."""
    return files_source(corpus, path, field, corpus.document_per, _read_parquet)


def _read_parquet(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    yield from read_rows(_batches(file, corpus.text_key), file.name, 0, corpus, skipped)


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
            columns = document_columns(table.schema_arrow, text_key)
            for batch in table.iter_batches(_ROWS, columns=columns):
                num_rows += batch.num_rows
                yield batch
            if num_rows != table.metadata.num_rows:
                raise ValueError(f"{num_rows:,} rows instead of {table.metadata.num_rows:,}")
    except (pyarrow.ArrowException, OSError, ValueError, IndexError) as error:
        raise UnreadableFile(f"is not a whole parquet file ({' '.join(str(error).split())}): fix the file") from None


def document_columns(schema: Any, text_key: str) -> list[str]:
    """Returns the columns of the documents: data.text_key and "label", or "prompt" and "response".

    schema: a pyarrow.Schema. Raises UnreadableFile for a table without them, for two columns of one name, and for a
    column that is neither text nor bytes. Labels may be integers.
    """
    import pyarrow

    names = document_keys(schema.names, text_key, "column")
    for name in names:
        if (count := schema.names.count(name)) > 1:
            raise UnreadableFile(f"has {count} columns {name!r}: rename all but one of them")
        found = schema.field(name).type
        kind = found.value_type if pyarrow.types.is_dictionary(found) else found
        is_text = any(is_type(kind) for is_type in _text_types(pyarrow.types))
        if not (is_text or (name == "label" != text_key and pyarrow.types.is_integer(kind))):
            remedy = "rename this column" if name == "label" != text_key else "set data.text_key"
            kinds = "text or integers" if name == "label" != text_key else "text"
            raise UnreadableFile(f"has the type {found} in column {name!r}, which must be {kinds}: {remedy}")
    return names


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
