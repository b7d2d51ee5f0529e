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

import json
import os
import sys
from pathlib import Path

from absl import flags

from command.flags import naming_flags
from command.program import run_program
from contract.errors import ConfigError
from data.prepare.beam import BeamPipelines
from data.prepare.flags import CORPUS_FLAGS, define_corpus_flags, read_corpus
from data.store.encode import Engine, Processes
from data.store.store import TokenStore, open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.corpus_statistics import coverage_warnings, describe_coverage
from data.windows.leak_guard import describe_copies
from files.paths import reason

_REPORTED = (
    *("name", "num_documents", "num_tokens", "num_bytes", "skipped_empty", "skipped_files", "skipped_lines"),
    *("filters", "removed", "bytes_before_filters", "bytes_of_documents", "tokens_of_documents"),
)

_FLAGS = flags.FlagValues()
define_corpus_flags(_FLAGS)
flags.DEFINE_bool("verify", False, "Compare all files of the store with their checksums.", _FLAGS)
flags.DEFINE_integer("workers", os.cpu_count() or 1, "Processes that encode documents.", 1, 4096, _FLAGS)
flags.DEFINE_string("beam", None, "Prepare with Apache Beam and these arguments, as in --runner=...", _FLAGS)
flags.DEFINE_string("report", "", "Folder for report.json: lengths, and what the filters removed.", _FLAGS)


def main(argv: list[str]) -> None:
    """Builds the token store, unless it exists, and prints its folder and contents. Raises ConfigError."""
    corpus = read_corpus(_FLAGS, argv, __doc__ or "")
    if _FLAGS.report and Path(_FLAGS.report).exists() and not Path(_FLAGS.report).is_dir():
        raise ConfigError(f"--report={_FLAGS.report} is a file: name a folder")
    engine: Engine = Processes(_FLAGS.workers)
    if _FLAGS.beam is not None:
        engine = BeamPipelines(_FLAGS.beam)
    with naming_flags(CORPUS_FLAGS):
        store = open_or_build(corpus, make_tokenizer(corpus), engine=engine)
        if _FLAGS.verify:
            print(f"verified         {store.verify():,} bytes in {len(store.meta['checksums'])} files")
        _print_contents(store)
        if _FLAGS.report:
            print(f"report           {_write_report(store, _FLAGS.report)}")


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
