"""python -m data.prepare --source=text --path='corpus/*.txt' [--tokenizer=my.model] [--document_per=line] ...

Builds the token store of a corpus, unless the store exists, and prints its contents. Training also builds a missing
store. Run this command first if the corpus is large, or if many processes would build the store at the same time. The
flags have the names and the defaults of the fields of config.data, and training with the same values finds the store.

The corpus is read by one process and encoded by --workers others, by default one for each core. --filters.NAME and
--filters.remove_duplicates leave documents out; how many is printed, and is in the store's meta.json.

--verify reads all files of the store again and compares them with their checksums. Without this flag, a store of less
than 256 MiB is verified whenever it is opened, and a larger one once a month on each machine.

--beam=ARGUMENTS reads, encodes and compares the documents in pipelines of Apache Beam, on the machines of its runner,
which must share the folder --cache_dir: --beam='--runner=DirectRunner --direct_num_workers=4'. The store is the same.
"""

import functools
import os
import sys

from absl import flags

from command.flags import naming_flags
from command.program import run_program, visible
from data.prepare.beam import beam_engine
from data.prepare.flags import CORPUS_FLAGS, define_corpus_flags, read_corpus
from data.store.encode import Engine, encode_documents
from data.store.store import TokenStore, open_or_build
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from data.windows.corpus_statistics import coverage_warnings, describe_coverage
from data.windows.leak_guard import describe_copies

_FLAGS = flags.FlagValues()
define_corpus_flags(_FLAGS)
flags.DEFINE_bool("verify", False, "Compare all files of the store with their checksums.", _FLAGS)
flags.DEFINE_integer("workers", os.cpu_count() or 1, "Processes that encode documents.", 1, 4096, _FLAGS)
flags.DEFINE_string("beam", None, "Prepare with Apache Beam and these arguments, as in --runner=...", _FLAGS)


def main(argv: list[str]) -> None:
    """Builds the token store, unless it exists, and prints its folder and contents. Raises ConfigError."""
    corpus = read_corpus(_FLAGS, argv, __doc__ or "")
    engine = Engine(functools.partial(encode_documents, workers=_FLAGS.workers))
    if _FLAGS.beam is not None:
        engine = beam_engine(_FLAGS.beam)
    with naming_flags(CORPUS_FLAGS):
        tokenizer = make_tokenizer(corpus)
        store = open_or_build(corpus, tokenizer, engine=engine)
        if _FLAGS.verify:
            print(f"verified         {store.verify():,} bytes in {len(store.meta['checksums'])} files")
        _print_contents(store, tokenizer)


def _print_contents(store: TokenStore, tokenizer: Tokenizer) -> None:
    meta = store.meta
    print(f"store            {store.folder}")
    print(f"documents        {len(store):,}")
    print(f"tokens           {meta['num_tokens']:,} as {meta['dtype']}, with one EOS per document")
    print(f"bytes of text    {meta['num_bytes']:,}")
    print(f"unigram entropy  {store.unigram_entropy():.4f} nats per token, without EOS")
    unreadable = f"{len(meta['skipped_files']):,} unreadable files, {meta['skipped_lines']:,} lines or records"
    print(f"coverage         {describe_coverage(store)}")
    print(f"copies           {describe_copies(store)}")
    print(f"skipped          {meta['skipped_empty']:,} empty documents, {unreadable}")
    for path in [*meta["skipped_files"], *filter(None, [meta["first_skipped_line"]])]:
        print(f"  unreadable: {visible(path)}")
    for name, counts in meta["removed"].items():
        print(f"removed          {counts['documents']:,} documents, {counts['bytes']:,} bytes: {name}")
    for warning in coverage_warnings(store, tokenizer):
        print(f"warning: {warning}")


if __name__ == "__main__":
    run_program(lambda: main(sys.argv))
