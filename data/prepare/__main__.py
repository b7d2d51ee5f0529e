"""python -m data.prepare --source=text --path='corpus/*.txt' [--tokenizer=my.model] [--document_per=line] ...

Builds the token store of a corpus, unless the store exists, and prints its contents. Training also builds a missing
store. Run this command first if the corpus is large, or if many processes would build the store at the same time. The
flags have the names and the defaults of the fields of config.data, and training with the same values finds the store.

The corpus is read in parts by --workers processes, by default one for each core. A part that is finished is kept: a
command that was stopped or killed continues where it was when it is run again. --filters.NAME and
--filters.remove_duplicates leave documents out, and --report=FOLDER writes how many, and pictures of the lengths.

--verify reads all files of the store again and compares them with their checksums. Without this flag, a store of less
than 256 MiB is verified whenever it is opened, and a larger one once in the background of a training run.

--beam=ARGUMENTS prepares the parts in a pipeline of Apache Beam, on the machines of its runner, which must share the
folder --cache_dir: --beam='--runner=DirectRunner --direct_num_workers=4'. The store is the same.
"""

import functools
import sys
from pathlib import Path

from command.flags_given import naming_flags
from command.program import run_program
from data.prepare.prepare_beam import check_beam, write_shards_in_beam
from data.prepare.prepare_flags import CORPUS_FLAGS, PrepareFlags, parse_flags
from data.prepare.prepare_report import check_report, write_report
from data.prepare.prepare_store import prepare_store, remove_work_folder
from data.sources import Source
from data.store.build import WriteShards, write_shards
from data.store.store import TokenStore, open_or_build
from data.store.workers import write_shards_in_workers
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.corpus_statistics import coverage_warnings, describe_coverage
from data.windows.leak_guard import describe_copies


def main(argv: list[str]) -> None:
    """Builds the token store, unless it exists, and prints its folder and contents. Raises ConfigError."""
    given = parse_flags(argv, __doc__)
    if given.report:
        check_report(given.report)
    if given.beam is not None:
        check_beam(given.beam)
    with naming_flags(CORPUS_FLAGS):
        _prepare(given)


def _prepare(given: PrepareFlags) -> None:
    tokenizer = make_tokenizer(given.corpus)
    read = []

    def make(folder: Path, source: Source) -> None:
        read.append(prepare_store(folder, source, given.corpus, tokenizer, _writer(given)))

    store = open_or_build(given.corpus, tokenizer, make=make)
    remove_work_folder(store.folder)
    if given.verify:
        print(f"verified         {store.verify():,} bytes in {len(store.meta['checksums'])} files")
    _print_contents(store)
    for path in write_report(store, given.report) if given.report else ():
        print(f"report           {path}")
    for progress in read:
        rates = f"{progress.num_bytes / 1e6 / progress.seconds:.1f} MB/s"
        print(f"read             {progress.num_bytes / 1e6:,.1f} MB in {progress.seconds:,.1f} s ({rates})")


def _writer(given: PrepareFlags) -> WriteShards:
    """Returns what writes the shards."""
    if given.beam is not None:
        return functools.partial(write_shards_in_beam, arguments=given.beam)
    if given.workers == 1:
        return write_shards
    return functools.partial(write_shards_in_workers, num_workers=given.workers)


def _print_contents(store: TokenStore) -> None:
    meta = store.meta
    print(f"store            {store.folder}")
    print(f"documents        {len(store):,}")
    print(f"tokens           {meta['num_tokens']:,} as {meta['dtype']}, with one EOS per document")
    print(f"bytes of text    {meta['num_bytes']:,}")
    print(f"unigram entropy  {store.unigram_entropy():.4f} nats per token, without EOS")
    unreadable = (
        f"{len(meta['skipped_files']):,} unreadable files, {meta['skipped_lines']:,} unreadable lines or records"
    )
    print(f"coverage         {describe_coverage(store)}")
    print(f"copies           {describe_copies(store)}")
    print(f"skipped          {meta['skipped_empty']:,} empty documents, {unreadable}")
    for path in [*meta["skipped_files"], *filter(None, [meta["first_skipped_line"]])]:
        print(f"  unreadable: {path}")
    for name, counts in meta.get("removed", {}).items():
        print(f"removed          {counts['documents']:,} documents, {counts['bytes']:,} bytes: {name}")
    for warning in coverage_warnings(store):
        print(f"warning: {warning}")


if __name__ == "__main__":
    run_program(lambda: main(sys.argv))
