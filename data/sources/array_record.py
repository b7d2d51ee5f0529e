"""data.source="array_record": files of serialized tf.train.Examples, as TFDS writes them, of JSON objects or of text.

With data.text_key="" a record is a text in UTF-8. Otherwise a record that begins with "{", which no serialized Example
does, is a JSON object, and any other one an Example.
"""

import functools
from collections.abc import Iterator
from typing import Any

from data.sources.config import CorpusConfig
from data.sources.from_files import File, UnreadableFile, files_source
from data.sources.from_records import read_record
from data.sources.raw import RawDocument, Skipped
from data.sources.records import InvalidRecord, class_name, decoded_value, read_object
from data.sources.source import Source

_RECORDS = 32  # in memory at a time


def open_array_record(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the corpus of the ArrayRecord files `path`."""
    return files_source(corpus, path, field, corpus.document_per, _read_array_record)


def _read_array_record(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    keys = {corpus.text_key, "label", "prompt", "response"}
    yield from read_records(file, keys, None, corpus, skipped)


def read_records(
    file: File,
    keys: set[str],
    num_records: int | None,
    corpus: CorpusConfig,
    skipped: Skipped,
    class_names: tuple[str, ...] = (),
) -> Iterator[RawDocument]:
    """Yields the documents of an ArrayRecord file, empty ones included.

    keys: the fields of records that are read. num_records: that the file must have, None if that is unknown.
    class_names: of labels that are numbers of classes; () for other labels.

    Raises OSError and UnreadableFile, before the first document with data.on_unreadable="skip".
    """
    if corpus.on_unreadable == "skip":
        for _ in _records(file, num_records):  # so that a file that is damaged at its end is skipped whole
            pass
    for number, record in enumerate(_records(file, num_records)):
        where = f"{file.shown}, record {number}"
        read_fields = functools.partial(_fields, record, keys, corpus.text_key, class_names)
        yield from read_record(file.name, where, read_fields, corpus, skipped)


def _records(file: File, num_records: int | None) -> Iterator[bytes]:
    from array_record.python.array_record_module import ArrayRecordReader

    open(file.path, "rb").close()  # for the reason of the operating system
    try:
        reader = ArrayRecordReader(file.path)
        try:
            found = reader.num_records()
            if num_records not in (None, found):
                raise RuntimeError(f"{found:,} records instead of {num_records:,}")
            for begin in range(0, found, _RECORDS):
                yield from reader.read(begin, min(begin + _RECORDS, found))
        finally:
            reader.close()
    except RuntimeError as error:
        raise UnreadableFile(f"is not a whole ArrayRecord file ({' '.join(str(error).split())})") from None


def _fields(record: bytes, keys: set[str], text_key: str, class_names: tuple[str, ...]) -> Any:
    """Returns the fields of a record among `keys`. Raises InvalidRecord."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    if not text_key:
        return {text_key: decoded_value("the record", record)}
    if record.startswith(b"{"):
        return read_object(record)
    try:
        features = tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError:
        raise InvalidRecord(
            "is neither a tf.train.Example nor a JSON object (data.text_key='' reads records of text)"
        ) from None
    fields = {key: decoded_value(key, _value(key, features[key])) for key in keys if key in features}
    if class_names and "label" in fields:
        fields["label"] = class_name(class_names, fields["label"])
    return fields


def _value(key: str, feature: Any) -> Any:
    """Returns the one value of a tf.train.Feature."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else []
    if len(values) != 1:
        raise InvalidRecord(f"has {len(values)} values for {key!r}, which must be one")
    return values[0]
