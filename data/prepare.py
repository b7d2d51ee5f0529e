"""Text -> token store, once: `python -m data.prepare --source=text --path='corpus/*.txt' [--tokenizer=my.model]`.

Training builds the store itself where it is not there. Preparing it apart is for corpora that take long, and for
machines where many processes would otherwise build it at once. Flags are called like the fields of config.data, with
the same defaults; training finds the store when it runs with the same values.
"""

import argparse
import sys

from contract.errors import ConfigError
from data.store import open_or_build
from data.tokenizer import make_tokenizer


def parse_flags(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line -> the fields of data.fields.DataFields. Mode tokens and sentinels do not enter a token store."""
    flags = argparse.ArgumentParser(
        prog="python -m data.prepare", description="Text to a token store, once.", allow_abbrev=False
    )
    flags.add_argument("--source", choices=["stdlib", "stdlib_functions", "text", "jsonl", "tfds"], default="stdlib")
    flags.add_argument("--path", default="", help="files, folders or globs, comma-separated; tfds: name/config:version")
    flags.add_argument("--document_per", choices=["file", "line", "paragraph"], default="file")
    flags.add_argument("--on_unreadable", choices=["error", "skip"], default="error")
    flags.add_argument("--tokenizer", default="byte", help="'byte', or the path of a SentencePiece .model file")
    flags.add_argument("--cache_dir", default="~/.cache/cloze", help="where token stores are kept")
    flags.set_defaults(num_sentinels=0, mode_tokens=())
    return flags.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Builds or finds the store, prints where it is and what is in it. Returns the exit status."""
    fields = parse_flags(arguments)
    try:
        store = open_or_build(fields, make_tokenizer(fields))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    meta = store.meta
    print(f"store            {store.folder}")
    print(f"documents        {len(store):,}")
    print(f"tokens           {meta['num_tokens']:,} as {meta['dtype']}, with one EOS a document")
    print(f"bytes of text    {meta['num_bytes']:,}")
    print(f"unigram entropy  {store.unigram_entropy():.4f} nats per token, EOS left out")
    unreadable = f"{len(meta['skipped_files']):,} unreadable files, {meta['skipped_lines']:,} unreadable lines"
    print(f"left out         {meta['skipped_empty']:,} empty documents, {unreadable}")
    for path in [*meta["skipped_files"], *filter(None, [meta["first_skipped_line"]])]:
        print(f"  unreadable: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
