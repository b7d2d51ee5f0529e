"""The flags of data.prepare: the fields of config.data that determine a token store, and how it is built."""

import dataclasses
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

from command.flags import check_given_once
from contract.errors import ConfigError
from contract.ranges import check_ranges
from data.sources import SOURCES
from data.sources.config import DEFAULT_CACHE_DIR, DEFAULT_TEXT_KEY, CorpusConfig
from data.sources.filters import OFF, FilterConfig

# The defaults of configs/base.py, which this package does not import; tests/data/test_prepare.py compares them.
# A token store does not depend on the fields of special tokens, which have no flags.
_DEFAULTS = CorpusConfig(
    source="stdlib",
    path="",
    heldout_path="",
    document_per="file",
    text_key=DEFAULT_TEXT_KEY,
    on_unreadable="error",
    tokenizer="byte",
    num_sentinels=0,
    mode_tokens=(),
    append_special_tokens=True,
    decoder_start_token="pad",
    cache_dir=DEFAULT_CACHE_DIR,
    filters=OFF,
)
_HELP = {
    "source": f"The corpus: {', '.join(SOURCES)}.",
    "path": "Files, folders or globs, separated by commas; tfds: name/config:version; hf: name/config@revision:split.",
    "heldout_path": "The corpus' own held-out text, as path; tfds, hf: the name of its held-out split.",
    "document_per": "Whether a whole text is a document, a line, or a paragraph between blank lines. Not for jsonl.",
    "text_key": "The key of the text in a JSON object, a column's or a feature's name.",
    "on_unreadable": "For unreadable files, and invalid lines, rows and records: raise an error, or skip them.",
    "tokenizer": "'byte', or the path of a SentencePiece .model file or of a Hugging Face tokenizer.json.",
    "cache_dir": "Folder of the token stores.",
}
_FILTER_HELP = {
    "min_characters": "Least number of characters of a document; 0, as of every filter: off.",
    "max_characters": "Greatest number of characters of a document.",
    "min_mean_word_length": "Least mean number of characters of its words. Gopher: 3.",
    "max_mean_word_length": "Greatest mean number of characters of its words. Gopher: 10.",
    "max_symbol_fraction": "Greatest number of # and ellipses, divided by that of words. Gopher: 0.1.",
    "min_punctuated_line_fraction": "Least share of lines that end in a sentence's punctuation.",
    "max_duplicate_line_fraction": "Greatest share of lines that repeat an earlier one. Gopher: 0.3.",
    "max_duplicate_ngram_fraction": "Greatest share of characters in repeated 5-grams of words. Gopher: 0.15.",
    "min_tokens": "Least number of tokens of a document.",
    "max_tokens": "Greatest number of tokens of a document.",
    "remove_duplicates": "Remove documents that are identical to an earlier one, or near-identical too.",
    "jaccard": "Least similarity of near-identical documents.",
}
CORPUS_FLAGS = frozenset(_HELP) | {f"filters.{name}" for name in _FILTER_HELP}  # as in config.data


@dataclasses.dataclass(frozen=True)
class PrepareFlags:
    """What the command line of data.prepare says.

    Attributes:
      corpus: what is prepared.
      workers: the number of processes.
      verify: whether all files of the store are compared with their checksums.
      report: a folder for report.json; "" for none.
      beam: arguments of Apache Beam's pipeline, separated by spaces; None to prepare without Beam.
    """

    corpus: CorpusConfig
    workers: int
    verify: bool
    report: str
    beam: str | None


def parse_flags(argv: list[str], usage: str) -> PrepareFlags:
    """Returns what the command line, with the program's name first, says.

    usage: printed for --help, which exits. Raises ConfigError for an invalid flag or an unexpected argument.
    """
    values = flags.FlagValues()
    define_corpus_flags(values)
    define_filter_flags(values)
    flags.DEFINE_bool("verify", False, "Compare all files of the store with their checksums.", values)
    flags.DEFINE_integer("workers", os.cpu_count() or 1, "Processes that encode documents.", flag_values=values)
    flags.DEFINE_string("report", "", "Folder for report.json: lengths, and what the filters removed.", values)
    flags.DEFINE_string("beam", None, "Prepare with Apache Beam and these arguments, as in --runner=...", values)
    corpus = read_flags(values, argv, usage)
    if not 1 <= values["workers"].value <= 4096:
        raise ConfigError(f"--workers={values['workers'].value} must be between 1 and 4,096")
    return PrepareFlags(
        corpus,
        values["workers"].value,
        values["verify"].value,
        values["report"].value,
        values["beam"].value,
    )


def define_corpus_flags(flag_values: flags.FlagValues, *, without: Sequence[str] = ()) -> None:
    """Defines a flag for each field of a corpus but its filters and those in `without`, with the config's default."""
    _define(
        CorpusConfig, "", _DEFAULTS, {name: text for name, text in _HELP.items() if name not in without}, flag_values
    )


def define_filter_flags(flag_values: flags.FlagValues) -> None:
    """Defines a flag for each field of a corpus' filters, with the config's default."""
    _define(FilterConfig, "filters.", OFF, _FILTER_HELP, flag_values)


def read_flags(flag_values: flags.FlagValues, argv: list[str], usage: str) -> CorpusConfig:
    """Parses the command line, with the program's name first, and returns the corpus that it describes.

    Prints the usage and exits for --help. Raises ConfigError for an invalid flag or an unexpected argument.
    """
    if any(argument in ("--help", "-help", "-h") for argument in argv[1:]):
        print(f"{usage.strip()}\n\nFlags:\n{flag_values.get_help(prefix='  ', include_special_flags=False)}")
        sys.exit(0)
    flag_values.unparse_flags()  # a second call in one process starts from the defaults again
    try:
        rest = flag_values(argv)
    except flags.Error as error:
        raise ConfigError(" ".join(str(error).split())) from error
    check_given_once(flag_values)
    if len(rest) > 1:
        raise ConfigError(f"unexpected argument {rest[1]!r}: flags are written --name=value")
    given = {name: flag_values[name].value for name in _HELP if name in flag_values}
    filters = {name: flag_values[f"filters.{name}"].value for name in _FILTER_HELP if f"filters.{name}" in flag_values}
    check_ranges(FilterConfig, filters, "--filters")
    return dataclasses.replace(_DEFAULTS, **given, filters=dataclasses.replace(OFF, **filters))


def _define(cls: type, prefix: str, defaults: Any, helps: dict[str, str], values: flags.FlagValues) -> None:
    """Defines a flag for each field of dataclass `cls` that `helps` has."""
    types = typing.get_type_hints(cls)
    for name, help_text in helps.items():
        default = getattr(defaults, name)
        if typing.get_origin(types[name]) is typing.Literal:
            flags.DEFINE_enum(prefix + name, default, typing.get_args(types[name]), help_text, values)
        else:
            kinds = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
            kinds[types[name]](prefix + name, default, help_text, flag_values=values)
