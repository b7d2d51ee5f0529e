"""Writes checkpoints of a run as Hugging Face folders."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from contract.errors import ConfigError
from data.tokenizers.export import write_huggingface_tokenizer
from data.tokenizers.tokenizer import HuggingFaceTokenizer
from experiment.experiment import Experiment
from files.atomic import read_json
from files.paths import exists, read_text
from huggingface.around_text import AroundText, added_by, around_text
from huggingface.card import AutoClass, Facts, model_card
from huggingface.families import FAMILIES, Folder, folders_of
from huggingface.family import Family
from huggingface.importing import KEPT_OPTIONS
from huggingface.run_command import run_command
from huggingface.weights import WeightsDtype, write_weights
from huggingface.words import WordRate, short_count
from models.config import ModelConfig
from models.parameters import Params
from run.restore import load_params, reading_mesh
from workdir.checkpoint import Checkpoints
from workdir.run_config import IMPORTED_FILE, is_imported

# Names, by the end of the name of a class of transformers, of the class that loads it.
_AUTO_CLASSES: dict[str, AutoClass] = {
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForPreTraining",
}
_RUN_FILE = "cloze.json"  # the config and the step of the run, for `entry_of_others` and for readers
_FILES = re.compile(
    r"cloze\.json|config\.json|generation_config\.json|README\.md|spiece\.model|special_tokens_map\.json|"
    r"tokenizer(_config)?\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
)
_SUBFOLDERS = re.compile(r"generator|discriminator|step_\d+-words_[\w.]+")


@dataclasses.dataclass(frozen=True)
class Exporter:
    """Writes the checkpoints of one run. `check_exportable` checks the run first.

    Attributes:
      workdir: the run's folder.
      experiment: from run.restore.load_experiment.
      dtype: of the tensors.
      architecture: the class of `transformers` to write; "": the class of an imported model, or the first that can
        hold the model.
      words: the words per token of the training text, or why they are unknown.
      notes: for the model cards.
      discriminator_only: write ELECTRA's discriminator without the generator.
    """

    workdir: str
    experiment: Experiment
    dtype: WeightsDtype
    architecture: str
    words: WordRate | str
    notes: tuple[str, ...]
    discriminator_only: bool = False

    def write(self, folder: Path, step: int) -> None:
        """Writes the checkpoint of `step` to the empty `folder`, or to folders in it where a run has two models.

        Raises ConfigError for a checkpoint that is missing or damaged.
        """
        params, _ = load_params(self.experiment, self.workdir, step, mesh=reading_mesh(self.experiment))
        for part, contents in self.folders(jax.device_get(params)).items():
            (folder / part).mkdir(exist_ok=True)
            self._write_model(folder / part, part, contents, step)

    def folders(self, params: Params) -> dict[str, Folder]:
        """Returns what each folder is written from, by the name of the part; "" for a run with one model.

        params: the run's, or their shapes. Raises ConfigError if no class of `transformers`, or not `architecture`, can
        hold the run's model.
        """
        folders = folders_of(self.experiment.learner, params)
        if self.discriminator_only:
            if "discriminator" not in folders:
                raise ConfigError("--discriminator_only is for runs of ELECTRA: remove it")
            del folders["generator"]
        if self.architecture and self.architecture not in FAMILIES:
            raise ConfigError(f"--architecture={self.architecture} is not one of {', '.join(FAMILIES)}")
        if self.architecture and len(folders) > 1:
            raise ConfigError(f"--architecture={self.architecture} does not apply to a run of two models: remove it")
        chosen = {}
        for part, folder in folders.items():
            origin = _origins(self.workdir).get(part, {}).get("architecture")
            family = FAMILIES.get(self.architecture or origin, folder.family)
            if set(family.heads) != set(folder.family.heads):
                raise ConfigError(f"--architecture={family.architecture} has other parameters than this run")
            _check_model(family, folder.model, part)
            chosen[part] = folder._replace(family=family)
        return chosen

    def folder_name(self, step: int) -> str:
        """Returns the name of a checkpoint's folder by step and words seen: "step_400-words_1.23M".

        Raises ConfigError if the words are unknown.
        """
        if isinstance(self.words, str):
            raise ConfigError(f"--all_steps names folders by words seen, which are {self.words}")
        return f"step_{step}-words_{short_count(self.words.words_in(self.raw_tokens(step) or 0))}"

    def raw_tokens(self, step: int) -> int | None:
        """Returns the tokens of training text that the run has seen by `step`; None for an imported model."""
        counters = _counters(self.workdir, step)
        return sum(counters["raw_tokens"]) if counters is not None else None

    def _write_model(self, folder: Path, part: str, contents: Folder, step: int) -> None:
        """Writes one model and its tokenizer."""
        family, model, params = contents
        config = family.huggingface_config(model, self.experiment.vocab)
        origin = _origins(self.workdir).get(part)
        if origin is not None:  # the ids with which texts begin and end are those of the imported folder
            config = {name: value for name, value in config.items() if name not in KEPT_OPTIONS} | origin["options"]
        write_weights(folder, family.to_tensors(params, model, config), self.dtype)
        _write_json(folder / "config.json", config | {"dtype": self.dtype})
        auto_class = auto_class_of(family.architecture)
        if auto_class in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
            _write_json(folder / "generation_config.json", self._generation_config(config))
        max_length = model.max_length if model.positions == "learned" else None
        write_huggingface_tokenizer(
            self.experiment.tokenizer,
            folder,
            # The tokenizer.json of an imported model is unchanged.
            **({"begin": None, "end": None} if self._has_own_tokenizer() else self._around_text()._asdict()),
            bos=None if model.has_encoder else self.experiment.vocab.decoder_start,
            token_types=model.num_token_types > 1,
            max_length=max_length,
        )
        facts = self._facts(part, contents, auto_class, step)
        (folder / "README.md").write_text(model_card(self.experiment, facts), encoding="utf-8")
        _write_json(folder / _RUN_FILE, {"step": step, "config": _portable(self.experiment.config)})

    def _around_text(self) -> AroundText:
        """Returns the ids that the tokenizer puts before and after a text."""
        if self._has_own_tokenizer():
            return added_by(self.experiment.tokenizer)
        return around_text(self.experiment)

    def _has_own_tokenizer(self) -> bool:
        """Returns whether the tokenizer.json is that of an imported model."""
        return is_imported(self.workdir) and isinstance(self.experiment.tokenizer, HuggingFaceTokenizer)

    def _generation_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of generation_config.json, with which `transformers` draws the tokens that we draw."""
        vocab = self.experiment.vocab
        never = [vocab.pad] if vocab.pad != vocab.eos else []
        never += range(vocab.size, config["vocab_size"])  # rows of the table that are no token
        contents = {name: config[name] for name in KEPT_OPTIONS if name in config}
        return contents | ({"suppress_tokens": never} if never else {})

    def _facts(self, part: str, contents: Folder, auto_class: AutoClass, step: int) -> Facts:
        raw_tokens = self.raw_tokens(step)
        words, note = None, self.words if isinstance(self.words, str) else self.words.describe()
        if raw_tokens is not None and not isinstance(self.words, str):
            words = self.words.words_in(raw_tokens)
        return Facts(
            step=step,
            auto_class=auto_class,
            part=part,
            around=self._around_text(),
            dtype=self.dtype,
            num_params=sum(leaf.size for leaf in jax.tree.leaves(contents.params)),
            evaluation=_evaluation(self.workdir, step),
            raw_tokens=raw_tokens,
            words=words,
            words_note=note,
            command="" if raw_tokens is None else run_command(self.experiment.config),
            notes=self.notes,
        )


