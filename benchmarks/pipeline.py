"""Raw tokens per second from token store to batch: python -m benchmarks.pipeline [OBJECTIVE ...] [--peer='COMMAND']

Prints one JSON line for each OBJECTIVE, a file of configs/ with an optional preset, as in "ul2:base,packed" (default:
"base"). Without OBJECTIVE: T5's span corruption (rows of 512 and 114) and UL2's mixture (512 and 512). Batches are a
run's, with 64 rows: windows drawn from the token store of the standard library's source, corrupted and laid out by as
many reader threads as a run has (data.reader_threads). The rate is the raw tokens of the batches per second, as the
median of five runs of two seconds.

With --corpora=3 the same files are three corpora, whose windows are mixed in equal shares (data.sources). The files are
those below --path, of which each corpus has every third one.

With --peer, this benchmark and the command of another implementation alternate, --pairs runs each. The other JSON line
must have "raw_tokens_per_second".
"""

import json
import os
import pathlib
import statistics
import sysconfig
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from benchmarks.measuring import define_peer, named_config, peer_lines, rates
from command.flags import parse_flags, run_command
from configs import base
from configs.base import corpus as a_corpus
from contract.batch import Batch
from contract.windows import Windows
from data.windows.batches import loader
from experiment.experiment import Experiment, make_experiment
from run.compiled_run import make_run

OBJECTIVES = ("span_corruption", "ul2")
ROWS = 64
WARM_UP_BATCHES = 64  # more than the loader prefetches

_FLAGS = flags.FlagValues()
define_peer(_FLAGS)
_DATA = base.get_config().data
_THREADS = flags.DEFINE_integer("threads", _DATA.reader_threads, "Reader threads.", 0, flag_values=_FLAGS)
_SECONDS = flags.DEFINE_float("seconds", 2.0, "Seconds of each run.", lower_bound=0.01, flag_values=_FLAGS)
_SOURCE = flags.DEFINE_string("source", "stdlib", "Corpus, as in data.source.", _FLAGS)
_PATH = flags.DEFINE_string("path", "", "Path of the corpus, as in data.path.", _FLAGS)
_CORPORA = flags.DEFINE_integer("corpora", 1, "Corpora that the files are divided into.", 1, 64, flag_values=_FLAGS)
_CACHE_DIR = flags.DEFINE_string("cache_dir", _DATA.cache_dir, "Folder of token stores, as in data.cache_dir.", _FLAGS)


def make_benchmark_experiment(name: str, **data: Any) -> Experiment:
    """Returns the experiment of a config (named_config) with fields of config.data changed. Raises ConfigError."""
    config = named_config(name, "base")
    config.train.batch_size, config.train.grad_accum_steps = ROWS, 1
    config.data.update(data)
    return make_experiment(config.to_dict())


def divided(path: str, count: int) -> dict[str, Any]:
    """Returns fields of config.data for the text files below `path` as `count` corpora.

    path: "" for the standard library.
    """
    root = pathlib.Path(path or sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*" if path else "*.py") if file.is_file())
    files = [file for file in files if not {"test", "tests", "site-packages"} & set(file.relative_to(root).parts)]
    sources = {f"part{k}": a_corpus(source="text", path=",".join(map(str, files[k::count]))) for k in range(count)}
    return dict(source="", path="", sources=sources, on_unreadable="skip")


def train_batches(experiment: Experiment) -> Iterator[Batch]:
    """Returns a run's batches, each with raw_tokens, int64 [rows]: the number of raw tokens that made a row."""

    def collate(windows: Windows, num_rows: int) -> Batch:
        raw_tokens = np.bincount(windows.row_ids, windows.lengths, num_rows).astype(np.int64)
        return experiment.collate(windows, num_rows) | {"raw_tokens": raw_tokens}

    batches = experiment.batches(make_run(experiment).corpora.train_documents, transform=collate)
    threads, prefetch = experiment.data.reader_threads, experiment.data.prefetch_batches
    return loader(batches, start=0, threads=threads, prefetch=prefetch)


def tokens_per_second(experiment: Experiment, seconds: float) -> list[float]:
    """Returns the raw tokens per second of each run, which takes `seconds` seconds or a little more."""
    batches = train_batches(experiment)
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    return rates(lambda: int(next(batches)["raw_tokens"].sum()), seconds)


def measure(name: str) -> dict[str, Any]:
    """Returns the JSON line of one objective."""
    text = dict(source=_SOURCE.value, path=_PATH.value)
    experiment = make_benchmark_experiment(
        name,
        **(text if _CORPORA.value == 1 else divided(_PATH.value, _CORPORA.value)),
        cache_dir=_CACHE_DIR.value,
        reader_threads=_THREADS.value,
    )
    measured = tokens_per_second(experiment, _SECONDS.value)
    return {
        "benchmark": "pipeline",
        "objective": name,
        "raw_tokens_per_second": round(statistics.median(measured)),
        "slowest_run": round(min(measured)),
        "fastest_run": round(max(measured)),
        "rows": ROWS,
        "row_length": experiment.data.inputs_length,
        "reader_threads": experiment.data.reader_threads,
        "cores": os.cpu_count(),
        "corpora": _CORPORA.value,
    }


def main() -> None:
    """Measures each objective, or alternates with --peer, and prints the lines."""
    objectives = parse_flags(_FLAGS, __doc__, positional=True) or OBJECTIVES
    if _FLAGS["peer"].value:
        lines = peer_lines("benchmarks.pipeline", _FLAGS, rate="raw_tokens_per_second")
    else:
        lines = map(measure, objectives)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
