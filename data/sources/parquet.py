"""data.source="parquet", and the rows of Arrow tables: a document in each row. Only its columns are read."""

import functools
import itertools
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
            columns = document_keys(table.schema_arrow.names, text_key, "column")
            for batch in table.iter_batches(_ROWS, columns=columns):
                num_rows += batch.num_rows
                yield batch
            if num_rows != table.metadata.num_rows:
                raise ValueError(f"{num_rows:,} rows instead of {table.metadata.num_rows:,}")
    except (pyarrow.ArrowException, OSError, ValueError, IndexError) as error:
        raise UnreadableFile(f"is not a whole parquet file ({' '.join(str(error).split())}): fix the file") from None


def read_rows(batches: Iterable[Any], name: str, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents of tables with the columns `document_keys`, empty ones included.

    batches: pyarrow.RecordBatches or Tables. name: of the file or dataset.
    """
    row = itertools.count()
    for batch in batches:
        columns = [_values(batch.column(index)) for index in range(batch.num_columns)]
        for values in zip(*columns, strict=True):
            read_fields = functools.partial(_decoded, dict(zip(batch.schema.names, values, strict=True)))
            yield from read_record(name, f"{name}, row {next(row)}", read_fields, corpus, skipped)


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
