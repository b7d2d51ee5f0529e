"""How fast objectives turn raw tokens into batches, on one core: `python -m benchmarks.corruption [OBJECTIVE ...]`.

One JSON line for each file of configs/, and for each of its variants: raw tokens a second that go through the collator
alone (corruption and layout; no reading, no model), in batches of 64 rows of 512 tokens of the standard library's
source. OBJECTIVE is the name of such a file, or with a variant as in "bart:token_deletion".
"""

import argparse
import importlib
import json
import os
import pathlib
import pkgutil
import statistics
import sysconfig
import time
from collections.abc import Iterator

import numpy as np

import configs
from contract.windows import Windows
from data.tokenizer import Tokenizer
from train.experiment import Experiment, make_experiment

ROWS, ROW_LENGTH = 64, 512
RUNS, SECONDS = 5, 0.4
_NUM_BATCHES = 8  # different ones, gone through again and again


def every_variant() -> Iterator[str]:
    """The files of configs/, "name" or "name:variant"."""
    for name in sorted({module.name for module in pkgutil.iter_modules(configs.__path__)} - {"base", "architectures"}):
        variants = getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", {})
        yield from (f"{name}:{variant}" for variant in variants) if variants else (name,)


def experiment_of(name: str) -> Experiment:
    """An objective's own config with rows of 512, and as many targets and sentinels as it could ask for."""
    module, _, variant = name.partition(":")
    config = importlib.import_module(f"configs.{module}").get_config(variant or "tiny")
    config.data.update({"inputs_length": ROW_LENGTH, "targets_length": ROW_LENGTH + 1, "num_sentinels": ROW_LENGTH})
    return make_experiment(config.to_dict())


def source_text(tokenizer: Tokenizer) -> np.ndarray:
    """int32 [n]: a few megabytes of the standard library's source."""
    modules = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return tokenizer.encode("".join(path.read_text(encoding="utf-8", errors="replace") for path in modules))


def random_windows(experiment: Experiment, text: np.ndarray, seed: int) -> Windows:
    """A batch's full windows of `text`, of each denoiser as many as it should have; two documents each where packed."""
    generator, specs, vocab = np.random.default_rng(seed), experiment.collator.specs, experiment.tokenizer.vocab
    weights = np.asarray([spec.mean_weight for spec in specs])
    source = generator.choice(len(specs), ROWS, p=weights / weights.sum()).astype(np.int32)
    lengths, rows = np.asarray([specs[k].raw_length for k in source]), np.arange(ROWS)
    if experiment.data.documents == "pack":
        first = generator.integers(1, lengths)
        lengths = np.stack([first, lengths - first], axis=1).ravel()
        rows, source = np.repeat(rows, 2), np.repeat(source, 2)
    place = np.arange(max(spec.raw_length for spec in specs))
    tokens = text[generator.integers(0, len(text) - len(place), len(rows))[:, None] + place]
    tokens[place >= lengths[:, None]] = vocab.pad
    if experiment.collator.denoisers[0].objective.eos_in_windows:
        tokens[np.arange(len(rows)), lengths - 1] = vocab.eos
    keys = generator.integers(0, 2**63, len(rows)).astype(np.uint64)
    beside = {  # of each example, for those that read it
        "others_tokens": np.roll(tokens, 1, axis=0),
        "others_lengths": np.roll(lengths, 1),
        "prompt_lengths": (lengths // 4).astype(np.int32),
        "labels": np.zeros(len(rows), np.int32),
    }
    return Windows(tokens, lengths, rows, keys, source, **beside)


def tokens_per_second(experiment: Experiment, text: np.ndarray) -> list[float]:
    """Raw tokens a second, in several runs."""
    collator = experiment.collator
    batches = [random_windows(experiment, text, seed) for seed in range(_NUM_BATCHES)]
    for windows in batches:
        collator(windows, ROWS)
    rates = []
    for _ in range(RUNS):
        tokens, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < SECONDS:
            for windows in batches:
                collator(windows, ROWS)
                tokens += int(windows.lengths.sum())
        rates.append(tokens / elapsed)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corruption", description=__doc__.splitlines()[0])
    parser.add_argument("objective", nargs="*", help="only these (default: all)")
    chosen = parser.parse_args().objective or list(every_variant())
    if hasattr(os, "sched_setaffinity"):  # elsewhere too NumPy does all of this in one thread
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in chosen:
        experiment = experiment_of(name)
        rates = tokens_per_second(experiment, source_text(experiment.tokenizer))
        line = {
            "benchmark": "corruption",
            "objective": name,
            "architecture": experiment.model.architecture,
            "raw_tokens_per_second": round(statistics.median(rates)),
            "best_run": round(max(rates)),
            "row_length": ROW_LENGTH,
            "rows": ROWS,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