def check_exportable(exporter: Exporter, *, language_model_only: bool) -> None:
    """Raises ConfigError if no class of `transformers` can hold the run's model.

    language_model_only: leave out the parameters of the learner that are not the language model's.
    """
    experiment = exporter.experiment
    shapes = experiment.params_shapes
    folders = exporter.folders(shapes)
    carried = {module for folder in folders.values() for module in folder.params}
    if "discriminator" in folders:  # the generator's parameters: in a folder of their own, or not exported
        carried.add("generator")
    extras = [module for module in shapes if module not in carried]
    if extras and not language_model_only:
        raise ConfigError(
            f"objective.name={experiment.objective_name!r} trains {', '.join(extras)} in addition to the Transformer, "
            "and no class of transformers that holds this model has a place for that: --language_model_only leaves it "
            "out"
        )


def _check_model(family: Family, model: ModelConfig, part: str) -> None:
    """Raises ConfigError, which names the first field, if the class cannot hold the model of `part`."""
    try:
        family.check_model(model)
    except ConfigError as error:
        if part != "generator":
            raise
        raise ConfigError(f"{error}, in the generator's head: --discriminator_only leaves the generator out") from error


def auto_class_of(architecture: str) -> AutoClass:
    """Returns the name of the AutoModel class that loads a class of `transformers`, such as "BertForMaskedLM"."""
    return next(name for end, name in _AUTO_CLASSES.items() if architecture.endswith(end))


