"""Raw tokens per second of each objective, on one core: python -m benchmarks.corruption [OBJECTIVE ...]

Prints one JSON line for each experiment of configs/, or for each variant of an experiment that has variants: the raw
tokens per second of the collator (corruption and layout, without reading and without a model), in batches of 64 rows of
512 tokens of the standard library's source. Planned rows have the windows of their plan. OBJECTIVE is a file of
configs/, with or without a variant, as in "bart:token_deletion".
"""

import json
import os
import pathlib
import statistics
import sysconfig

import numpy as np
from absl import flags

from benchmarks.measuring import every_variant, named_config, rates
from command.flags import parse_flags, run_command
from contract.windows import Windows
from data.tokenizers.tokenizer import Tokenizer
from experiment.experiment import Experiment, make_experiment

ROWS, ROW_LENGTH = 64, 512
SECONDS = 0.4  # of a run
_NUM_BATCHES = 8  # different batches, which every run repeats

_FLAGS = flags.FlagValues()


def make_benchmark_experiment(name: str) -> Experiment:
    """Returns the experiment of a config (named_config) with rows of 512 tokens and targets of any length.

    Raises ConfigError if there is no such config.
    """
    config = named_config(name, "tiny")
    config.data.update({"inputs_length": ROW_LENGTH, "targets_length": ROW_LENGTH + 1, "num_sentinels": ROW_LENGTH})
    return make_experiment(config.to_dict())


def source_text(tokenizer: Tokenizer) -> np.ndarray:
    """Returns a few megabytes of the standard library's source, int32 [n]."""
    modules = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return tokenizer.encode("".join(path.read_text(encoding="utf-8", errors="replace") for path in modules))


def random_windows(experiment: Experiment, text: np.ndarray, seed: int) -> Windows:
    """Returns full windows of `text` for the rows of a batch, with denoisers drawn by weight, or those of planned rows.

    If documents are packed, each window is two documents.
    """
    generator, specs, vocab = np.random.default_rng(seed), experiment.window_specs, experiment.vocab
    plan, variant_ids = experiment.batch_spec.plan, None
    if plan is None:
        weights = np.asarray([spec.weight + spec.final_weight for spec in specs])
        denoiser_ids = generator.choice(len(specs), ROWS, p=weights / weights.sum()).astype(np.int32)
        lengths, row_ids = np.asarray([specs[k].raw_length for k in denoiser_ids]), np.arange(ROWS)
    else:
        rows = np.arange(seed * ROWS, (seed + 1) * ROWS) % len(plan.raw_lengths)
        denoiser_ids, lengths, variant_ids = (column[rows].ravel() for column in plan)
        row_ids = np.repeat(np.arange(ROWS), plan.raw_lengths.shape[1])
    if experiment.data.documents == "pack":
        first = generator.integers(1, lengths)
        lengths = np.stack([first, lengths - first], axis=1).ravel()
        row_ids, denoiser_ids = np.repeat(row_ids, 2), np.repeat(denoiser_ids, 2)
    positions = np.arange(max(int(lengths.max()), *(spec.raw_length for spec in specs)))
    tokens = text[generator.integers(0, len(text) - len(positions), len(row_ids))[:, None] + positions]
    tokens[positions >= lengths[:, None]] = vocab.pad
    if experiment.denoisers[0].objective.eos_in_windows:
        tokens[np.arange(len(row_ids)), lengths - 1] = vocab.eos
    keys = generator.integers(0, 2**63, len(row_ids)).astype(np.uint64)
    extra_columns = {
        "others_tokens": np.roll(tokens, 1, axis=0),
        "others_lengths": np.roll(lengths, 1),
        "prompt_lengths": (lengths // 4).astype(np.int32),
        "labels": np.zeros(len(row_ids), np.int32),
        "quantiles": generator.random(len(row_ids)),
        "begins_document": np.zeros(len(row_ids), bool),
        "ends_document": np.zeros(len(row_ids), bool),
    }
    return Windows(tokens, lengths, row_ids, keys, denoiser_ids, variant_ids=variant_ids, **extra_columns)


def tokens_per_second(experiment: Experiment, text: np.ndarray) -> list[float]:
    """Returns the raw tokens per second of each run."""
    batches = [random_windows(experiment, text, seed) for seed in range(_NUM_BATCHES)]

    def collate_all() -> int:
        for windows in batches:
            experiment.collate(windows, ROWS)
        return sum(int(windows.lengths.sum()) for windows in batches)

    collate_all()  # a warm-up
    return rates(collate_all, SECONDS)


def main() -> None:
    """Measures each objective and prints its line."""
    names = parse_flags(_FLAGS, __doc__, positional=True) or every_variant()
    if hasattr(os, "sched_setaffinity"):  # not on macOS; this NumPy code uses one thread anyway
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in names:
        experiment = make_benchmark_experiment(name)
        measured = tokens_per_second(experiment, source_text(experiment.tokenizer))
        line = {
            "benchmark": "corruption",
            "objective": name,
            "architecture": experiment.model.architecture,
            "raw_tokens_per_second": round(statistics.median(measured)),
            "fastest_run": round(max(measured)),
            "row_length": ROW_LENGTH,
            "rows": ROWS,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
