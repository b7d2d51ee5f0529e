"""The corpora that `data.source` names, each with a function (corpus, path, field) -> Source.

To add a source, write such a function and add it to SOURCES. A source of files needs a function that reads the
documents of one file, ReadFile in data/sources/files.py.
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable

from contract.errors import ConfigError
from data.sources.array_record import open_tfds, read_records
from data.sources.config import OF_EACH_CORPUS, CorpusConfig
from data.sources.files import check_disjoint, files_source, read_text
from data.sources.gym import open_gym
from data.sources.hf import open_hf
from data.sources.records import read_jsonl, read_parquet
from data.sources.source import Part, Source
from data.sources.stdlib import open_stdlib, open_stdlib_functions

__all__ = ["SOURCES", "Part", "Source", "check_source", "open_source"]

# The values of data.source. Each function takes the corpus, the value of a config field that names its text, and this
# field: data.path or data.heldout_path. It raises ConfigError if there is no such corpus.
SOURCES: dict[str, Callable[[CorpusConfig, str, str], Source]] = {
    "stdlib": open_stdlib,
    "stdlib_functions": open_stdlib_functions,
    "gym": open_gym,
    "text": functools.partial(files_source, read_text),
    "jsonl": functools.partial(files_source, read_jsonl, cut="JSON line"),
    "parquet": functools.partial(files_source, read_parquet),
    "array_record": functools.partial(files_source, read_records),
    "tfds": open_tfds,
    "hf": open_hf,
}

# data.source -> the fields of the corpus that it does not read.
_UNREAD = {
    "stdlib": ("path", "heldout_path", "text_key"),
    "stdlib_functions": ("path", "heldout_path", "text_key", "document_per"),
    "gym": ("heldout_path", "text_key", "document_per"),
    "text": ("text_key",),
    "jsonl": ("document_per",),
}


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
    source = SOURCES[corpus.source](corpus, corpus.path, "data.path")
    if not corpus.heldout_path:
        return source
    heldout = SOURCES[corpus.source](corpus, corpus.heldout_path, "data.heldout_path")
    check_disjoint(source, heldout)
    as_heldout = (dataclasses.replace(part, is_heldout=True) for part in heldout.parts)
    return dataclasses.replace(
        source, identity={"train": source.identity, "heldout": heldout.identity}, parts=(*source.parts, *as_heldout)
    )


def _check_fields(corpus: CorpusConfig) -> None:
    """Raises ConfigError for a field that the source does not read, and for a data.path that is missing."""
    unread = _UNREAD.get(corpus.source, ())
    for field in unread:
        if (value := getattr(corpus, field)) != OF_EACH_CORPUS[field]:
            raise ConfigError(
                f"data.{field}={value!r} is not read by data.source={corpus.source!r}: set "
                f"data.{field}={OF_EACH_CORPUS[field]!r}, or another data.source, such as 'text'"
            )
    if not corpus.path and "path" not in unread:
        raise ConfigError(f"data.source={corpus.source!r} reads data.path, which is empty: set data.path")
