"""Every config on every architecture that it supports, small, for the tests that go over the whole table.

PAIRS contains every file of configs/, and CASES its VARIANTS as well, without a change to this file. multitask.py is
not in them: its objectives are those of other files, and it reads several corpora (tests/train/test_multitask.py).
"""

import functools
import importlib
import pathlib
import re

import numpy as np

from contract.vocab import NEWLINE
from contract.windows import Windows
from experiment.experiment import Experiment, make_experiment
from experiment.objective import make_objective
from objectives import Mixture, denoisers_of
from tests.small_fields import small_config

_FOLDER = pathlib.Path(__file__).parent.parent / "configs"
_OTHERS = {"base", "architectures", "machines", "recipes", "sizes", "multitask"}
CONFIGS = sorted({path.stem for path in _FOLDER.glob("[!_]*.py")} - _OTHERS)


@functools.cache  # frozen, and made a thousand times while pytest collects the tests
def objective_of(name: str):
    """The objective of a config, "config" or "config:preset"."""
    config, _, preset = name.partition(":")
    fields = importlib.import_module(f"configs.{config}").get_config(preset or "tiny").to_dict()["objective"]
    return make_objective(fields)


def _variants(config: str) -> list[str]:
    """The config with each of its VARIANTS, named as on the command line: "bart:token_deletion".

    A variant whose denoisers are all rows of an earlier variant's mixture is omitted.
    """
    names, rows_of_mixtures = [], set()
    for variant in getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", [""]):
        name = ":".join(filter(None, [config, variant]))
        objective = objective_of(name)
        rows = {(denoiser.mode, denoiser.objective) for denoiser in denoisers_of(objective, config)}
        if not rows <= rows_of_mixtures:
            names.append(name)
        if isinstance(objective, Mixture):
            rows_of_mixtures |= rows
    return names


PAIRS = [(name, architecture) for name in CONFIGS for architecture in sorted(objective_of(name).architectures)]
CASES = [
    (name, architecture)
    for config in CONFIGS
    for name in _variants(config)
    for architecture in sorted(objective_of(name).architectures)
]


def presets_of(config: str) -> list[str]:
    """The presets of configs/<config>.py, sizes and variants, from its error message for an unknown preset."""
    try:
        importlib.import_module(f"configs.{config}").get_config("no such preset")
    except ValueError as error:
        return re.findall(r"'(\w+)'", str(error))
    raise AssertionError(f"configs/{config}.py accepts an unknown preset")


def reads_corpus(name: str, corpus: pathlib.Path) -> dict[str, str]:
    """Overrides of `small_config` for the part of the tests' `corpus` that the config's objective can read."""
    denoisers = denoisers_of(objective_of(name), name)
    extra_columns = {column for denoiser in denoisers for column in denoiser.objective.extra_columns}
    files = {"prompt_lengths": "pairs.jsonl", "labels": "labelled.jsonl"}
    path = next((files[column] for column in extra_columns if column in files), "text")
    return {
        "data__source": path.partition(".")[2] or "text",
        "data__path": str(corpus / path),
        "data__cache_dir": str(corpus / "cache"),
    }


def shares_rows(name: str) -> bool:
    """Whether data.examples_per_row may be more than 1."""
    objectives = [denoiser.objective for denoiser in denoisers_of(objective_of(name), name)]
    return not any(objective.one_example_per_row or objective.documents == ("whole",) for objective in objectives)


def small_experiment(name: str, architecture: str, **overrides) -> Experiment:
    """The experiment of `small_config`."""
    return make_experiment(small_config(name, architecture, **overrides))


def random_windows(experiment: Experiment, rows: int, *, same_keys: bool, seed: int = 0) -> Windows:
    """Full windows of random text in short lines, with every column that a denoiser may read.

    Args:
      experiment: determines the vocabulary, and the number and lengths of the windows of a row. Row r belongs to
        denoiser r mod D, or to row r mod R of the row plan.
      rows: the number of rows.
      same_keys: whether all rows are of one denoiser and equal the first in text and randomness.
      seed: of the random text.
    """
    generator = np.random.default_rng(seed)
    vocab, specs, plan = experiment.vocab, experiment.window_specs, experiment.batch_spec.plan
    per_row, variant_ids = experiment.data.examples_per_row, None
    row_ids = np.repeat(np.arange(rows), per_row)
    denoiser_ids = (row_ids if not same_keys else np.zeros_like(row_ids)) % len(specs)
    lengths = np.asarray([specs[k].raw_length for k in denoiser_ids])
    if plan is not None:
        plan_rows = np.zeros(rows, int) if same_keys else np.arange(rows) % len(plan.denoiser_ids)
        denoiser_ids, lengths, variant_ids = (column[plan_rows].ravel() for column in plan)
    width = max(spec.raw_length for spec in specs)

    def random_text():
        tokens = generator.integers(vocab.content_start, vocab.content_end, (len(row_ids), width)).astype(np.int32)
        newlines = np.flatnonzero(vocab.marked(np.arange(vocab.size), NEWLINE))
        tokens[generator.random(tokens.shape) < 0.1] = newlines[0]
        return tokens

    tokens = random_text()
    keys = generator.integers(0, 2**63, len(row_ids)).astype(np.uint64)
    columns = {"tokens": tokens, "lengths": lengths, "keys": keys}
    columns |= {"others_tokens": random_text(), "others_lengths": lengths} | random_columns(generator, lengths)
    if same_keys:
        columns = {name: np.concatenate([column[:per_row]] * rows) for name, column in columns.items()}
    return Windows(row_ids=row_ids, denoiser_ids=denoiser_ids.astype(np.int32), variant_ids=variant_ids, **columns)


def random_columns(generator: np.random.Generator, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of Windows from `prompt_lengths` on: prompts shorter than the example, and labels 0 or 1."""
    prompts = np.minimum(generator.integers(1, np.maximum(lengths, 2)), lengths - 1)
    return {
        "prompt_lengths": prompts.astype(np.int32),
        "labels": generator.integers(0, 2, len(lengths)).astype(np.int32),
        "begins_document": generator.random(len(lengths)) < 0.5,
        "ends_document": generator.random(len(lengths)) < 0.5,
    }


def changed_token(vocab, tokens):
    """A different ordinary token with the same marks (contract/vocab.py) for each of `tokens`, int32 [...].

    Marks determine where sentences end and characters are cut, which is visible in the inputs. Special tokens, and the
    line end, which alone has its marks, are returned unchanged.
    """
    marks = np.frombuffer(vocab.marks, np.uint8)[vocab.content_start : vocab.content_end]
    replacements = np.arange(vocab.size, dtype=np.int32)
    for mark in np.unique(marks):
        same_mark = vocab.content_start + np.flatnonzero(marks == mark)
        replacements[same_mark] = np.roll(same_mark, 17)
    return replacements[tokens]
