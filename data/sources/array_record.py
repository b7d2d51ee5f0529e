"""data.source="array_record" and "tfds": files of serialized tf.train.Examples, of JSON objects or of text.

With data.text_key="" a record is a text in UTF-8. Otherwise a record that begins with "{", which no serialized Example
does, is a JSON object, and any other one an Example.

"tfds" is a dataset that TensorFlow Datasets has prepared on this machine, read without TensorFlow. data.path is its
name, "name[/config][:version]", in TFDS_DATA_DIR or ~/tensorflow_datasets. The builder reads prepared files alone,
without the dataset's code and without the network: a missing dataset is an error and not a download. If the dataset's
features.json names a class of its own for a feature, TFDS imports the module that it names.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import File, UnreadableFile, describe_file, file_part
from data.sources.records import InvalidRecord, class_name, decoded_value, keys_and_classes, read_object, read_record
from data.sources.source import RawDocument, Skipped, Source

_RECORDS = 32  # in memory at a time


def read_records(
    file: File,
    corpus: CorpusConfig,
    skipped: Skipped,
    keys: Sequence[str] = (),
    class_names: Sequence[str] = (),
    num_records: int | None = None,
) -> Iterator[RawDocument]:
    """Yields the documents of an ArrayRecord file, empty ones included.

    keys: the fields of records that are read; (): all that make documents. class_names: of labels that are numbers of
    classes; () for other labels. num_records: that the file must have, None if that is unknown.

    Raises OSError and UnreadableFile.
    """
    keys = keys or (corpus.text_key, "label", "prompt", "response")
    for number, record in enumerate(_records(file, num_records)):
        read_fields = functools.partial(_fields, record, keys, corpus.text_key, class_names)
        yield from read_record(file.name, f"{file.name}, record {number}", read_fields, corpus, skipped)


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
        raise UnreadableFile(
            f"is not a whole ArrayRecord file ({' '.join(str(error).split())}): fix the file"
        ) from None


def _fields(record: bytes, keys: Sequence[str], text_key: str, class_names: Sequence[str]) -> Any:
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


def open_tfds(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the split "train" of dataset data.path, or for data.heldout_path the split of this name.

    Raises ConfigError where the dataset is not prepared in the format ArrayRecord, and where it has no such split or no
    features that make documents.
    """
    info = _open_dataset(corpus.path).info
    where, split = f"data.path={corpus.path!r}", "train" if field == "data.path" else path
    if split not in info.splits:
        remedy = "use another dataset" if split == "train" else "set data.heldout_path to one of these"
        raise ConfigError(f"{where} has no split {split!r}, only {sorted(info.splits)}: {remedy}")
    keys, names = keys_and_classes(info.features, corpus.text_key, "feature", where)
    if info.file_format is None or info.file_format.value != "array_record":
        raise ConfigError(
            f"{where} is not in the format array_record, which has random access: {_how_to_prepare(corpus.path)}"
        )
    paths = [str(path) for path in info.splits[split].filepaths]
    shards = zip(paths, info.splits[split].shard_lengths, strict=True)
    num_bytes = int(info.splits[split].num_bytes) // len(paths)
    parts = []
    for path_of_shard, num_records in shards:
        read_file = functools.partial(read_records, keys=keys, class_names=names, num_records=num_records)
        parts.append(file_part(File(path_of_shard, path_of_shard), num_bytes, read_file, corpus, field))
    files = [describe_file(path) for path in paths]
    identity = {"dataset": info.full_name, "files": files, "features": keys, "classes": names}
    return Source(f"{field}={path!r}", identity, corpus.document_per, tuple(parts))


def _open_dataset(path: str) -> Any:
    from tensorflow_datasets.core import read_only_builder

    if "=" in path:  # TFDS also reads arguments of the builder there, such as another folder
        raise ConfigError(f"data.path={path!r} must be name[/config][:version]: set TFDS_DATA_DIR for another folder")
    try:
        return read_only_builder.builder_from_files(path)
    except Exception as error:  # of TFDS, protobuf or the operating system: they have no common class
        reason = str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise ConfigError(
            f"data.path={path!r} is not a prepared TFDS dataset ({reason}): {_how_to_prepare(path)}"
        ) from None


def _how_to_prepare(path: str) -> str:
    return (
        f"prepare it once with `tfds build {path.partition(':')[0]} --file_format=array_record`, or set TFDS_DATA_DIR "
        "to the folder that has it"
    )
