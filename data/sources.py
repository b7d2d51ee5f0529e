"""The corpora that `data.source` names.

The Python standard library's source text or documented functions, text files, JSON-lines files of prompts and responses
or of labeled texts, and prepared TFDS datasets.
"""

import dataclasses
import difflib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from contract.errors import ConfigError
from data.config import CorpusConfig
from data.files import describe_file, find_files, read_documents, split_text
from data.jsonl import read_jsonl
from data.raw import RawDocument, Skipped
from data.stdlib_functions import documented_functions

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

_ReadFile = Callable[[str, str], Iterator[RawDocument]]  # from a file's name and path


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus that has been found, but not been read.

    Attributes:
      where: the config fields that name the corpus, for messages.
      identity: JSON values that change whenever the documents may have changed.
      num_bytes: approximate size of the text, for a progress bar.
      documents: starts a pass over the documents that are not empty, always in the same order, and counts what the
        pass skips. Raises ConfigError for what cannot be read.
    """

    where: str
    identity: dict[str, Any]
    num_bytes: int
    documents: Callable[[Skipped], Iterator[RawDocument]]


def check_source(name: str) -> None:
    """Raises ConfigError if `name` is not a value of `data.source`. The message suggests the most similar value."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"data.source={name!r} must be one of {', '.join(map(repr, SOURCES))}{hint}")


def open_source(corpus: CorpusConfig) -> Source:
    """Returns the corpus of `data.source` and `data.path`.

    Raises ConfigError if there is no such corpus, and for fields that exclude each other.
    """
    check_source(corpus.source)
    embedded = corpus.source in ("stdlib", "stdlib_functions")
    if embedded and corpus.path:
        raise ConfigError(
            f"data.path={corpus.path!r} is not read by data.source={corpus.source!r}: set data.source to 'text'"
        )
    if not embedded and not corpus.path:
        raise ConfigError(f"data.source={corpus.source!r} reads data.path, which is empty: set data.path")
    if corpus.document_per != "file" and corpus.source in ("jsonl", "stdlib_functions"):
        documents = "lines" if corpus.source == "jsonl" else "functions"
        raise ConfigError(
            f"data.document_per={corpus.document_per!r} does not go with data.source={corpus.source!r}, "
            f"whose documents are {documents}: set data.document_per='file'"
        )
    return SOURCES[corpus.source](corpus)


def _stdlib(corpus: CorpusConfig) -> Source:
    """The *.py files of the running Python's standard library, read as text and never executed.

    A document's label is the outermost package that contains its file, "" for a module outside packages.
    """

    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, corpus.document_per):
            yield RawDocument(name, text, label=_package(name))

    return _stdlib_source(corpus, read_file)


def _stdlib_functions(corpus: CorpusConfig) -> Source:
    """The documented functions of the files of `_stdlib`: see data/stdlib_functions.py."""

    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for module in read_documents(path, "file"):
            for prompt, response in documented_functions(module):
                yield RawDocument(name, response, prompt, _package(name))

    return _stdlib_source(corpus, read_file)


def _stdlib_source(corpus: CorpusConfig, read_file: _ReadFile) -> Source:
    root = sysconfig.get_paths()["stdlib"]
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # site-packages alone can take seconds
        paths += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    files = sorted((Path(path).relative_to(root).as_posix(), path) for path in paths)
    where = f"data.source={corpus.source!r}"
    if not files:
        raise ConfigError(f"{where} finds no .py file under {root}: set data.source='text' and data.path")
    # Sizes without times: the same Python in another folder or container has the same text.
    sizes = {name: os.path.getsize(path) for name, path in files}
    identity = {"python": platform.python_version(), "files": sizes}
    return Source(
        where,
        identity,
        sum(sizes.values()),
        lambda skipped: _read_files(files, read_file, corpus.on_unreadable, skipped),
    )


def _package(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _text(corpus: CorpusConfig) -> Source:
    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, corpus.document_per):
            yield RawDocument(name, text)

    return _files_source(corpus, lambda skipped: read_file)


def _jsonl(corpus: CorpusConfig) -> Source:
    return _files_source(corpus, lambda skipped: lambda name, path: read_jsonl(path, corpus.on_unreadable, skipped))


def _files_source(corpus: CorpusConfig, make_read_file: Callable[[Skipped], _ReadFile]) -> Source:
    paths = find_files(corpus.path)
    described = [describe_file(path) for path in paths]
    num_bytes = sum(max(size, 0) for _, size, _ in described)
    files = [(path, path) for path in paths]

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        return _read_files(files, make_read_file(skipped), corpus.on_unreadable, skipped)

    return Source(f"data.path={corpus.path!r}", {"files": described}, num_bytes, documents)


def _tfds(corpus: CorpusConfig) -> Source:
    from data.tfds_source import open_tfds

    dataset = open_tfds(corpus.path)

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        for example in dataset.texts():
            texts = split_text(example, corpus.document_per)
            yield from _skip_empty((RawDocument(corpus.path, text) for text in texts), skipped)

    return Source(f"data.path={corpus.path!r}", dataset.identity, dataset.num_bytes, documents)


# The values of data.source.
SOURCES: dict[str, Callable[[CorpusConfig], Source]] = {
    "stdlib": _stdlib,
    "stdlib_functions": _stdlib_functions,
    "text": _text,
    "jsonl": _jsonl,
    "tfds": _tfds,
}


def _read_files(
    files: list[tuple[str, str]], read_file: _ReadFile, on_unreadable: str, skipped: Skipped
) -> Iterator[RawDocument]:
    for name, path in files:
        try:
            yield from _skip_empty(read_file(name, path), skipped)
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            if on_unreadable == "skip":
                skipped.files.append(path)
                continue
            raise ConfigError(
                f"{path} {_describe(error)}: fix the file, exclude it from data.path, or set data.on_unreadable='skip'"
            ) from None


def _describe(error: OSError | UnicodeDecodeError | SyntaxError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start})"
    if isinstance(error, SyntaxError):
        return f"is not Python (line {error.lineno}: {error.msg})"
    return f"cannot be read ({error.strerror})"


def _skip_empty(documents: Iterable[RawDocument], skipped: Skipped) -> Iterator[RawDocument]:
    for document in documents:
        if document.text.strip():
            yield document
        else:
            skipped.empty += 1
