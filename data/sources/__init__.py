"""The corpora that `data.source` names: a module for each, with a function (corpus, path, field) -> Source.

To add a source, write such a function and add it to SOURCES. A source of files needs a function that reads the
documents of one file (data/sources/files.py).
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterator

from contract.errors import ConfigError
from data.sources.array_record import open_array_record, open_tfds
from data.sources.config import DEFAULT_TEXT_KEY, CorpusConfig
from data.sources.files import check_disjoint, open_text
from data.sources.gym import open_gym
from data.sources.hf import open_hf
from data.sources.records import open_jsonl, open_parquet
from data.sources.source import Part, RawDocument, Skipped, Source
from data.sources.stdlib import open_stdlib, open_stdlib_functions

__all__ = ["SOURCES", "Part", "Source", "check_heldout", "check_source", "open_source"]

# The values of data.source. Each function takes the corpus, the value of a config field that names its text, and this
# field: data.path or data.heldout_path. It raises ConfigError if there is no such corpus.
SOURCES: dict[str, Callable[[CorpusConfig, str, str], Source]] = {
    "stdlib": open_stdlib,
    "stdlib_functions": open_stdlib_functions,
    "gym": open_gym,
    "text": open_text,
    "jsonl": open_jsonl,
    "parquet": open_parquet,
    "array_record": open_array_record,
    "tfds": open_tfds,
    "hf": open_hf,
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
    as_heldout = (
        dataclasses.replace(part, read=functools.partial(_read_heldout, part), is_heldout=True)
        for part in heldout.parts
    )
    return dataclasses.replace(
        source,
        identity={"train": source.identity, "heldout": heldout.identity},
        parts=(*source.parts, *as_heldout),
    )


def check_heldout(source: Source, corpus: CorpusConfig) -> None:
    """Raises ConfigError where a file of data.heldout_path cannot be read, and where they have no document.

    Reads the first document of each of them. Call it before the corpus is read, which comes first and may be large.
    """
    if not corpus.heldout_path:
        return
    skipped = Skipped()
    if not any([next(part.read(skipped), None) for part in source.parts if part.is_heldout]):
        raise no_heldout_text(corpus, len(skipped.files), skipped.lines)


def no_heldout_text(corpus: CorpusConfig, num_files: int = 0, num_lines: int = 0) -> ConfigError:
    """Returns the error for a data.heldout_path without documents. num_files, num_lines: how many were skipped."""
    skipped = f" (unreadable files: {num_files:,}; lines or records: {num_lines:,})" * bool(num_files + num_lines)
    return ConfigError(
        f"data.heldout_path={corpus.heldout_path!r} has no document{skipped}: name other text, or set it to '' to hold "
        "out documents of data.path"
    )


def _read_heldout(part: Part, skipped: Skipped) -> Iterator[RawDocument]:
    for document in part.read(skipped):
        yield document._replace(is_heldout=True)


def _check_fields(corpus: CorpusConfig) -> None:
    """Raises ConfigError for fields that exclude each other."""
    embedded = corpus.source in ("stdlib", "stdlib_functions")
    unread = ("path", "heldout_path") if embedded else ("heldout_path",) if corpus.source == "gym" else ()
    for field in unread:
        if getattr(corpus, field):
            raise ConfigError(
                f"data.{field}={getattr(corpus, field)!r} is not read by data.source={corpus.source!r}: "
                f"{'set data.source to ' + repr('text') if embedded else 'remove it, a task has test instances'}"
            )
    if not embedded and not corpus.path:
        raise ConfigError(f"data.source={corpus.source!r} reads data.path, which is empty: set data.path")
    if corpus.text_key != DEFAULT_TEXT_KEY and (embedded or corpus.source in ("gym", "text")):
        raise ConfigError(
            f"data.text_key={corpus.text_key!r} is not read by data.source={corpus.source!r}, which has no keys: "
            f"set data.text_key={DEFAULT_TEXT_KEY!r}"
        )
    if corpus.document_per != "file" and corpus.source in ("gym", "jsonl", "stdlib_functions"):
        documents = {"gym": "instances", "jsonl": "lines", "stdlib_functions": "functions"}[corpus.source]
        raise ConfigError(
            f"data.document_per={corpus.document_per!r} does not go with data.source={corpus.source!r}, "
            f"whose documents are {documents}: set data.document_per='file'"
        )
