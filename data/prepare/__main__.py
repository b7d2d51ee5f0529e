"""python -m data.prepare --source=text --path='corpus/*.txt' [--tokenizer=my.model] [--document_per=line] ...

Builds the token store of a corpus, unless the store exists, and prints its contents. Training also builds a missing
store. Run this command first if the corpus is large, or if many processes would build the store at the same time. The
flags have the names and the defaults of the fields of config.data, and training with the same values finds the store.

The corpus is read by one process and encoded by --workers others, by default one for each core. --filters.NAME and
--filters.remove_duplicates leave documents out, and --report=FOLDER writes how many, and the lengths, to report.json.

--verify reads all files of the store again and compares them with their checksums. Without this flag, a store of less
than 256 MiB is verified whenever it is opened, and a larger one once in the background of a training run.

--beam=ARGUMENTS reads, encodes and compares the documents in pipelines of Apache Beam, on the machines of its runner,
which must share the folder --cache_dir: --beam='--runner=DirectRunner --direct_num_workers=4'. The store is
the same.
"""

import functools
import json
import sys
from pathlib import Path

from command.flags import naming_flags
from command.program import run_program
from contract.errors import ConfigError
from data.duplicates.near import sharing_a_band
from data.prepare.beam import BeamPipelines, check_beam
from data.prepare.flags import CORPUS_FLAGS, PrepareFlags, parse_flags
from data.sources import Source
from data.store.encode import encoded
from data.store.progress import PrepareProgress
from data.store.store import TokenStore, open_or_build
from data.store.write import write_store
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.corpus_statistics import coverage_warnings, describe_coverage
from data.windows.leak_guard import describe_copies
from files.paths import reason

_REPORTED = (
    *("name", "num_documents", "num_tokens", "num_bytes", "skipped_empty", "skipped_files", "skipped_lines"),
    *("filters", "removed", "bytes_before_filters", "bytes_of_documents", "tokens_of_documents"),
)


def main(argv: list[str]) -> None:
    """Builds the token store, unless it exists, and prints its folder and contents. Raises ConfigError."""
    given = parse_flags(argv, __doc__)
    if given.report and Path(given.report).exists() and not Path(given.report).is_dir():
        raise ConfigError(f"--report={given.report} is a file: name a folder")
    if given.beam is not None:
        check_beam(given.beam)
    with naming_flags(CORPUS_FLAGS):
        _prepare(given)


def _prepare(given: PrepareFlags) -> None:
    tokenizer = make_tokenizer(given.corpus)
    read = []

    def make(folder: Path, source: Source) -> None:
        read.append(PrepareProgress(source.num_bytes, lines=True))
        encode, candidates = functools.partial(encoded, workers=given.workers), sharing_a_band
        if given.beam is not None:
            pipelines = BeamPipelines(given.beam, folder.parent)
            encode, candidates = pipelines.encoded, pipelines.sharing_a_band
        write_store(folder, source, given.corpus, tokenizer, read[0], encode, candidates)

    store = open_or_build(given.corpus, tokenizer, make=make)
    if given.verify:
        print(f"verified         {store.verify():,} bytes in {len(store.meta['checksums'])} files")
    _print_contents(store)
    if given.report:
        print(f"report           {_write_report(store, given.report)}")
    for progress in read:
        rates = f"{progress.num_bytes / 1e6 / progress.seconds:.1f} MB/s"
        print(f"read             {progress.num_bytes / 1e6:,.1f} MB in {progress.seconds:,.1f} s ({rates})")


def _write_report(store: TokenStore, folder: str) -> Path:
    """Writes report.json, fields of the store's meta.json, and returns its path. Raises ConfigError."""
    path = Path(folder) / "report.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({name: store.meta[name] for name in _REPORTED}, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--report={folder} cannot be written: {reason(error)}") from error
    return path


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
