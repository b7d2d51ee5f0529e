"""data.source="parquet": tables with a document in each row. Only its columns are read, one batch of rows at a time."""

from collections.abc import Iterator
from typing import Any

from data.sources.config import CorpusConfig
from data.sources.from_files import File, UnreadableFile, files_source
from data.sources.from_tables import InvalidTable, document_columns, read_rows
from data.sources.raw import RawDocument, Skipped
from data.sources.source import Source

_ROWS = 1024  # in memory at a time
_READ_AHEAD = 1 << 20  # bytes of a column


def open_parquet(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the parquet files `path`."""
    return files_source(corpus, path, field, corpus.document_per, _read_parquet)


def _read_parquet(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    if corpus.on_unreadable == "skip":
        for _ in _batches(file, corpus.text_key):  # so that a file that is damaged at its end is skipped whole
            pass
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
    except InvalidTable as error:
        raise UnreadableFile(str(error), has_remedy=True) from None
    except (pyarrow.ArrowException, OSError, ValueError, IndexError) as error:
        raise UnreadableFile(f"is not a whole parquet file ({' '.join(str(error).split())})") from None