def entry_of_others(folder: Path, experiment: Experiment) -> str:
    """Returns the first entry of `folder` that no export of the run of `experiment` writes; "": there is none.

    An export is a folder of files with names of `_FILES`, whose cloze.json has the config of the run. ELECTRA has two
    of them in a folder, and --all_steps one or two for each step. The path of an entry is relative to `folder`.
    """
    entries = sorted(folder.iterdir(), key=lambda path: (path.name != _RUN_FILE, path.name))
    if not any(path.is_dir() and _SUBFOLDERS.fullmatch(path.name) for path in entries):
        return next((path.name for path in entries if not _is_file_of_export(path, experiment)), "")
    for path in entries:
        if path.is_symlink() or not path.is_dir() or not _SUBFOLDERS.fullmatch(path.name):
            return path.name
        inner = entry_of_others(path, experiment)
        if inner or not any(path.iterdir()):
            return os.path.join(path.name, inner).rstrip(os.sep)
    return ""


def _is_file_of_export(path: Path, experiment: Experiment) -> bool:
    """Returns whether an export of the run writes the file `path`, with cloze.json in the same folder."""
    if path.is_symlink() or not path.is_file() or not _FILES.fullmatch(path.name):
        return False
    return _config_in(path.with_name(_RUN_FILE)) == _plain_json(_portable(experiment.config))


def _portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `config` without the fields of the machine alone and of the length, which a continued run changes."""
    data = {name: value for name, value in config["data"].items() if name != "cache_dir"}
    return {**config, "data": data, "train": {**config["train"], "steps": 0, "epochs": 0.0}}


def _plain_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _config_in(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _counters(workdir: str, step: int) -> dict[str, Any] | None:
    """Returns the counters of a checkpoint; None for one of step 0, an imported model's."""
    if step == 0:
        return None
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    try:
        return checkpoints.counters(step)
    finally:
        checkpoints.close()


def _origins(workdir: str) -> dict[str, dict[str, Any]]:
    """Returns FolderModel.origins of an imported model; {} for a run."""
    if not is_imported(workdir):
        return {}
    path = os.path.join(workdir, IMPORTED_FILE)
    remedy = "convert the Hugging Face folder again"
    folders = read_json(path, remedy=remedy).get("folders")
    if not isinstance(folders, dict) or not all(isinstance(origin, dict) for origin in folders.values()):
        raise ConfigError(f"{path} is damaged: it has no folders: {remedy}")
    return folders


def _evaluation(workdir: str, step: int) -> dict[str, Any] | None:
    """Returns the line of the evaluation at `step` in metrics.jsonl; None if there is none."""
    path = os.path.join(workdir, "metrics.jsonl")
    if not exists(path):
        return None
    found = None
    for number, line in enumerate(read_text(path, errors="replace").splitlines(), start=1):
        try:
            values = json.loads(line)
            is_found = values["split"] == "eval" and values["step"] == step
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{path}, line {number} is not a line of metrics: move the file away") from None
        found = values if is_found else found
    return found


def _write_json(path: Path, contents: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
