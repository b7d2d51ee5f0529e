"""Memory, time and requests of the start of a run: python -m benchmarks.start [--documents=1000000] [--latency_ms=20]

Writes token stores of --documents random documents and of half of them, starts a run on each, and prints one JSON
line. The start is what training does before its first step, without compiling: it opens the store, splits the
documents, searches the copies of held-out documents, makes the lines of the summary, and reads the first batches of
T5's span corruption.

  "peak_mb"             the most memory that Python and NumPy had allocated (tracemalloc), with --documents
  "bytes_per_document"  by how much that exceeds the peak with half of the documents, for each further document
  "seconds"             of a start with --documents, after one that has verified the store

The pages of mapped files, which the system drops where memory is short, do not count.

With --latency_ms the store of --documents is in a bucket: a folder of this machine, of which each request takes this
time, and the time of its bytes at 100 MB/s, however many there are at the same time. A causal language model is
trained. For a host that copies the store ("copy"), one that reads it by range before it was ever verified
("first_range"), another one after that ("range"), and for second starts ("_again"), the line has the requests,
megabytes and seconds of "start", of the "summary", which has the trigram model, and of a "batch".
"""

import asyncio
import json
import os
import pathlib
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
from absl import flags
from fsspec.asyn import AsyncFileSystem

from benchmarks.measuring import named_config
from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from data.store.checksums import file_checksum, sealed
from data.store.store import TokenStore, open_or_build
from experiment.experiment import Experiment, make_experiment
from files.paths import EXTRAS
from run.compiled_run import make_run
from train.summary import summary_lines

BATCHES = 20
MEAN_TOKENS = 64  # of a document, with EOS
# Half of --documents has text enough for the trigram model of the summary, whose memory grows with it up to a limit.
FEWEST_DOCUMENTS = 2 * (12 << 20) // MEAN_TOKENS

_FLAGS = flags.FlagValues()
_DOCUMENTS = flags.DEFINE_integer("documents", 1_000_000, "Documents.", lower_bound=1, flag_values=_FLAGS)
_LATENCY = flags.DEFINE_float("latency_ms", None, "Of a request, for a store in a bucket.", 0.0, flag_values=_FLAGS)


class Bucket(AsyncFileSystem):
    """gs:// as a folder of this machine, whose requests take time and are counted."""

    protocol = ("gs",)
    folder, requests, num_bytes = "", 0, 0

    async def _request(self, num_bytes: int = 0) -> None:
        Bucket.requests, Bucket.num_bytes = Bucket.requests + 1, Bucket.num_bytes + num_bytes
        await asyncio.sleep(_LATENCY.value / 1e3 + num_bytes / 1e8)

    def _path(self, address: str) -> pathlib.Path:
        return pathlib.Path(self.folder, address.removeprefix("gs://"))

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await self._request()
        info, kind = self._path(path).stat(), "directory" if self._path(path).is_dir() else "file"
        return {"name": path, "size": info.st_size, "type": kind, "mtime": info.st_mtime_ns}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await self._request((self._path(path).stat().st_size if end is None else end) - (start or 0))
        with open(self._path(path), "rb") as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else end - start)

    async def _get_file(self, path: str, target: str, **_: Any) -> None:
        await self._request(self._path(path).stat().st_size)
        shutil.copyfile(self._path(path), target)

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        await self._request(len(value))
        self._path(path).write_bytes(value)


def main() -> None:
    """Measures a start with half of --documents and one with all, and prints a line."""
    parse_flags(_FLAGS, __doc__)
    if _LATENCY.value is not None:
        print(json.dumps({"benchmark": "start", "documents": _DOCUMENTS.value} | starts_from_a_bucket()), flush=True)
        return
    if (documents := _DOCUMENTS.value) < FEWEST_DOCUMENTS:
        raise ConfigError(f"--documents={documents} must be {FEWEST_DOCUMENTS:,} or more")
    (half, _), (peak, seconds) = (cost_of_start(number) for number in (documents // 2, documents))
    line = {"benchmark": "start", "documents": documents, "peak_mb": round(peak / 1e6, 1)}
    line["bytes_per_document"] = round((peak - half) / (documents - documents // 2), 1)
    line["seconds"] = round(seconds, 2)
    print(json.dumps(line), flush=True)


def make_benchmark_experiment(name: str, folder: str, documents: int) -> Experiment:
    """Writes a store of so many random documents below `folder`, and returns the experiment of a run on it.

    name: of a config.
    """
    text = pathlib.Path(folder, "text")
    text.mkdir()
    for letter in "ab":  # whose store gives the names and the other contents of meta.json
        (text / f"{letter}.txt").write_text(f"{letter} line of text\n" * 1000)
    config = named_config(name, "tiny")
    config.data.update(source="text", path=str(text), cache_dir=os.path.join(folder, "cache"), tokenizer="byte")
    experiment = make_experiment(config.to_dict())
    [corpus] = experiment.data.of_corpora().values()
    write_store(open_or_build(corpus, experiment.tokenizer, progress=False).folder, documents)
    return experiment


def starts_from_a_bucket() -> dict[str, Any]:
    """Returns what the line has with --latency_ms."""
    EXTRAS["gs"] = ("gcs", "fsspec")
    fsspec.register_implementation("gs", Bucket, clobber=True)
    found: dict[str, Any] = {"latency_ms": _LATENCY.value}
    homes = {"copy": "a", "copy_again": "a", "first_range": "b", "range": "c", "range_again": "c"}
    with tempfile.TemporaryDirectory(prefix="cloze-start-") as folder:
        fields = make_benchmark_experiment("clm", folder, _DOCUMENTS.value).config
        Bucket.folder = folder
        for name, home in homes.items():
            os.environ["HOME"] = os.path.join(folder, home)
            found[name] = requests_of_start(fields, "range" in name)
    return found


def requests_of_start(fields: dict[str, Any], by_range: bool) -> dict[str, Any]:
    """Returns what the start of a run, its summary and a batch cost: `counted`. fields: of a config."""
    data = fields["data"] | {"cache_dir": "gs://cache", "read_by_range": by_range}
    experiment, runs = make_experiment(fields | {"data": data}), []
    return {
        "start": counted(lambda: runs.append(make_run(experiment, show_progress=False))),
        "summary": counted(lambda: summary_lines(runs[0], "")),
        "batch": counted(lambda: [runs[0].train_dataset[n] for n in range(BATCHES)], BATCHES),
    }


def counted(function: Callable[[], Any], count: int = 1) -> dict[str, float]:
    """Returns the requests, megabytes and seconds of a call that does something `count` times, for each time."""
    Bucket.requests, Bucket.num_bytes, began = 0, 0, time.perf_counter()
    function()
    values = {"requests": Bucket.requests, "megabytes": Bucket.num_bytes / 1e6, "seconds": time.perf_counter() - began}
    return {name: round(value / count, 3) for name, value in values.items()}


def cost_of_start(documents: int) -> tuple[int, float]:
    """Returns the peak of memory, in bytes, and the seconds of a start on a store of so many random documents."""
    with tempfile.TemporaryDirectory(prefix="cloze-start-") as folder:
        experiment = make_benchmark_experiment("span_corruption", folder, documents)
        tracemalloc.start()
        start(experiment)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        began = time.perf_counter()
        start(experiment)
    return peak, time.perf_counter() - began


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
