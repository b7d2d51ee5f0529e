"""The resolved config of each run of a study, and the command that repeats the run."""

import shlex
from collections.abc import Mapping
from typing import Any

from absl import flags

from command.flags import config_fields, define_config, parse_flags
from contract.errors import ConfigError
from experiment.experiment import Experiment
from workdir.run_config import flatten

# What a fine-tuned or scored model shares with the run whose parameters it has.
VOCABULARY = ("tokenizer", "num_sentinels", "mode_tokens", "append_special_tokens", "decoder_start_token")
SPLIT = ("heldout_fraction", "split_seed", "split_by")
CORPUS = ("source", "path", "heldout_path", "document_per", "text_key", "on_unreadable", "cache_dir", "filters")


def resolve(config: str, overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of `config`, a file with an optional preset, with `overrides`, as the command line reads them.

    overrides: {"objective.mask_rate": 0.4}. where: for messages. Raises ConfigError as a command with these flags does.
    """
    values = flags.FlagValues()
    argv = ["", f"--config={config}", *config_flags(overrides)]
    define_config(values, argv)
    try:
        parse_flags(values, "", argv)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return config_fields(values)


def config_flags(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as flags."""
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in overrides.items()}
    return [f"--config.{field}={value}" for field, value in values.items()]


def command(module: str, config: str, fields: Mapping[str, Any], **arguments: str) -> str:
    """Returns the command `python -m MODULE --config=CONFIG ...` with the overrides that make `config` equal `fields`.

    arguments: other flags.
    """
    default, wanted = flatten(resolve(config, {}, config)), flatten(fields)
    overrides = {field: value for field, value in wanted.items() if default.get(field) != value}
    given = [f"--{name}={value}" for name, value in arguments.items()]
    return shlex.join(["python", "-m", module, f"--config={config}", *config_flags(overrides), *given])


def with_fields(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested `fields` with dotted fields replaced. `fields` is unchanged."""
    result = dict(fields)
    for field, value in changes.items():
        section, _, rest = field.partition(".")
        result[section] = with_fields(result[section], {rest: value}) if rest else value
    return result


def fine_tuning_fields(
    fields: Mapping[str, Any], overrides: Mapping[str, Any], trained: Experiment, workdir: str
) -> dict[str, Any]:
    """Returns `fields` of a config for fine-tuning the model of `trained`, which is in `workdir`.

    The shape of the model, the vocabulary, the precision, the seed, the split, the mesh and data.cache_dir are those of
    `trained`, without those that `overrides`, already part of `fields`, set. A decoder reads the text as it read inputs
    in its training: in both directions if some denoiser had inputs that saw each other, such as prefix LM's, and from
    the left otherwise.
    """
    run = trained.config
    shared = {f"model.{name}": getattr(trained.model, name) for name in run["model"]}
    shared |= {f"data.{name}": run["data"][name] for name in (*VOCABULARY, *SPLIT, "cache_dir")}
    if not trained.model.has_encoder:
        saw_both_sides = any(d.objective.has_inputs and max(d.weight, d.final_weight) > 0 for d in trained.denoisers)
        shared["data.bidirectional_inputs"] = trained.data.bidirectional_inputs and saw_both_sides
    shared |= {name: run[name] for name in ("precision", "seed", "mesh")} | {"train.init_from": workdir}
    return with_fields(fields, {field: value for field, value in shared.items() if field not in overrides})


def scoring_overrides(overrides: Mapping[str, Any], trained: Experiment) -> dict[str, Any]:
    """Returns `overrides` of a config for scoring the model of `trained` on the text of its own corpus."""
    data = trained.config["data"]
    return {f"data.{name}": data[name] for name in (*VOCABULARY, *CORPUS)} | dict(overrides)
