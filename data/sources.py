"""The corpora that `data.source` names.

The Python standard library's source text or documented functions, text files, JSON-lines files of prompts and responses
or of labeled texts, and prepared TFDS datasets.
"""

import dataclasses
import difflib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contract.errors import ConfigError
from contract.os_errors import describe_os_error
from data.bucket_store import local_cache, local_copies
from data.config import CorpusConfig
from data.files import describe_file, file_digest, find_files, read_documents, split_text, text_digest
from data.jsonl import read_jsonl
from data.raw import RawDocument, Skipped
from data.stdlib_functions import documented_functions
from data.storage import in_bucket, real_path

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

_ReadFile = Callable[[str, str], Iterator[RawDocument]]  # from a file's name and path


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus that has been found, but not been read.

    Attributes:
      where: the config fields that name the corpus, for messages.
      identity: JSON values that change whenever the documents may have changed.
      num_bytes: approximate size of the text, for a progress bar.
      cut: how documents are cut from the source's texts. Documents of sources that cut alike are comparable one by one.
      documents: starts a pass over the documents that are not empty, always in the same order, and counts what the
        pass skips. Raises ConfigError for what cannot be read.
    """

    where: str
    identity: dict[str, Any]
    num_bytes: int
    cut: str
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
    _check_fields(corpus)
    source = SOURCES[corpus.source](corpus, corpus.path)
    if not corpus.heldout_path:
        return source
    heldout = SOURCES[corpus.source](corpus, corpus.heldout_path, "data.heldout_path")
    _check_disjoint(source, heldout)

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        yield from source.documents(skipped)
        for document in heldout.documents(skipped):
            yield document._replace(is_heldout=True)

    return dataclasses.replace(
        source,
        identity={"train": source.identity, "heldout": heldout.identity},
        num_bytes=source.num_bytes + heldout.num_bytes,
        documents=documents,
    )


def _check_fields(corpus: CorpusConfig) -> None:
    """Raises ConfigError for fields that exclude each other."""
    embedded = corpus.source in ("stdlib", "stdlib_functions")
    for field in ("path", "heldout_path"):
        if embedded and getattr(corpus, field):
            raise ConfigError(
                f"data.{field}={getattr(corpus, field)!r} is not read by data.source={corpus.source!r}: "
                "set data.source to 'text'"
            )
    if not embedded and not corpus.path:
        raise ConfigError(f"data.source={corpus.source!r} reads data.path, which is empty: set data.path")
    if corpus.document_per != "file" and corpus.source in ("jsonl", "stdlib_functions"):
        documents = "lines" if corpus.source == "jsonl" else "functions"
        raise ConfigError(
            f"data.document_per={corpus.document_per!r} does not go with data.source={corpus.source!r}, "
            f"whose documents are {documents}: set data.document_per='file'"
        )


def _check_disjoint(source: Source, heldout: Source) -> None:
    """Raises ConfigError where a file is in both."""
    paths = {real_path(name) for name, *_ in source.identity["files"]}
    both = [name for name, *_ in heldout.identity["files"] if real_path(name) in paths]
    if both:
        raise ConfigError(
            f"{source.where} and {heldout.where} both name {both[0]}{f' and {len(both) - 1} more' * (len(both) > 1)}: "
            "held-out text must not be trained on; name different files"
        )


def _stdlib(corpus: CorpusConfig, path: str) -> Source:
    """The *.py files of the running Python's standard library, read as text and never executed.

    A document's label is the outermost package that contains its file, "" for a module outside packages.
    """

    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, corpus.document_per):
            yield RawDocument(name, text, label=_package(name))

    return _stdlib_source(corpus, corpus.document_per, read_file)


def _stdlib_functions(corpus: CorpusConfig, path: str) -> Source:
    """The documented functions of the files of `_stdlib`: see data/stdlib_functions.py."""

    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for module in read_documents(path, "file"):
            for prompt, response in documented_functions(module):
                yield RawDocument(name, response, prompt, _package(name))

    return _stdlib_source(corpus, "function", read_file)


def _stdlib_source(corpus: CorpusConfig, cut: str, read_file: _ReadFile) -> Source:
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
        cut,
        lambda skipped: _read_files(files, read_file, corpus.on_unreadable, skipped),
    )


def _package(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _text(corpus: CorpusConfig, path: str, field: str = "data.path") -> Source:
    def read_file(name: str, path: str) -> Iterator[RawDocument]:
        for text in read_documents(path, corpus.document_per):
            yield RawDocument(name, text)

    return _files_source(corpus, path, field, corpus.document_per, lambda skipped: read_file)


def _jsonl(corpus: CorpusConfig, path: str, field: str = "data.path") -> Source:
    def make_read_file(skipped: Skipped) -> _ReadFile:
        return lambda name, path: read_jsonl(path, corpus.on_unreadable, skipped, name=name)

    return _files_source(corpus, path, field, "JSON line", make_read_file)


def _files_source(
    corpus: CorpusConfig, path: str, field: str, cut: str, make_read_file: Callable[[Skipped], _ReadFile]
) -> Source:
    names = find_files(path, field)
    copies = _copies(corpus, names, f"{field}={path!r}")
    files = [(name, copies[name][0] if name in copies else name) for name in names]
    described: list[tuple[str, int, int | str]] = [
        # The version of an object, which is the same on all hosts, in place of the time of its copy.
        (name, describe_file(path)[1], copies[name][1]) if name in copies else describe_file(path)
        for name, path in files
    ]
    num_bytes = sum(max(size, 0) for _, size, _ in described)

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        return _read_files(files, make_read_file(skipped), corpus.on_unreadable, skipped)

    return Source(f"{field}={path!r}", {"files": described}, num_bytes, cut, documents)


def _copies(corpus: CorpusConfig, names: Sequence[str], where: str) -> dict[str, tuple[str, str]]:
    """Returns address -> (path of a copy on this machine, version), for the files in buckets among `names`."""
    remote = [name for name in names if in_bucket(name)]
    try:
        return dict(zip(remote, local_copies(remote, local_cache(corpus.cache_dir) / "texts"), strict=True))
    except OSError as error:
        raise ConfigError(f"{where} cannot be copied to this machine: {describe_os_error(error) or error}") from None


def _tfds(corpus: CorpusConfig, split: str, field: str = "data.path") -> Source:
    from data.tfds_source import open_tfds

    is_heldout = field != "data.path"
    dataset = open_tfds(corpus.path, split if is_heldout else "train")

    def documents(skipped: Skipped) -> Iterator[RawDocument]:
        for example in dataset.texts():
            digest = text_digest(example.encode("utf-8"))
            texts = split_text(example, corpus.document_per)
            named = (RawDocument(corpus.path, text, file_digest=digest) for text in texts)
            yield from _skip_empty(named, skipped)

    return Source(f"{field}={split!r}", dataset.identity, dataset.num_bytes, corpus.document_per, documents)


# The values of data.source.
SOURCES: dict[str, Callable[..., Source]] = {
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
        shown = name if in_bucket(name) else path
        try:
            digest = file_digest(path)
            for document in _skip_empty(read_file(name, path), skipped):
                yield document._replace(file_digest=digest)
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            if on_unreadable == "skip":
                skipped.files.append(shown)
                continue
            raise ConfigError(
                f"{shown} {_describe(error)}: fix the file, exclude it from data.path, or set data.on_unreadable='skip'"
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
