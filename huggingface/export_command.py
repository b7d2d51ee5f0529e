"""A run as a Hugging Face folder: python -m train.export --workdir=RUN --out=DIR [--step=N] [--dtype=bfloat16]

Writes config.json, safetensors, the tokenizer, generation_config.json and a model card, README.md, which says how to
load and prompt the model. The parameters are the averaged ones if the run averages (train.ema_decay). With --all_steps,
DIR has a folder for each checkpoint, named by step and words seen. ELECTRA has two folders, generator and
discriminator; --discriminator_only writes the latter alone. See docs/huggingface.md.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from experiment.experiment import Experiment
from files.atomic import atomic_folder, check_new_folder
from huggingface.export import Exporter, check_exportable, entry_of_others
from huggingface.words import WordRate, given_rate, measure_rate
from run.corpus import describe_changed_corpus, open_corpora
from run.restore import load_experiment
from workdir.checkpoint import Checkpoints
from workdir.run_config import is_imported

_FLAGS = flags.FlagValues()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_OUT = flags.DEFINE_string("out", None, "Folder to write.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to export. Default: the newest.", flag_values=_FLAGS)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16", "float16"], "Type of the tensors.", flag_values=_FLAGS
)
_ARCHITECTURE = flags.DEFINE_string(
    "architecture",
    "",
    "Class of transformers to write. Default: the first that can hold the model.",
    flag_values=_FLAGS,
)
_ALL_STEPS = flags.DEFINE_bool("all_steps", False, "Export every checkpoint, each into a folder of its own.", _FLAGS)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace an earlier export of the same run.", _FLAGS)
_LANGUAGE_MODEL_ONLY = flags.DEFINE_bool(
    "language_model_only", False, "Leave out what the run trains besides its language model.", _FLAGS
)
_DISCRIMINATOR_ONLY = flags.DEFINE_bool(
    "discriminator_only",
    False,
    "Leave out ELECTRA's generator, which transformers has with the exact GELU only.",
    _FLAGS,
)
_WORDS_PER_TOKEN = flags.DEFINE_float(
    "words_per_token", None, "Words per token of the training text. Default: measured on it.", flag_values=_FLAGS
)


def main() -> None:
    """Reads the command line and writes the folder."""
    parse_flags(_FLAGS, __doc__)
    if _ALL_STEPS.value and _STEP.value is not None:
        raise ConfigError(f"--step={_STEP.value} and --all_steps exclude each other: remove one")
    if _WORDS_PER_TOKEN.value is not None and not 0 < _WORDS_PER_TOKEN.value < float("inf"):
        raise ConfigError(f"--words_per_token={_WORDS_PER_TOKEN.value} must be above 0 and finite")
    workdir = _WORKDIR.value
    experiment = load_experiment(workdir)
    exporter = Exporter(
        workdir, experiment, _DTYPE.value, _ARCHITECTURE.value, "unknown", _notes(), _DISCRIMINATOR_ONLY.value
    )
    check_exportable(exporter, language_model_only=_LANGUAGE_MODEL_ONLY.value)
    replaces = _replaces(experiment)
    check_new_folder(_OUT.value, "--out", replaces=replaces)
    steps = _steps(workdir)
    words = _words(experiment)
    if isinstance(words, str) and not is_imported(workdir):
        print(f"note: the words seen are {words}", file=sys.stderr, flush=True)
    exporter = dataclasses.replace(exporter, words=words)
    names = [exporter.folder_name(step) if _ALL_STEPS.value else "" for step in steps]
    with atomic_folder(_OUT.value, "--out", replaces=replaces) as folder:
        for step, name in zip(steps, names, strict=True):
            (folder / name).mkdir(exist_ok=True)
            exporter.write(folder / name, step)
    for step, name in zip(steps, names, strict=True):
        print(f"exported step {step} to {os.path.join(_OUT.value, name).rstrip(os.sep)}")


def _steps(workdir: str) -> list[int]:
    """Returns the steps of the checkpoints to export. Raises ConfigError if one does not exist."""
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    steps = checkpoints.steps()
    checkpoints.close()
    if not steps:
        raise ConfigError(f"--workdir={workdir} has no checkpoint: train this run first")
    if _ALL_STEPS.value:
        return steps
    step = steps[-1] if _STEP.value is None else _STEP.value
    if step not in steps:
        raise ConfigError(f"--step={step} has no checkpoint in {workdir}: choose one of the steps {steps}")
    return [step]


def _words(experiment: Experiment) -> WordRate | str:
    """Returns the words per token of the run's training text, or why they are unknown."""
    if is_imported(_WORKDIR.value):
        return "unknown, because the model is imported"
    if _WORDS_PER_TOKEN.value is not None:
        return given_rate(_WORDS_PER_TOKEN.value)
    try:
        corpora = open_corpora(experiment, show_progress=False)
    except ConfigError as error:
        return f"unknown, because the corpus cannot be read here ({error}): set --words_per_token"
    if describe_changed_corpus(_WORKDIR.value, experiment, corpora):
        return "unknown, because the corpus has changed since the run was trained: set --words_per_token"
    if experiment.data.sources:
        return "unknown, because the run read several corpora: set --words_per_token"
    return measure_rate(corpora.each[0].train_documents, experiment.tokenizer)


def _replaces(experiment: Experiment) -> Callable[[Path], str]:
    """Returns new_folder's `replaces`: earlier exports of this run, with --overwrite."""

    def reason(folder: Path) -> str:
        other = entry_of_others(folder, experiment)
        if other:
            return f"exists and is no earlier export of this run, which writes no such {other}: name a new folder"
        return "" if _OVERWRITE.value else "is an earlier export of this run: set --overwrite to replace it"

    return reason


def _notes() -> tuple[str, ...]:
    """Returns notes for the model cards."""
    if _DISCRIMINATOR_ONLY.value:
        return ("The run trained a generator too, which is not in this folder.",)
    if _LANGUAGE_MODEL_ONLY.value:
        return ("The run trained more than this language model; the rest is not in this folder.",)
    return ()


if __name__ == "__main__":
    run_command(main)
