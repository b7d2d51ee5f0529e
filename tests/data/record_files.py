"""Files of the same records in every format, for the tests of sources."""

import json

import pyarrow
from array_record.python.array_record_module import ArrayRecordWriter
from pyarrow import parquet
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2


def write_jsonl(path, records):
    """Writes records, dicts, as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_parquet(path, records, **options):
    """Writes records as rows, in several row groups."""
    parquet.write_table(pyarrow.Table.from_pylist(list(records)), path, **({"row_group_size": 7} | options))


def write_records(path, records, group_size=1):
    """Writes bytes as ArrayRecord."""
    writer = ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        writer.write(record)
    writer.close()


def example(record) -> bytes:
    """Returns a record as a serialized tf.train.Example."""
    features = tf_feature_pb2.Features()
    for key, value in record.items():
        if isinstance(value, int):
            features.feature[key].int64_list.value.append(value)
        else:
            features.feature[key].bytes_list.value.append(value.encode() if isinstance(value, str) else value)
    return tf_example_pb2.Example(features=features).SerializeToString()


def write_examples(path, records):
    """Writes records as tf.train.Examples in ArrayRecord."""
    write_records(path, map(example, records))


def zstd(contents) -> bytes:
    """Returns bytes compressed with Zstandard."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(contents)
    return sink.getvalue().to_pybytes()
