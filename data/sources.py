"""Where documents come from: the standard library's own source text, text files, or a prepared TFDS dataset."""

import dataclasses
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from data.fields import DataFields
from data.files import describe_file, find_files, read_documents, split_text
from objectives.errors import ConfigError

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclasses.dataclass
class Skipped:
    """What a pass over the documents left out."""

    empty: int = 0  # documents of nothing but whitespace
    files: list[str] = dataclasses.field(default_factory=list)  # unreadable, with data.on_unreadable="skip"


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus that has been found, but not read.

    Attributes:
      where: the config fields that name it, for messages.
      identity: JSON values that change whenever the documents may have.
      num_bytes: about how much text there is, for a progress bar.
      documents: starts a pass over the documents, (name of the file or dataset, text), none of them empty, always in
        the same order; counts what it leaves out. Raises ConfigError for what cannot be read.
    """

    where: str
    identity: dict[str, Any]
    num_bytes: int
    documents: Callable[[Skipped], Iterator[tuple[str, str]]]


def open_source(fields: DataFields) -> Source:
    """Finds the corpus of `data.source` and `data.path`. Raises ConfigError where there is none."""
    sources = {"stdlib": _stdlib, "text": _text, "tfds": _tfds}
    if fields.source not in sources:
        raise ConfigError(f"data.source={fields.source!r} must be one of {', '.join(map(repr, sources))}")
    if fields.source == "stdlib" and fields.path:
        raise ConfigError(f"data.path={fields.path!r} is not read by data.source='stdlib': set data.source to 'text'")
    if fields.source != "stdlib" and not fields.path:
        raise ConfigError(f"data.source={fields.source!r} reads data.path, and that is empty: set it")
    return sources[fields.source](fields)


def _stdlib(fields: DataFields) -> Source:
    """The *.py files of the running Python's standard library, read as text and never executed."""
    root = sysconfig.get_paths()["stdlib"]
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # site-packages alone can take seconds
        paths += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    files = sorted((Path(path).relative_to(root).as_posix(), path) for path in paths)
    if not files:
        raise ConfigError(f"data.source='stdlib' finds no .py file under {root}: set data.source='text' and data.path")
    # Sizes without times: the same Python in another folder or container holds the same text.
    sizes = {name: os.path.getsize(path) for name, path in files}
    identity = {"python": platform.python_version(), "files": sizes}
    return Source("data.source='stdlib'", identity, sum(sizes.values()), lambda skipped: _read(files, fields, skipped))


def _text(fields: DataFields) -> Source:
    paths = find_files(fields.path)
    described = [describe_file(path) for path in paths]
    num_bytes = sum(max(size, 0) for _, size, _ in described)
    files = [(path, path) for path in paths]
    where = f"data.path={fields.path!r}"
    return Source(where, {"files": described}, num_bytes, lambda skipped: _read(files, fields, skipped))


def _tfds(fields: DataFields) -> Source:
    from data.tfds_source import open_tfds  # imports tensorflow_datasets, which takes a second

    dataset = open_tfds(fields.path)

    def documents(skipped: Skipped) -> Iterator[tuple[str, str]]:
        for text in dataset.texts():
            yield from _not_empty(fields.path, split_text(text, fields.document_per), skipped)

    return Source(f"data.path={fields.path!r}", dataset.identity, dataset.num_bytes, documents)


def _read(files: list[tuple[str, str]], fields: DataFields, skipped: Skipped) -> Iterator[tuple[str, str]]:
    for name, path in files:
        try:
            yield from _not_empty(name, read_documents(path, fields.document_per), skipped)
        except (OSError, UnicodeDecodeError) as error:
            if fields.on_unreadable == "skip":
                skipped.files.append(path)
                continue
            bad_bytes = isinstance(error, UnicodeDecodeError)
            what = f"is not UTF-8 (byte {error.start})" if bad_bytes else f"cannot be read ({error.strerror})"
            raise ConfigError(
                f"{path} {what}: mend it, leave it out of data.path, or set data.on_unreadable='skip'"
            ) from None


def _not_empty(name: str, texts: Iterable[str], skipped: Skipped) -> Iterator[tuple[str, str]]:
    for text in texts:
        if text.strip():
            yield name, text
        else:
            skipped.empty += 1
