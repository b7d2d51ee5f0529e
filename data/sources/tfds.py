"""data.source="tfds": a dataset that TensorFlow Datasets has prepared on this machine, read without TensorFlow.

data.path is its name, "name[/config][:version]", in TFDS_DATA_DIR or ~/tensorflow_datasets. The builder reads prepared
files alone, without the dataset's code and without the network: a missing dataset is an error and not a download.
"""

import functools
from collections.abc import Iterator
from typing import Any

from contract.errors import ConfigError
from data.config import CorpusConfig
from data.files import describe_file
from data.raw import RawDocument, Skipped
from data.sources.array_record import read_records
from data.sources.from_files import File, file_part
from data.sources.source import Source
from data.storage import in_bucket


def open_tfds(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the split "train" of dataset data.path, or for data.heldout_path the split of this name.

    Raises ConfigError where the dataset is not prepared in the format ArrayRecord, and where it has no such split or no
    feature data.text_key that is text.
    """
    info = _open_dataset(corpus.path).info
    where, split = f"data.path={corpus.path!r}", "train" if field == "data.path" else path
    if split not in info.splits:
        remedy = "use another dataset" if split == "train" else "set data.heldout_path to one of these"
        raise ConfigError(f"{where} has no split {split!r}, only {sorted(info.splits)}: {remedy}")
    _check_feature(info.features, corpus.text_key, where)
    if info.file_format.value != "array_record":
        raise ConfigError(
            f"{where} is not in the format array_record, which has random access: {_prepare(corpus.path)}"
        )
    paths = [str(path) for path in info.splits[split].filepaths]
    for path_of_shard in paths:
        if in_bucket(path_of_shard):
            raise ConfigError(f"{where} is in the bucket of {path_of_shard}: copy the dataset to this machine")
    shards = zip(paths, info.splits[split].shard_lengths, strict=True)
    num_bytes = int(info.splits[split].num_bytes) // len(paths)
    parts = tuple(
        file_part(File(corpus.path, path), num_bytes, functools.partial(_read_shard, num_records), corpus)
        for path, num_records in shards
    )
    identity = {"dataset": info.full_name, "files": [describe_file(path) for path in paths]}
    return Source(f"{field}={path!r}", identity, corpus.document_per, parts)


def _read_shard(num_records: int, file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    yield from read_records(file, {corpus.text_key}, num_records, corpus, skipped)


def _open_dataset(path: str) -> Any:
    from tensorflow_datasets.core import read_only_builder, registered

    try:
        return read_only_builder.builder_from_files(path)
    except (registered.DatasetNotFoundError, ValueError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"data.path={path!r} is not a prepared TFDS dataset ({reason}): {_prepare(path)}") from None


def _check_feature(features: Any, text_key: str, where: str) -> None:
    from tensorflow_datasets.core.features import Text

    if text_key not in features:
        raise ConfigError(f"{where} has no feature {text_key!r} (data.text_key), only {sorted(features)}: set it")
    if not isinstance(features[text_key], Text):
        raise ConfigError(f"{where}: feature {text_key!r} is {features[text_key]}, and not text: set data.text_key")


def _prepare(path: str) -> str:
    name = path.partition(":")[0].partition("/")[0]
    return f"prepare it once with `tfds build {name} --file_format=array_record`"
