"""The flags of data.prepare and data.train_tokenizer: the fields of config.data that determine a token store."""

import typing
from collections.abc import Sequence

from absl import flags

from command.flags import field_descriptions, parse_flags
from configs.base import get_config
from contract.ranges import check_ranges
from data.sources.config import CorpusConfig
from data.sources.filters import FilterConfig

# Fields that a token store does not depend on, and that have no flags.
_SPECIAL_TOKENS = {"num_sentinels": 0, "append_special_tokens": True, "decoder_start_token": "pad"}
_DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
_FILTERS = {f"filters.{name}": kind for name, kind in typing.get_type_hints(FilterConfig).items()}
# Flag, which is the name of a field of config.data -> its type.
CORPUS_FLAGS = {
    name: kind
    for name, kind in (typing.get_type_hints(CorpusConfig) | _FILTERS).items()
    if name not in _SPECIAL_TOKENS and name != "filters"
}


def define_corpus_flags(flag_values: flags.FlagValues, *, without: Sequence[str] = ()) -> None:
    """Defines CORPUS_FLAGS but those in `without`, with the defaults and the descriptions of configs/base.py."""
    config, descriptions = get_config().data, field_descriptions()
    for name, kind in CORPUS_FLAGS.items():
        arguments = name, config[name], descriptions[f"data.{name}"]
        if name in without:
            continue
        if typing.get_origin(kind) is tuple:
            flags.DEFINE_list(name, list(config[name]), arguments[2], flag_values)
        elif typing.get_origin(kind) is typing.Literal:
            flags.DEFINE_enum(*arguments[:2], typing.get_args(kind), arguments[2], flag_values)
        else:
            _DEFINE[kind](*arguments, flag_values=flag_values)


def read_corpus(flag_values: flags.FlagValues, argv: list[str], usage: str) -> CorpusConfig:
    """Parses the command line, with the program's name first, and returns the corpus that it describes.

    Prints the usage and exits for --help. Raises ConfigError for an invalid flag or an unexpected argument.
    """
    parse_flags(flag_values, usage, argv)
    fields = {name: value for name, value in get_config().data.items() if name in CORPUS_FLAGS} | _SPECIAL_TOKENS
    fields |= {name: flag_values[name].value for name in fields if name in flag_values}
    fields["mode_tokens"] = tuple(fields["mode_tokens"])
    given = {name: flag_values[name].value for name in _FILTERS if name in flag_values}
    filters = get_config().data.filters.to_dict() | {name.removeprefix("filters."): x for name, x in given.items()}
    check_ranges(FilterConfig, filters, "--filters")
    return CorpusConfig(**fields, filters=FilterConfig(**filters))
