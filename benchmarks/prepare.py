"""Speed and memory of data.prepare: python -m benchmarks.prepare --path='corpus/*.jsonl' --source=jsonl

Prints one JSON line for each run of `python -m data.train_tokenizer` and `python -m data.prepare` on that corpus, the
latter with an empty cache folder each:

  --workers      1, 2 and so on: megabytes of text per second, with the byte tokenizer; start and assembly are included
  training       of each kind of tokenizer, with --vocab_size ids, on 10 MB of random documents at most; the
                 start and the reading of the corpus are included
  tokenizers     byte, and each of those that were trained

"peak_mb" is the largest resident memory of any one process, in MB. The default corpus is the source of the running
Python's library with its folders of tests.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError

_FLAGS = flags.FlagValues()
_SOURCE = flags.DEFINE_string("source", "text", "The corpus, as for data.prepare.", flag_values=_FLAGS)
_PATH = flags.DEFINE_string("path", f"{sysconfig.get_paths()['stdlib']}/**/*.py", "Its files.", flag_values=_FLAGS)
_WORKERS = flags.DEFINE_integer("workers", os.cpu_count(), "Most processes.", lower_bound=1, flag_values=_FLAGS)
_VOCAB = flags.DEFINE_integer("vocab_size", 8000, "Of the trained tokenizers.", lower_bound=400, flag_values=_FLAGS)
TRAINING_BYTES = 10_000_000  # of text, at most, that a tokenizer is trained on

# Runs a command, and prints the peak of its memory and that of its processes. In a small process, because the peak of a
# process begins with the memory of the one that starts it.
_PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
# The tokenizers: the name of the file -> --kind of data.train_tokenizer.
_KINDS = {"unigram.model": "unigram", "bpe.model": "bpe", "bpe.json": "bpe", "wordpiece.json": "wordpiece"}


def main() -> None:
    """Runs both commands with each setting, and prints a line of each."""
    parse_flags(_FLAGS, __doc__)
    corpus = [f"--source={_SOURCE.value}", f"--path={_PATH.value}", "--on_unreadable=skip"]
    most = f"--workers={_WORKERS.value}"
    with tempfile.TemporaryDirectory(prefix="cloze-prepare-") as name:
        folder = pathlib.Path(name)
        for workers in sorted({1, _WORKERS.value}):
            _measure(folder, {"measured": "workers", "workers": workers}, [*corpus, f"--workers={workers}"])
        for name in _KINDS:
            _measure_training(folder / name, corpus)
        for name, path in {"byte": "byte", **{name: str(folder / name) for name in _KINDS}}.items():
            _measure(folder, {"measured": "tokenizer", "tokenizer": name}, [*corpus, most, f"--tokenizer={path}"])


def _measure(folder: pathlib.Path, fields: dict[str, object], arguments: list[str]) -> None:
    """Runs data.prepare with an empty cache folder, and prints a JSON line with `fields` and what was measured."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        measured, _ = _run("data.prepare", *arguments, f"--cache_dir={cache}")
        [meta] = pathlib.Path(cache).glob("*/meta.json")
        store = json.loads(meta.read_text())
    _print_line(fields, store["num_bytes"], store["num_documents"], measured)


def _measure_training(out: pathlib.Path, corpus: list[str]) -> None:
    """Runs data.train_tokenizer, which writes `out`, and prints a JSON line."""
    kind = _KINDS[out.name]
    sizes = [f"--vocab_size={_VOCAB.value}", f"--max_bytes={TRAINING_BYTES}"]
    measured, printed = _run("data.train_tokenizer", *corpus, f"--kind={kind}", f"--out={out}", *sizes)
    match = re.search(r"training on +([\d,]+) documents, ([\d,]+) bytes", printed)
    documents, num_bytes = (int(count.replace(",", "")) for count in match.groups())
    _print_line({"measured": "training", "tokenizer": out.name}, num_bytes, documents, measured)


def _run(module: str, *arguments: str) -> tuple[tuple[float, int], str]:
    """Runs a command. Returns its seconds and the peak of its memory in bytes, and what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-S", "-c", _PEAK, *command], capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed: {''.join(done.stderr.strip().splitlines()[-1:])}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, and in KiB elsewhere
    return (seconds, int(done.stdout.splitlines()[-1]) * unit), done.stdout


def _print_line(fields: dict[str, object], num_bytes: int, documents: int, measured: tuple[float, int]) -> None:
    """Prints a JSON line. num_bytes: of text. measured: as of `_run`."""
    seconds, peak = measured
    line = {"benchmark": "prepare", **fields, "mb": round(num_bytes / 1e6, 1), "documents": documents}
    line |= {"seconds": round(seconds, 2), "mb_per_second": round(num_bytes / 1e6 / seconds, 2)}
    print(json.dumps(line | {"peak_mb": round(peak / 1e6)}), flush=True)


if __name__ == "__main__":
    run_command(main)
