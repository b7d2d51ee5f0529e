"""A Hugging Face folder as the folder of a run: python -m train.convert --from=DIR --workdir=RUN

train.evaluate, train.generate, train.export, train.show and train.init_from read the new folder as that of a run, with
the model as the checkpoint of step 0. The model is the folder's; the objective follows from its class: CLM for GPT-2,
GPT-NeoX, Llama, Mistral and Qwen, MLM for BERT, RoBERTa, ModernBERT and ELECTRA's generator, NSP for BERT with its
sentence head, span corruption for T5, BART's noise for BART, ELECTRA for a folder that has the folders generator and
discriminator. --config=configs/OTHER.py chooses another one, and --config.data.source and so on the corpus of held-out
text. Only safetensors are read, never a pickled file. See docs/huggingface.md.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from command.flags import config_fields, config_overrides, define_config, parse_flags, run_command
from command.program import visible
from contract.errors import ConfigError, errors_naming
from experiment.experiment import Experiment, make_experiment
from files.atomic import atomic_folder, check_new_folder, read_json
from huggingface.folder import is_huggingface_folder
from huggingface.importing import ElectraPair, FolderModel, is_pair, open_model, open_pair, vocabulary_fields
from models.parameters import Params, array_difference, array_types
from run.restore import config_for_reading
from workdir.run_config import IN_WORKDIR
from workdir.workdir import Workdir

_CONFIGS = Path(__file__).parents[1] / "configs"
# The class of transformers -> the config file of its objective; that of decoders is clm.py.
_DEFAULT_CONFIGS = {
    "T5ForConditionalGeneration": "span_corruption.py",
    "BartForConditionalGeneration": "bart.py",
    "T5GemmaForConditionalGeneration": "prefix_lm.py",
    "BertForMaskedLM": "mlm.py",
    "BertForPreTraining": "nsp.py",
    "RobertaForMaskedLM": "mlm.py:roberta",
    "ElectraForMaskedLM": "mlm.py",
    "ModernBertForMaskedLM": "mlm.py:roberta",
}
# In the folder of the tokenizer's model.
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
_FROM = flags.DEFINE_string(
    "from", None, "Hugging Face folder: config.json, safetensors, tokenizer.", _FLAGS, required=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder to write, as of a run.", _FLAGS, required=True)


def main() -> None:
    """Reads the command line, writes the folder of a run, and says what to do with it.

    The folder has config.json, checkpoints/0, the tokenizer's files, and imported.json, which says where the model is
    from. Nothing is at --workdir unless everything could be written.
    """
    argv, path = sys.argv, _path(sys.argv)
    is_given = any(argument.split("=")[0] == "--config" for argument in argv)
    if path is not None and not is_given:  # overrides can only follow the config
        argv = [argv[0], f"--config={default_config(path)}", *argv[1:]]
    parse_flags(_FLAGS, __doc__, argv)
    path, workdir = _FROM.value, _WORKDIR.value
    check_new_folder(workdir, "--workdir")
    experiment, params, source = read_model(
        path,
        config_fields(_FLAGS),
        overrides=config_overrides(_FLAGS),
        is_default_config=not is_given,
        where=f"--from={path}",
    )
    tokenizer_name, parts = source.tokenizer_file.name, source.parts
    written = dict(experiment.config)
    written["data"] = written["data"] | {"tokenizer": f"{IN_WORKDIR}{tokenizer_name}"}
    # What a run's config says of its training text is missing: nobody here knows it.
    written["corpus"] = {"tokenizer": experiment.tokenizer.fingerprint}
    with atomic_folder(workdir, "--workdir") as folder:
        for file in (source.tokenizer_file, *map(source.tokenizer_file.with_name, _TOKENIZER_FILES)):
            if file.is_file():
                if file.name in _TOKENIZER_FILES:
                    read_json(file, remedy="repair it")  # a link of a folder by somebody else may lead to any file
                shutil.copyfile(file, folder / file.name)
        run, origins = Workdir(folder), {name: part.origin for name, part in parts.items()}
        run.write_imported({"from": os.path.basename(os.path.abspath(path)), "folders": origins})
        with run.checkpoints(keep=1) as checkpoints:
            checkpoints.save(0, {"params": params})
        run.write_config(written)
    for note in (note for part in parts.values() for note in part.notes):
        print(f"note: {visible(note)}")
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(
        f"imported {' and '.join(part.family.architecture for part in parts.values())} with {count:,} parameters into "
        f"{workdir}; objective.name={experiment.objective_name!r}, data.source={experiment.data.source!r}"
    )
    print(f"python -m train.evaluate --workdir={shlex.quote(workdir)}")
    print(f"python -m train.main --config=... --config.train.init_from={shlex.quote(workdir)}")


def default_config(path: str, where: str | None = None) -> Path:
    """Returns the config file, with a preset, for the model of the Hugging Face folder `path`.

    where: the flag or argument that names the folder, for messages; None: --from.

    Raises ConfigError for a folder that cannot be read, and for a model that has no objective of its own.
    """
    where = f"--from={path}" if where is None else where
    source = _open(path, where)
    if isinstance(source, ElectraPair):
        return _CONFIGS / "electra.py"
    name = source.family.architecture
    defaults = {name: "clm.py"} if source.family.fields["architecture"] == ("decoder_only",) else _DEFAULT_CONFIGS
    if name not in defaults:
        raise ConfigError(
            f"{where}: {name} alone predicts no tokens: to fine-tune it, set --config.train.init_from={path} in "
            "a run of configs/classification.py; an ELECTRA model is imported from a folder with the folders generator "
            "and discriminator"
        )
    return _CONFIGS / defaults[name]


def read_model(
    path: str, config: Mapping[str, Any], *, overrides: Mapping[str, Any], is_default_config: bool, where: str
) -> "tuple[Experiment, Params, FolderModel | ElectraPair]":
    """Returns the experiment and the parameters of the model in the Hugging Face folder `path`, and the folder.

    Args:
      path: a Hugging Face folder, or one with the folders generator and discriminator of ELECTRA.
      config: the fields of configs/base.py, overrides applied. Its `model` is replaced by the folder's, and its
        tokenizer too.
      overrides: the fields that were set on the command line.
      is_default_config: whether `config` is that of `default_config`; if so, the mode tokens are none but those set.
      where: the flag or config field that names the folder, for messages.

    Raises ConfigError, one line, for a folder that cannot be read or holds another model than its config.json says, and
    for an objective that the model does not have.
    """
    source = _open(path, where)
    with errors_naming(source.where):
        experiment = make_experiment(_imported_config(source, config, overrides, is_default_config))
    params = source.params()
    _check_params(experiment, params, source.where)
    return experiment, params, source


def _open(path: str, where: str) -> "FolderModel | ElectraPair":
    if is_pair(path):
        return open_pair(path, where)
    if Workdir(path).has_config and not is_huggingface_folder(path):
        raise ConfigError(f"{where} is the folder of a run, not a Hugging Face folder: it needs no conversion")
    return open_model(path, where)


def _imported_config(
    source: "FolderModel | ElectraPair", config: Mapping[str, Any], overrides: Mapping[str, Any], is_default: bool
) -> dict[str, Any]:
    """Returns `config` with the model and the tokenizer of `source`."""
    for field, value in overrides.items():
        section, _, name = field.partition(".")
        if section == "model" and name in source.fields and value != source.fields[name]:
            raise ConfigError(
                f"--config.{field}={value} has no effect, because the model is that of {source.where}, whose model."
                f"{name} is {source.fields[name]!r}: remove it"
            )
        if field == "data.tokenizer":
            raise ConfigError(f"--config.{field}={value} has no effect: the tokenizer is that of {source.where}")
    config = config_for_reading(config)
    config["model"] = config["model"] | source.fields
    vocabulary = vocabulary_fields(source) | ({"mode_tokens": ()} if is_default else {})
    config["data"] = config["data"] | {
        name: value for name, value in vocabulary.items() if f"data.{name}" not in overrides
    }
    if source.fields["architecture"] == "decoder_only":  # the decoders of transformers are causal
        if overrides.get("data.bidirectional_inputs"):
            raise ConfigError(
                f"--config.data.bidirectional_inputs=True has no effect: the decoder of {source.where} is causal"
            )
        config["data"]["bidirectional_inputs"] = False
    config["objective"] = config["objective"] | source.objective_fields
    for name in ("inputs_length", "targets_length"):
        longest = source.fields["max_length"] if source.fields["positions"] == "learned" else 0
        if longest and f"data.{name}" not in overrides:
            config["data"][name] = min(config["data"][name], longest)
    return config


def _check_params(experiment: Experiment, params: Params, where: str) -> None:
    """Raises ConfigError unless `params` are those of the experiment's learner."""
    there = array_types(params)
    if difference := array_difference(there, array_types(experiment.params_shapes)):
        raise ConfigError(
            f"{where}: for objective.name={experiment.objective_name!r}, {difference}: choose another --config"
        )
    for name, leaf in zip(there, jax.tree.leaves(params), strict=True):
        if not np.isfinite(leaf).all():
            raise ConfigError(f"{where}: {name} has values that are not finite")


def _path(argv: list[str]) -> str | None:
    """Returns the value of --from, which determines the config and so the other flags; None if it is missing."""
    given = flags.FlagValues()
    path = flags.DEFINE_string("from", None, "", flag_values=given)
    try:
        given(argv, known_only=True)
    except flags.Error:  # parse_flags reports the error
        return None
    return path.value


if __name__ == "__main__":
    run_command(main)
