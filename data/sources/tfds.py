"""data.source="tfds": a dataset that TensorFlow Datasets has prepared on this machine, read without TensorFlow."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from contract.errors import ConfigError
from data.config import CorpusConfig
from data.files import describe_file, split_text, text_digest
from data.raw import RawDocument, Skipped
from data.sources.source import Part, Source, skip_empty


def open_tfds(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the split "train" of dataset data.path, or for data.heldout_path the split of this name."""
    split = "train" if field == "data.path" else path
    dataset = _open_split(corpus.path, split)
    part = Part(corpus.path, dataset.num_bytes, functools.partial(_read, corpus.path, split, corpus.document_per))
    return Source(f"{field}={path!r}", dataset.identity, corpus.document_per, (part,))


def _read(path: str, split: str, document_per: str, skipped: Skipped) -> Iterator[RawDocument]:
    for example in _open_split(path, split).texts():
        digest = text_digest(example.encode("utf-8"))
        texts = split_text(example, document_per)
        yield from skip_empty((RawDocument(path, text, file_digest=digest) for text in texts), skipped)


class PreparedDataset(NamedTuple):
    """A split of a dataset on this machine."""

    identity: dict[str, Any]  # JSON values that change whenever the examples may have changed
    num_bytes: int
    texts: Callable[[], Iterator[str]]  # starts a pass over the feature `text`


def _open_split(path: str, split: str) -> PreparedDataset:
    """Opens a split of dataset `path`, "name[/config][:version]", in TFDS_DATA_DIR or ~/tensorflow_datasets.

    The builder reads prepared files alone, without the dataset's code and without the network: a missing dataset is an
    error and not a download.

    Raises ConfigError where the dataset is not prepared in a format with random access, and where it has no such split
    or no feature `text`. `texts` raises ConfigError for a text that is not UTF-8 bytes.
    """
    from tensorflow_datasets.core import read_only_builder, registered

    where = f"data.path={path!r}"
    name = path.partition(":")[0].partition("/")[0]
    prepare = f"prepare it once with `tfds build {name} --file_format=array_record`"
    try:
        builder = read_only_builder.builder_from_files(path)
    except (registered.DatasetNotFoundError, ValueError) as error:
        raise ConfigError(f"{where} is not a prepared TFDS dataset ({_first_sentence(error)}): {prepare}") from None
    splits, features = builder.info.splits, builder.info.features
    if split not in splits:
        remedy = "use another dataset" if split == "train" else "set data.heldout_path to one of these"
        raise ConfigError(f"{where} has no split {split!r}, only {sorted(splits)}: {remedy}")
    if "text" not in features:
        raise ConfigError(f"{where} has no feature 'text', only {sorted(features)}: use another dataset")
    try:
        examples = builder.as_data_source(split=split)
    except NotImplementedError:
        raise ConfigError(f"{where} is not in the format array_record, which has random access: {prepare}") from None

    def texts() -> Iterator[str]:
        for index in range(len(examples)):
            text = examples[index]["text"]
            if not isinstance(text, bytes):
                raise ConfigError(f"{where}: feature 'text' has type {type(text).__name__}: use another dataset")
            try:
                yield text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{where}: example {index} is not UTF-8 (byte {error.start}): fix the dataset"
                ) from None

    files = [describe_file(str(file)) for file in splits[split].filepaths]
    return PreparedDataset({"dataset": builder.info.full_name, "files": files}, int(splits[split].num_bytes), texts)


def _first_sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". ")[0]
