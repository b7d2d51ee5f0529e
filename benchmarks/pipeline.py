"""Raw tokens a second from token store to batch: `python -m benchmarks.pipeline [OBJECTIVE ...] [--peer='COMMAND']`.

One JSON line for each OBJECTIVE, a file of configs/ at its preset "base" or, as in "ul2:base,packed", at another; by
default T5's span corruption (rows of 512 and 114) and UL2's mixture (512 and 512). Batches are those of a run
(train.run) in 64 rows: windows drawn from the token store of the standard library's source, corrupted and laid out by
reader threads, one for each core. Counted are the tokens of raw text in the batches that come out; the rate is the
median of five runs of two seconds.

With --peer that command runs in turn with ours, five times each; its JSON line must have "raw_tokens_per_second".
"""

import argparse
import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.processes import PEER_OPTIONS, in_turn
from configs import base
from contract.batch import Batch
from contract.errors import ConfigError
from contract.windows import Windows
from objectives.rows.collate import Collator
from train.command import run_command
from train.experiment import Experiment, make_experiment
from train.run import make_run

OBJECTIVES = ("span_corruption", "ul2")
ROWS = 64
RUNS = 5
WARM_UP = 64  # batches: more than are made ahead


class CountingCollator(Collator):
    """A collator whose batches also tell how many tokens of raw text each row was made of."""

    def __call__(self, windows: Windows, num_rows: int) -> Batch:
        raw_tokens = np.bincount(windows.row_ids, windows.lengths, num_rows)
        return super().__call__(windows, num_rows) | {"raw_tokens": raw_tokens}


def experiment_of(name: str, options: argparse.Namespace) -> Experiment:
    """The experiment of an objective. Raises ConfigError where there is none."""
    module, _, preset = name.partition(":")
    try:
        config = importlib.import_module(f"configs.{module}").get_config(preset or "base")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name!r} must be a file of configs/, with :preset or without: {error}") from None
    config.train.batch_size, config.train.grad_accum_steps = ROWS, 1
    config.data.update({"source": options.source, "path": options.path, "cache_dir": options.cache_dir})
    config.data.reader_threads = options.threads
    experiment = make_experiment(config.to_dict())
    fields = [getattr(experiment.collator, field.name) for field in dataclasses.fields(Collator)]
    return dataclasses.replace(experiment, collator=CountingCollator(*fields))


def tokens_per_second(experiment: Experiment, seconds: float) -> list[float]:
    """Raw tokens a second in each run, of `seconds` seconds or a little more."""
    batches = make_run(experiment).train_batches(0)
    for _ in range(WARM_UP):
        next(batches)
    rates = []
    for _ in range(RUNS):
        tokens, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            tokens += int(next(batches)["raw_tokens"].sum())
        rates.append(tokens / elapsed)
    return rates


def line_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    experiment = experiment_of(name, options)
    rates = tokens_per_second(experiment, options.seconds)
    data = experiment.data
    return {
        "benchmark": "pipeline",
        "objective": name,
        "raw_tokens_per_second": round(statistics.median(rates)),
        "slowest_run": round(min(rates)),
        "fastest_run": round(max(rates)),
        "rows": ROWS,
        "inputs_length": data.inputs_length,
        "targets_length": data.targets_length,
        "examples_per_row": data.examples_per_row,
        "reader_threads": data.reader_threads,
        "cores": os.cpu_count(),
        "source": data.source,
    }


def main() -> None:
    """Measures, or runs measurements in turn with the peer's, and prints the lines."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[PEER_OPTIONS],
        allow_abbrev=False,
    )
    parser.add_argument("objective", nargs="*", help=f"(default: {' '.join(OBJECTIVES)})")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="reader threads (default: one for a core)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default: 2)")
    for name, value in {"source": "stdlib", "path": "", "cache_dir": base.get_config().data.cache_dir}.items():
        parser.add_argument(f"--{name}", default=value, help=f"as config.data.{name}")
    options = parser.parse_args()
    if options.peer:
        _, arguments = PEER_OPTIONS.parse_known_args(sys.argv[1:])
        turns = {"peer": options.peer, "pairs": options.pairs, "rate": "raw_tokens_per_second"}
        lines = in_turn("benchmarks.pipeline", arguments, **turns)
    else:
        lines = (line_of(name, options) for name in options.objective or OBJECTIVES)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
