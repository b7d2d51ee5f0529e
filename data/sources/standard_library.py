"""data.source="stdlib" and "stdlib_functions": the text of the running Python's standard library, never executed.

A document's label is the outermost package that contains its file, "" for a module outside packages.
"""

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import file_digest, read_documents
from data.sources.from_files import File, ReadFile, file_part
from data.sources.raw import RawDocument, Skipped
from data.sources.source import Source
from data.sources.stdlib_functions import documented_functions

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def open_stdlib(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the *.py files as text."""
    return _open(corpus, corpus.document_per, _read_text)


def open_stdlib_functions(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the documented functions of the *.py files as prompts and responses: see data/sources/stdlib_functions.py."""
    return _open(corpus, "function", _read_functions)


def _read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    digest = file_digest(file.path)
    for text in read_documents(file.path, corpus.document_per):
        yield RawDocument(file.name, text, label=_package(file.name), file_digest=digest)


def _read_functions(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    digest = file_digest(file.path)
    for module in read_documents(file.path, "file"):
        for prompt, response in documented_functions(module):
            yield RawDocument(file.name, response, prompt, _package(file.name), digest)


def _open(corpus: CorpusConfig, cut: str, read_file: ReadFile) -> Source:
    root = sysconfig.get_paths()["stdlib"]
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # site-packages alone can take seconds
        paths += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    files = sorted(File(Path(path).relative_to(root).as_posix(), path, is_fixed=True) for path in paths)
    where = f"data.source={corpus.source!r}"
    if not files:
        raise ConfigError(f"{where} finds no .py file under {root}: set data.source='text' and data.path")
    # Sizes without times: the same Python in another folder or container has the same text.
    sizes = {file.name: os.path.getsize(file.path) for file in files}
    identity = {"python": platform.python_version(), "files": sizes}
    return Source(where, identity, cut, tuple(file_part(file, sizes[file.name], read_file, corpus) for file in files))


def _package(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""
