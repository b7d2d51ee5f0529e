"""Memory of the start of a run: python -m benchmarks.start [--documents=1000000]

Writes token stores of few and of many random documents, starts a run on each, and prints one JSON line. The start is
what training does before its first step, without compiling: it opens the store, splits the documents, searches the
copies of held-out documents, makes the lines of the summary, and reads the first batches of T5's span corruption.

  "peak_mb"             the most memory that Python and NumPy had allocated (tracemalloc), with --documents
  "bytes_per_document"  by how much that exceeds the peak with few documents, for each further document. The few have
                        text enough for the trigram model of the summary, whose memory grows with it up to a limit

The pages of mapped files, which the system drops where memory is short, do not count.
"""

import json
import os
import pathlib
import tempfile
import tracemalloc

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
MEAN_TOKENS = 64  # of a document, with EOS
FEW_DOCUMENTS = (12 << 20) // MEAN_TOKENS

_FLAGS = flags.FlagValues()
_DOCUMENTS = flags.DEFINE_integer("documents", 1_000_000, "Documents.", lower_bound=1, flag_values=_FLAGS)


def main() -> None:
    """Measures a start with few documents and one with --documents, and prints a line."""
    parse_flags(_FLAGS, __doc__)
    if _DOCUMENTS.value < 2 * FEW_DOCUMENTS:
        raise ConfigError(f"--documents={_DOCUMENTS.value} must be {2 * FEW_DOCUMENTS:,} or more")
    few, many = (start_peak(documents) for documents in (FEW_DOCUMENTS, _DOCUMENTS.value))
    line = {"benchmark": "start", "documents": _DOCUMENTS.value, "peak_mb": round(many / 1e6, 1)}
    line["bytes_per_document"] = round((many - few) / (_DOCUMENTS.value - FEW_DOCUMENTS), 1)
    print(json.dumps(line), flush=True)


def start_peak(documents: int) -> int:
    """Starts a run on a store of so many random documents, and returns the peak of its memory in bytes."""
    with tempfile.TemporaryDirectory(prefix="cloze-start-") as folder:
        text = pathlib.Path(folder, "text")
        text.mkdir()
        for name in "ab":  # whose store gives the names and the other contents of meta.json
            (text / f"{name}.txt").write_text(f"{name} line of text\n" * 1000)
        config = named_config("span_corruption", "tiny")
        config.data.update(source="text", path=str(text), cache_dir=os.path.join(folder, "cache"), tokenizer="byte")
        experiment = make_experiment(config.to_dict())
        [corpus] = experiment.data.of_corpora().values()
        write_store(open_or_build(corpus, experiment.tokenizer, progress=False).folder, documents)
        tracemalloc.start()
        start(experiment)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def start(experiment: Experiment) -> None:
    """Starts a run as training does, and reads its first batches."""
    run = make_run(experiment, show_progress=False)
    summary_lines(run, "")
    batches = run.train_batches(0)
    for _ in range(BATCHES):
        next(batches)
    run.train_dataset.count_windows(0, BATCHES)


def write_store(folder: pathlib.Path, documents: int) -> None:
    """Replaces the documents of the token store `folder` by random ones."""
    meta, random = dict(TokenStore(folder).meta), np.random.default_rng(0)
    lengths = random.integers(2, 2 * MEAN_TOKENS - 1, documents)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    tokens = random.integers(10, 250, total).astype(meta["dtype"])
    tokens[offsets[1:] - 1] = 1  # EOS
    tokens.tofile(folder / "tokens.bin")
    digests = ("digests", "text_digests", "file_digests")
    arrays = {name: random.integers(0, 2**64, documents, np.uint64) for name in digests}
    arrays |= {"offsets": offsets, "duplicate_ids": np.arange(documents), "is_heldout": np.zeros(documents, np.bool_)}
    arrays |= {name: lengths - 1 for name in ("text_bytes", "token_bytes")}
    arrays |= {name: np.zeros(documents, np.int32) for name in ("name_ids", "label_ids", "prompt_lengths")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "near_duplicate_pairs.npy", np.zeros((0, 2), np.int64))
    meta |= {"num_documents": documents, "num_tokens": total, "num_bytes": total - documents, "cut": "JSON line"}
    meta["file_sizes"] = {name: (folder / name).stat().st_size for name in meta["file_sizes"]}
    meta["checksums"] = {name: file_checksum(folder / name) for name in meta["file_sizes"]}
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))


if __name__ == "__main__":
    run_command(main)
