"""Every declared pair of config and architecture, small: what the tests over the whole table run on.

A new file in configs/ is in PAIRS, and its VARIANTS in CASES, without a change here.
"""

import importlib
import pathlib
import re

import numpy as np

from contract.vocab import NEWLINE
from contract.windows import Windows
from objectives import Mixture, denoisers_of
from train.experiment import Experiment, make_experiment
from train.objective_config import make_objective

_FOLDER = pathlib.Path(__file__).parent.parent / "configs"
CONFIGS = sorted({path.stem for path in _FOLDER.glob("[!_]*.py")} - {"base", "architectures", "recipes"})


def objective_of(name: str):
    """The objective of a config, "config" or "config:preset"."""
    config, _, preset = name.partition(":")
    fields = importlib.import_module(f"configs.{config}").get_config(preset or "tiny").to_dict()["objective"]
    return make_objective(fields)


def _variants(config: str) -> list[str]:
    """The config once for each of its VARIANTS, named as on the command line: "bart:token_deletion".

    Those whose denoisers are all rows of a mixture before them are left out.
    """
    names, mixed = [], set()
    for variant in getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", [""]):
        name = ":".join(filter(None, [config, variant]))
        objective = objective_of(name)
        rows = {(one.mode, one.objective) for one in denoisers_of(objective, config)}
        if not rows <= mixed:
            names.append(name)
        if isinstance(objective, Mixture):
            mixed |= rows
    return names


PAIRS = [(name, architecture) for name in CONFIGS for architecture in sorted(objective_of(name).architectures)]
CASES = [
    (name, architecture)
    for config in CONFIGS
    for name in _variants(config)
    for architecture in sorted(objective_of(name).architectures)
]
SMALL_OBJECTIVE = {
    "classification": {"classes": ("a", "b")},
    "electra": {"generator_size": 0.5},
    "fim": {"min_document_length": 8},
}
SMALL_MODEL = {"num_layers": 2, "d_model": 32, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "d_ff": 48}


def presets_of(config: str) -> list[str]:
    """The presets of configs/<config>.py, sizes and variants, as it names them itself."""
    try:
        importlib.import_module(f"configs.{config}").get_config("no such preset")
    except ValueError as error:
        return re.findall(r"'(\w+)'", str(error))
    raise AssertionError(f"configs/{config}.py takes any preset")


def small_config(name: str, architecture: str, **overrides):
    """A config at its smallest; `overrides` are dotted fields, written with __ for the dot.

    name: a file of configs/, or "file:preset".
    """
    name, _, preset = name.partition(":")
    config = importlib.import_module(f"configs.{name}").get_config(preset or "tiny")
    config.objective.update(SMALL_OBJECTIVE.get(name, {}))
    config.model.update(SMALL_MODEL | {"architecture": architecture})
    config.data.update({"inputs_length": 40, "targets_length": 40, "num_sentinels": 100})
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 8, "log_every": 1, "eval_every": 2, "eval_batches": 1})
    config.train.checkpoint_every = 2
    if "end_step" in config.objective:  # a mixture's schedule: over the steps there are
        config.objective.update({"begin_step": 0, "end_step": 2})
    fields = config.to_dict()
    for field, value in overrides.items():
        section, _, name = field.rpartition("__")
        fields[section][name] = value
    return fields


def reads_corpus(name: str, corpus: pathlib.Path) -> dict[str, str]:
    """Overrides that have a config read the tests' `corpus`, of it what its objective can use."""
    extra_columns = {column for one in denoisers_of(objective_of(name), name) for column in one.objective.extra_columns}
    files = {"prompt_lengths": "pairs.jsonl", "labels": "labelled.jsonl"}
    path = next((files[column] for column in extra_columns if column in files), "text")
    return {
        "data__source": path.partition(".")[2] or "text",
        "data__path": str(corpus / path),
        "data__cache_dir": str(corpus / "cache"),
    }


def shares_rows(name: str) -> bool:
    """Whether data.examples_per_row may be more than one."""
    kinds = [one.objective for one in denoisers_of(objective_of(name), name)]
    return not any(kind.one_example_per_row or kind.documents == ("whole",) for kind in kinds)


def small_experiment(name: str, architecture: str, **overrides) -> Experiment:
    return make_experiment(small_config(name, architecture, **overrides))


def random_windows(experiment: Experiment, rows: int, *, same_keys: bool, seed: int = 0) -> Windows:
    """Full windows of random text in short lines, `examples_per_row` a row, going round the denoisers row by row; of
    planned rows what the plan says.

    They have every column that a denoiser may read. same_keys: every row has the randomness and the text of the first.
    """
    generator = np.random.default_rng(seed)
    vocab, specs, plan = experiment.vocab, experiment.window_specs, experiment.batch_spec.plan
    per_row, parts = experiment.data.examples_per_row, None
    row_of = np.repeat(np.arange(rows), per_row)
    source = (row_of if not same_keys else np.zeros_like(row_of)) % len(specs)
    lengths = np.asarray([specs[s].raw_length for s in source])
    if plan is not None:
        place = np.zeros(rows, int) if same_keys else np.arange(rows) % len(plan.denoiser_ids)
        source, lengths, parts = (column[place].ravel() for column in plan)
    width = max(spec.raw_length for spec in specs)

    def text():
        tokens = generator.integers(vocab.content_start, vocab.content_end, (len(row_of), width)).astype(np.int32)
        newlines = np.flatnonzero(vocab.marked(np.arange(vocab.size), NEWLINE))
        tokens[generator.random(tokens.shape) < 0.1] = newlines[0]
        return tokens

    tokens = text()
    keys = generator.integers(0, 2**63, len(row_of)).astype(np.uint64)
    more = {"others_tokens": text(), "others_lengths": lengths} | random_columns(generator, lengths)
    columns = {"tokens": tokens, "lengths": lengths, "keys": keys, **more}
    if same_keys:
        columns = {name: np.concatenate([column[:per_row]] * rows) for name, column in columns.items()}
    return Windows(row_ids=row_of, denoiser_ids=source.astype(np.int32), parts=parts, **columns)


def random_columns(generator: np.random.Generator, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """A prompt and a class for each example: Windows.prompt_lengths, shorter than the example, and Windows.labels."""
    prompts = np.minimum(generator.integers(1, np.maximum(lengths, 2)), lengths - 1)
    return {
        "prompt_lengths": prompts.astype(np.int32),
        "labels": generator.integers(0, 2, len(lengths)).astype(np.int32),
    }


def changed_token(vocab, tokens):
    """Another ordinary token for each, of the same kind: ending a sentence or a line, beginning with a space, ...

    The order of sentences and the cuts between characters go by that, and are seen. A line's end has no other.
    """
    marks = np.frombuffer(vocab.marks, np.uint8)[vocab.content_start : vocab.content_end]
    another = np.arange(vocab.size, dtype=np.int32)
    for kind in np.unique(marks):
        of_kind = vocab.content_start + np.flatnonzero(marks == kind)
        another[of_kind] = np.roll(of_kind, 17)
    return another[tokens]
