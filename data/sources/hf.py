"""data.source="hf": a dataset of the Hugging Face library `datasets` (extra: hf).

data.path is a dataset of the Hub, "name[/config][@revision][:split]", such as "allenai/c4/en", or a folder of this
machine with an optional ":split": one that `save_to_disk` wrote, or one of files. The library downloads a dataset of
the Hub to its own cache. HF_HUB_OFFLINE=1 reads the cache alone.
"""

import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.records import keys_and_classes, read_rows
from data.sources.source import Part, RawDocument, Skipped, Source, skip_empty
from files.paths import check_path, in_bucket

_ROWS = 1024  # in memory at a time
_NAME = re.compile(r"(?P<name>[^@:]+)(?:@(?P<revision>[^:]+))?(?::(?P<split>.+))?")


class _Address(NamedTuple):
    """What data.path names."""

    name: str  # of the Hub, or a folder
    config: str | None
    revision: str | None
    split: str
    is_folder: bool


def open_hf(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns a split of dataset data.path: the one in data.path or "train", or for data.heldout_path that one.

    Raises ConfigError for a dataset that does not exist, is damaged or cannot be downloaded, without such a split, or
    without a column of text.
    """
    address, where = _parse(corpus.path), f"data.path={corpus.path!r}"
    if field != "data.path":
        _check_disjoint(address.split, path, where)
        address = address._replace(split=path)
    dataset = _load(address, where)
    fingerprint = dataset._fingerprint  # of the contents
    columns, names = keys_and_classes(dataset.features, corpus.text_key, "column", where)
    dataset = dataset.select_columns(columns).with_format("arrow")
    part = Part(corpus.path, dataset.data.nbytes, functools.partial(_read, dataset, names, corpus))
    identity = {"files": [(f"{address.name}:{address.split}", fingerprint)]}
    return Source(f"{field}={path!r}", identity, corpus.document_per, (part,))


def _read(dataset: Any, names: tuple[str, ...], corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    tables = (dataset[row : row + _ROWS] for row in range(0, len(dataset), _ROWS))
    yield from skip_empty(read_rows(tables, corpus.path, corpus, skipped, names), skipped)


def _check_disjoint(split: str, heldout: str, where: str) -> None:
    """Raises ConfigError where both name a split, such as "train" and "train[:1%]". Two slices are not compared."""
    parts, of_heldout = ([part.partition("[")[::2] for part in names.split("+")] for names in (split, heldout))
    # "all" is all splits.
    if any((a == b or "all" in (a, b)) and not (x and y) for a, x in parts for b, y in of_heldout):
        raise ConfigError(
            f"{where} is the split {split!r}, and data.heldout_path={heldout!r} is text of it: held-out text must not "
            "be trained on; name other splits, or slices such as 'train[:99%]' and 'train[99%:]'"
        )


def _parse(path: str) -> _Address:
    """Returns what data.path names. Raises ConfigError for what is neither a folder nor a name."""
    where = f"data.path={path!r}"
    if in_bucket(path):
        raise ConfigError(f"{where} is in a bucket: copy the dataset to this machine, or read its files with 'parquet'")
    check_path(path, where)
    for folder, split in ((path, ""), path.rpartition(":")[::2], path.partition(":")[::2]):
        folder = os.path.expanduser(folder)
        if os.path.isdir(folder):
            return _Address(os.path.abspath(folder), None, None, split or "train", is_folder=True)
    match = _NAME.fullmatch(path)
    parts = match["name"].split("/") if match else []
    if match is None or not (1 <= len(parts) <= 3 and all(parts)) or path.startswith("~"):
        raise ConfigError(f"{where} is no folder and no dataset's name: write OWNER/NAME[/CONFIG][@REVISION][:SPLIT]")
    name, config = "/".join(parts[:2]), "".join(parts[2:]) or None
    if name == "pandas":  # a module of `datasets` that unpickles files of the current folder
        raise ConfigError(f"{where} reads pickled files, which can execute any code: save the data as parquet")
    return _Address(name, config, match["revision"], match["split"] or "train", is_folder=False)


def _load(address: _Address, where: str) -> Any:
    """Returns a datasets.Dataset. Raises ConfigError."""
    try:
        import datasets
    except ImportError:
        raise ConfigError("data.source='hf' needs Hugging Face's datasets: pip install -e '.[hf]'") from None
    if address.is_folder:
        _check_whole(address.name, where)
    datasets.logging.set_verbosity(logging.CRITICAL)  # an error is one line, below
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        names = ("state.json", "dataset_dict.json")  # of a folder that save_to_disk wrote
        if not (address.is_folder and any(os.path.exists(os.path.join(address.name, name)) for name in names)):
            return datasets.load_dataset(address.name, address.config, revision=address.revision, split=address.split)
        saved = datasets.load_from_disk(address.name)
        if isinstance(saved, datasets.Dataset):  # a single split
            saved = {str(saved.split or "train"): saved}
        if address.split not in saved:
            raise ValueError(f"it has no split {address.split!r}, only {sorted(saved)}")
        return saved[address.split]
    except Exception as error:  # of the library, or of one that it calls: they have no common class
        remedy = "check the name and the network, or name a dataset of this machine"
        remedy = "fix the folder, or name another one" if address.is_folder else remedy
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        raise ConfigError(f"{where}: split {address.split!r} cannot be loaded ({reason}): {remedy}") from None


def _check_whole(folder: str, where: str) -> None:
    """Raises ConfigError for files in `folder` that `save_to_disk` did not write to the end.

    The library writes state.json last, and would read a folder without it as a folder of files.
    """
    for path in sorted(Path(folder).glob("**/data-*-of-*.arrow")):
        if not (path.parent / "state.json").exists():
            raise ConfigError(f"{where}: {path.parent} has no state.json: save_to_disk was interrupted: save it again")
