"""python -m data.prepare --source=text --path='corpus/*.txt' [--tokenizer=my.model] [--document_per=line] ...

Builds the token store of a corpus, unless the store exists, and prints its contents. Training also builds a missing
store. Run this command first if the corpus is large, or if many processes would build the store at the same time. The
flags have the names and the defaults of the fields of config.data, and training with the same values finds the store.

--verify reads all files of the store again and compares them with their checksums. Without this flag, a store of less
than 256 MiB is verified whenever it is opened, and a larger one once in the background of a training run.
"""

import dataclasses
import sys
import typing
from collections.abc import Sequence

from absl import flags

from contract.errors import ConfigError
from contract.program import run_program
from data.config import DEFAULT_CACHE_DIR, CorpusConfig
from data.coverage import coverage_warnings, describe_coverage
from data.flags_given import check_given_once
from data.near_duplicates import describe_copies
from data.sources import SOURCES
from data.store import TokenStore, open_or_build
from data.tokenizer import make_tokenizer

# The defaults of configs/base.py, which this package does not import; tests/data/test_prepare.py compares them.
# A token store does not depend on the fields of special tokens, which have no flags.
_DEFAULTS = CorpusConfig(
    source="stdlib",
    path="",
    heldout_path="",
    document_per="file",
    on_unreadable="error",
    tokenizer="byte",
    num_sentinels=0,
    mode_tokens=(),
    append_special_tokens=True,
    decoder_start_token="pad",
    cache_dir=DEFAULT_CACHE_DIR,
)
_HELP = {
    "source": f"The corpus: {', '.join(SOURCES)}.",
    "path": "text, jsonl: files, folders or globs, separated by commas; tfds: name/config:version.",
    "heldout_path": "text, jsonl: the corpus' own held-out text, as path; tfds: the name of its held-out split.",
    "document_per": "text, tfds: the whole text, a line, or a paragraph between blank lines.",
    "on_unreadable": "For a file that is not UTF-8 and a line that is not JSON: raise an error, or skip it.",
    "tokenizer": "'byte', or the path of a SentencePiece .model file or of a Hugging Face tokenizer.json.",
    "cache_dir": "Folder of the token stores.",
}


def parse_flags(argv: list[str]) -> tuple[CorpusConfig, bool]:
    """Returns the corpus that the command line, with the program's name first, describes, and the value of --verify.

    Prints the usage and exits for --help. Raises ConfigError for an invalid flag or an unexpected argument.
    """
    flag_values = flags.FlagValues()
    define_corpus_flags(flag_values)
    flags.DEFINE_bool("verify", False, "Compare all files of the store with their checksums.", flag_values)
    corpus = read_flags(flag_values, argv, __doc__)
    return corpus, flag_values["verify"].value


def define_corpus_flags(flag_values: flags.FlagValues, *, without: Sequence[str] = ()) -> None:
    """Defines a flag for each field of a corpus but those in `without`, with the default of the config."""
    types = typing.get_type_hints(CorpusConfig)
    for name in _HELP.keys() - set(without):
        default, help_text = getattr(_DEFAULTS, name), _HELP[name]
        if typing.get_origin(types[name]) is typing.Literal:
            flags.DEFINE_enum(name, default, typing.get_args(types[name]), help_text, flag_values)
        else:
            flags.DEFINE_string(name, default, help_text, flag_values)


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
    return dataclasses.replace(_DEFAULTS, **given)


def main(argv: list[str]) -> None:
    """Builds the token store, unless it exists, and prints its folder and contents. Raises ConfigError."""
    corpus, verifies = parse_flags(argv)
    store = open_or_build(corpus, make_tokenizer(corpus))
    if verifies:
        print(f"verified         {store.verify():,} bytes in {len(store.meta['checksums'])} files")
    _print_contents(store)


def _print_contents(store: TokenStore) -> None:
    meta = store.meta
    print(f"store            {store.folder}")
    print(f"documents        {len(store):,}")
    print(f"tokens           {meta['num_tokens']:,} as {meta['dtype']}, with one EOS per document")
    print(f"bytes of text    {meta['num_bytes']:,}")
    print(f"unigram entropy  {store.unigram_entropy():.4f} nats per token, without EOS")
    unreadable = f"{len(meta['skipped_files']):,} unreadable files, {meta['skipped_lines']:,} unreadable lines"
    print(f"coverage         {describe_coverage(store)}")
    print(f"copies           {describe_copies(store)}")
    print(f"skipped          {meta['skipped_empty']:,} empty documents, {unreadable}")
    for path in [*meta["skipped_files"], *filter(None, [meta["first_skipped_line"]])]:
        print(f"  unreadable: {path}")
    for warning in coverage_warnings(store):
        print(f"warning: {warning}")


if __name__ == "__main__":
    run_program(lambda: main(sys.argv))
