"""Where documents come from: the standard library's own source text or its functions, text files, JSON-lines files of
prompts and responses or of labelled texts, or a prepared TFDS dataset."""

import dataclasses
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from contract.errors import ConfigError
from data.config import DataFields
from data.files import describe_file, find_files, read_documents, split_text
from data.jsonl import read_jsonl
from data.raw import RawDocument, Skipped
from data.stdlib_functions import functions

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

_Read = Callable[[str, str], Iterator[RawDocument]]  # of a file's name and path


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus that has been found, but not read.

    Attributes:
      where: the config fields that name it, for messages.
      identity: JSON values that change whenever the documents may have.
      num_bytes: about how much text there is, for a progress bar.
      documents: starts a pass over the documents, none of them empty, always in the same order; counts what it leaves
        out. Raises ConfigError for what cannot be read.
    """

    where: str
    identity: dict[str, Any]
    num_bytes: int
    documents: Callable[[Skipped], Iterator[RawDocument]]


def open_source(fields: DataFields) -> Source:
    """Finds the corpus of `data.source` and `data.path`. Raises ConfigError where there is none."""
    if fields.source not in _SOURCES:
        raise ConfigError(f"data.source={fields.source!r} must be one of {', '.join(map(repr, _SOURCES))}")
    embedded = fields.source in ("stdlib", "stdlib_functions")
    if embedded and fields.path:
        raise ConfigError(
            f"data.path={fields.path!r} is not read by data.source={fields.source!r}: set data.source to 'text'"
        )
    if not embedded and not fields.path:
        raise ConfigError(f"data.source={fields.source!r} reads data.path, and that is empty: set it")
    if fields.document_per != "file" and fields.source in ("jsonl", "stdlib_functions"):
        what = "lines" if fields.source == "jsonl" else "functions"
        raise ConfigError(
            f"data.document_per={fields.document_per!r} does not go with data.source={fields.source!r}, "
            f"whose documents are {what}: leave it 'file'"
        )
    return _SOURCES[fields.source](fields)


def _stdlib(fields: DataFields) -> Source:
    """The *.py files of the running Python's standard library, read as text and never executed.

    A document's label is the package that its file is in, the outermost one: none for a module on its own.
    """

    def read(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, fields.document_per):
            yield RawDocument(name, text, label=_package(name))

    return _of_stdlib(fields, read)


def _stdlib_functions(fields: DataFields) -> Source:
    """The documented functions of the same files: see data/stdlib_functions.py."""

    def read(name: str, path: str) -> Iterator[RawDocument]:
        for module in read_documents(path, "file"):
            for prompt, response in functions(module):
                yield RawDocument(name, response, prompt, _package(name))

    return _of_stdlib(fields, read)


def _of_stdlib(fields: DataFields, read: _Read) -> Source:
    root = sysconfig.get_paths()["stdlib"]
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # site-packages alone can take seconds
        paths += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    files = sorted((Path(path).relative_to(root).as_posix(), path) for path in paths)
    where = f"data.source={fields.source!r}"
    if not files:
        raise ConfigError(f"{where} finds no .py file under {root}: set data.source='text' and data.path")
    # Sizes without times: the same Python in another folder or container holds the same text.
    sizes = {name: os.path.getsize(path) for name, path in files}
    identity = {"python": platform.python_version(), "files": sizes}
    return Source(where, identity, sum(sizes.values()), lambda skipped: _read_all(files, read, fields, skipped))


def _package(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _text(fields: DataFields) -> Source:
    def read(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, fields.document_per):
            yield RawDocument(name, text)

    return _of_files(fields, lambda skipped: read)


def _jsonl(fields: DataFields) -> Source:
    return _of_files(fields, lambda skipped: lambda name, path: read_jsonl(path, fields.on_unreadable, skipped))


def _of_files(fields: DataFields, reader: Callable[[Skipped], _Read]) -> Source:
    paths = find_files(fields.path)
    described = [describe_file(path) for path in paths]
    num_bytes = sum(max(size, 0) for _, size, _ in described)
    files = [(path, path) for path in paths]

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        return _read_all(files, reader(skipped), fields, skipped)

    return Source(f"data.path={fields.path!r}", {"files": described}, num_bytes, documents)


def _tfds(fields: DataFields) -> Source:
    from data.tfds_source import open_tfds

    dataset = open_tfds(fields.path)

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        for whole in dataset.texts():
            texts = split_text(whole, fields.document_per)
            yield from _not_empty((RawDocument(fields.path, text) for text in texts), skipped)

    return Source(f"data.path={fields.path!r}", dataset.identity, dataset.num_bytes, documents)


_SOURCES = {"stdlib": _stdlib, "stdlib_functions": _stdlib_functions, "text": _text, "jsonl": _jsonl, "tfds": _tfds}


def _read_all(files: list[tuple[str, str]], read: _Read, fields: DataFields, skipped: Skipped) -> Iterator[RawDocument]:
    for name, path in files:
        try:
            yield from _not_empty(read(name, path), skipped)
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            if fields.on_unreadable == "skip":
                skipped.files.append(path)
                continue
            raise ConfigError(
                f"{path} {_what(error)}: mend it, leave it out of data.path, or set data.on_unreadable='skip'"
            ) from None


def _what(error: OSError | UnicodeDecodeError | SyntaxError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start})"
    if isinstance(error, SyntaxError):
        return f"is not Python (line {error.lineno}: {error.msg})"
    return f"cannot be read ({error.strerror})"


def _not_empty(documents: Iterable[RawDocument], skipped: Skipped) -> Iterator[RawDocument]:
    for document in documents:
        if document.text.strip():
            yield document
        else:
            skipped.empty += 1
