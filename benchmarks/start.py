"""Memory and time of the start of a run: python -m benchmarks.start [--documents=5000000] [--objective=ul2]

Writes a token store of random documents, starts a run on it in a new process, and prints one JSON line. The process
does what training does before its first step, without compiling: it opens the store, splits the documents, searches the
copies of held-out documents, makes the lines of the summary, and reads the first batches.

  "anonymous_mb"    the most anonymous memory of the process: RssAnon of /proc/PID/status
  "bytes_per_document"   by how much that exceeds the same with few documents, for each further document. The few have
                         text enough for the trigram model of the summary, whose memory grows with it up to a limit
  "opened_seconds", "seconds"    from the opening of the store until it is open, and to the first batch

The pages of mapped files are not anonymous memory: the system drops them where memory is short. A second process reads
these numbers each millisecond, so the benchmark needs Linux.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import flags

from benchmarks.measuring import named_config
from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from data.store.checksums import file_checksum, sealed
from data.store.store import TokenStore, open_or_build
from experiment.experiment import Experiment, make_experiment
from run.compiled_run import make_run
from train.summary import summary_lines

BATCHES = 20
FEW_TOKENS = 12 << 20  # of few documents
_BLOCK = 1 << 18  # documents that are written at once
_DIGESTS = ("digests", "text_digests", "file_digests")
_SAMPLE_SECONDS = 0.001

_FLAGS = flags.FlagValues()
_DOCUMENTS = flags.DEFINE_integer("documents", 5_000_000, "Documents.", lower_bound=1, flag_values=_FLAGS)
_TOKENS = flags.DEFINE_integer("tokens", 64, "Mean tokens of a document.", lower_bound=4, flag_values=_FLAGS)
_OBJECTIVE = flags.DEFINE_string("objective", "span_corruption", "A file of configs/, with or without :preset.", _FLAGS)
_HANDLING = flags.DEFINE_enum(
    "handling", "", ["", "join", "pack", "split"], "data.documents, if not the config's.", _FLAGS
)
_FOLDER = flags.DEFINE_string("folder", "", "Folder for the store. Default: that of temporary files.", _FLAGS)
_START_IN = flags.DEFINE_string(
    "start_in", "", "Start a run on the store in this folder, as the benchmark does.", _FLAGS
)


def main() -> None:
    """Measures a start with few documents and one with --documents, and prints a line."""
    parse_flags(_FLAGS, __doc__)
    if _START_IN.value:
        print(json.dumps(start(_experiment(_START_IN.value))))
        return
    if not os.path.exists("/proc/self/status"):
        raise ConfigError("benchmarks.start reads /proc/PID/status, which this system lacks: run it on Linux")
    num_few = -(-FEW_TOKENS // _TOKENS.value)
    if _DOCUMENTS.value < 2 * num_few:
        raise ConfigError(
            f"--documents={_DOCUMENTS.value} of --tokens={_TOKENS.value} have too little text to be compared with "
            f"{num_few:,} documents: use {2 * num_few:,} or more"
        )
    few, _ = _measured(num_few)
    peak, times = _measured(_DOCUMENTS.value)
    line = {"benchmark": "start"} | {flag.name: flag.value for flag in (_OBJECTIVE, _HANDLING, _DOCUMENTS)}
    line["anonymous_mb"] = round(peak / 1e6, 1)
    line["bytes_per_document"] = round((peak - few) / (_DOCUMENTS.value - num_few), 1)
    print(json.dumps(line | times), flush=True)


def start(experiment: Experiment) -> dict[str, float]:
    """Starts a run as training does, and reads its first batches. Returns seconds until it was open, and in all."""
    began = time.perf_counter()
    run = make_run(experiment, show_progress=False)
    opened = time.perf_counter() - began
    summary_lines(run, "")
    batches = run.train_batches(0)
    next(batches)
    seconds = time.perf_counter() - began
    for _ in range(BATCHES):
        next(batches)
    run.train_dataset.count_windows(0, BATCHES)
    return {"opened_seconds": round(opened, 2), "seconds": round(seconds, 2)}


def write_store(folder: pathlib.Path, documents: int, tokens: int) -> None:
    """Replaces the documents of the token store `folder` by random ones. tokens: their mean length, with EOS."""
    meta, random = dict(TokenStore(folder).meta), np.random.default_rng(0)
    dtype = np.dtype(meta["dtype"])
    some = random.integers(10, 250, 1 << 20).astype(dtype)
    lengths = random.integers(2, 2 * tokens - 1, documents)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    with open(folder / "tokens.bin", "wb") as text:
        for begin in range(0, documents, _BLOCK):
            bounds = offsets[begin : begin + _BLOCK + 1] - offsets[begin]
            ids = np.resize(some, int(bounds[-1]))
            ids[bounds[1:] - 1] = 1  # EOS
            ids.tofile(text)
    arrays = {name: random.integers(0, 2**64, documents, np.uint64) for name in _DIGESTS}
    arrays |= {"offsets": offsets, "duplicate_ids": np.arange(documents), "is_heldout": np.zeros(documents, np.bool_)}
    arrays |= {name: lengths - 1 for name in ("text_bytes", "token_bytes")}
    arrays |= {name: np.zeros(documents, np.int32) for name in ("name_ids", "label_ids", "prompt_lengths")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "near_duplicate_pairs.npy", np.zeros((0, 2), np.int64))
    meta |= {"num_documents": documents, "num_tokens": total, "num_bytes": total - documents, "cut": "JSON line"}
    names_of_files = list(meta["file_sizes"])
    meta["file_sizes"] = {name: (folder / name).stat().st_size for name in names_of_files}
    meta["checksums"] = {name: file_checksum(folder / name) for name in names_of_files}
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))


def _experiment(folder: str) -> Experiment:
    """Returns the experiment whose text is in `folder`, with its token store."""
    config = named_config(_OBJECTIVE.value, "tiny")
    path = os.path.join(folder, "text")
    config.data.update(source="text", path=path, cache_dir=os.path.join(folder, "cache"), tokenizer="byte")
    config.data.documents = _HANDLING.value or config.data.documents
    return make_experiment(config.to_dict())


def _measured(documents: int) -> tuple[int, dict[str, Any]]:
    """Starts a run with so many documents in a new process, and returns its peak in bytes and what it printed."""
    peak = 0
    with tempfile.TemporaryDirectory(prefix="cloze-start-", dir=_FOLDER.value or None) as folder:
        text = pathlib.Path(folder, "text")
        text.mkdir()
        for name in "ab":  # whose store gives the names and the other contents of meta.json
            (text / f"{name}.txt").write_text(f"{name} line of text\n" * 1000)
        experiment = _experiment(folder)
        [corpus] = experiment.data.of_corpora().values()
        write_store(open_or_build(corpus, experiment.tokenizer, progress=False).folder, documents, _TOKENS.value)
        command = [sys.executable, "-m", "benchmarks.start", *sys.argv[1:], f"--start_in={folder}"]
        # A large store that was verified is remembered in the home folder.
        environment = os.environ | {"HOME": folder, "TMPDIR": folder, "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                with contextlib.suppress(OSError, TypeError):  # the process is ending
                    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                    peak = max(peak, int(re.search(r"RssAnon:\s+(\d+)", status)[1]) << 10)
                time.sleep(_SAMPLE_SECONDS)
            printed = process.stdout.read()
        if process.returncode:
            raise ConfigError(f"the start of a run ended with status {process.returncode}: see the messages above")
    return peak, json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    run_command(main)
