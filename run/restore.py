"""Opens a finished or running run for reading: the experiment from config.json, parameters from a checkpoint."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from contract.errors import ConfigError, errors_naming
from data.sources.config import DEFAULT_CACHE_DIR
from experiment.experiment import Experiment, make_experiment
from experiment.outside import check_code
from models.config import ModelConfig
from models.parameters import array_difference, array_types
from models.transformer import Params, init_params
from run import sharding
from workdir.checkpoint import DamagedCheckpointError, abstract
from workdir.run_config import ADDED, missing_sections
from workdir.workdir import Workdir


def _refuse(line: str) -> None:
    raise ConfigError(line)


def load_experiment(
    workdir: Workdir | str, *, named_by: str = "--workdir", on_other_tokenizer: Callable[[str], None] = _refuse
) -> Experiment:
    """Returns the experiment of the run in `workdir`.

    The fields that depend on the machine are this machine's, because the run may have been on another one: the
    attention kernel, the mesh and the microbatches. The tokenizer is the run's own copy, if the run has one. A token
    store that is not in the run's data.cache_dir is built in this user's, because somebody else may have written the
    config.

    Args:
      workdir: the folder of the run.
      named_by: the flag or config field that names the folder, for messages.
      on_other_tokenizer: called with a line if data.tokenizer is not the tokenizer with which the run was trained;
        raises ConfigError by default.

    Raises ConfigError if the folder is not a run's, and as `check_code` does where its objective is not of this
    repository.
    """
    workdir = Workdir(workdir, named_by=named_by)
    config, with_copy = workdir.config(), workdir.config_with_own_tokenizer()
    check_code(config.get("code"), f"{workdir}/config.json")
    with errors_naming(f"{workdir}/config.json"):
        experiment = make_experiment(config_for_reading(with_copy))
    found = experiment.tokenizer.fingerprint
    expected = (config.get("corpus") or {}).get("tokenizer", found)
    if found != expected:
        path = with_copy["data"]["tokenizer"]
        remedy = "restore that file" if path.startswith(f"{workdir}/") else "put the run's tokenizer there"
        on_other_tokenizer(
            f"{workdir}: data.tokenizer={path!r} is another tokenizer ({found}) than that of the run ({expected}): "
            f"{remedy}"
        )
    # The path of the copy depends on where the folder of the run is; exports and model cards have the path as given.
    config = {**experiment.config, "data": {**experiment.config["data"], "tokenizer": config["data"]["tokenizer"]}}
    return dataclasses.replace(experiment, config=config, new_store_dir=DEFAULT_CACHE_DIR)


def config_for_reading(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's `config` as nested dicts, with the fields that depend on the machine set for this machine.

    Raises ConfigError for a config without the sections that every run has.
    """
    config = {name: value for name, value in config.items() if name not in ADDED}
    if missing := missing_sections(config):
        raise ConfigError(
            f"the config has no section {missing[0]!r}: name the folder of a run, or copy its config.json from a backup"
        )
    config["model"] = config["model"] | {"attention": "auto"}
    config["mesh"] = {"backend": "jit", "data": -1, "fsdp": 1, "tensor": 1}
    config["train"] = config["train"] | {"grad_accum_steps": 1}
    if config["train"].get("steps"):  # a run's config has both fields where train.epochs was resolved
        config["train"]["epochs"] = 0.0
    return config


def reading_mesh(experiment: Experiment, *, batch_size: int | None = None) -> Mesh:
    """Returns run.sharding.make_reading_mesh for the experiment's parameters."""
    return sharding.make_reading_mesh(experiment.params_shapes, batch_size=batch_size)


def load_params(
    experiment: Experiment, workdir: Workdir | str, step: int | None = None, *, mesh: Mesh | None = None
) -> tuple[Params, int]:
    """Returns the parameters of checkpoint `step` (None: the newest) on this machine's devices, and their step.

    They are the averaged parameters if the run averages (train.ema_decay).

    mesh: `reading_mesh` by default; the mesh of the training run has no influence.

    Raises ConfigError if there is no such checkpoint.
    """
    return _load_params(experiment.params_shapes, workdir, step, mesh or reading_mesh(experiment))


def _load_params(shapes: Params, workdir: Workdir | str, step: int | None, mesh: Mesh) -> tuple[Params, int]:
    with Workdir(workdir).checkpoints() as checkpoints:
        return checkpoints.restore_params(abstract(shapes, sharding.shardings(mesh, shapes)), step)


def not_a_language_model(experiment: Experiment) -> ConfigError:
    """Returns the error for a run that does not train the prediction of tokens."""
    return ConfigError(
        f"objective.name={experiment.objective_name!r} does not train the prediction of tokens: choose another run"
    )


def language_model(experiment: Experiment, params: Params) -> tuple[Experiment, Params]:
    """Returns the experiment with the learner's language model as `model`, and that model's parameters.

    The model's attention is XLA's, which runs on parameters with any sharding; the other kernels would have to be split
    over devices first.

    Raises ConfigError if the learner has no language model.
    """
    model_and_params = experiment.learner.language_model(params)
    if model_and_params is None:
        raise not_a_language_model(experiment)
    model, model_params = model_and_params
    return dataclasses.replace(experiment, model=dataclasses.replace(model, attention="xla")), model_params


def transformer_alone(experiment: Experiment, params: Params) -> tuple[Experiment, Params]:
    """Returns the experiment with the learner's Transformer as `model`, without an output head, and its parameters.

    The Transformer of ELECTRA is the discriminator. The model's attention is XLA's, as in `language_model`.
    """
    model, transformer = without_output_head(experiment.model, experiment.learner.transformer(params))
    return dataclasses.replace(experiment, model=dataclasses.replace(model, attention="xla")), transformer


def without_output_head(model: ModelConfig, transformer: Params) -> tuple[ModelConfig, Params]:
    """Returns a model without its output head, and its parameters, which are some of `transformer`."""
    model = dataclasses.replace(model, predicts_tokens=False)
    names = jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))
    return model, {name: transformer[name] for name in names}


def check_same_transformer(field: str, other: Experiment, experiment: Experiment) -> None:
    """Raises ConfigError unless the Transformers of both experiments have the same arrays. field: for the message."""
    ours, theirs = (
        array_types(jax.eval_shape(one.learner.transformer, one.params_shapes)) for one in (experiment, other)
    )
    if difference := array_difference(theirs, ours):
        raise ConfigError(
            f"{field}: {difference}: copy the fields of model, data.inputs_length, data.targets_length and "
            "data.tokenizer from that run's config.json"
        )


def load_transformer(experiment: Experiment, workdir: Workdir | str, mesh: Mesh) -> tuple[Params, int]:
    """Returns the Transformer of the newest checkpoint in `workdir`, on the devices of `mesh`, and its step.

    experiment: that of the run in `workdir`.
    """
    saved = {name: experiment.params_shapes[name] for name in experiment.learner.transformer_entries}
    params, step = _load_newest(saved, workdir, mesh)
    return experiment.learner.transformer(params), step


def load_language_model(experiment: Experiment, workdir: Workdir | str, mesh: Mesh) -> tuple[Params, int]:
    """Returns the parameters of the model that predicts tokens, as `load_transformer` does those of the Transformer."""
    params, step = _load_newest(experiment.params_shapes, workdir, mesh)
    return language_model(experiment, params)[1], step


def _load_newest(shapes: Params, workdir: Workdir | str, mesh: Mesh) -> tuple[Params, int]:
    try:
        return _load_params(shapes, workdir, None, mesh)
    except DamagedCheckpointError as error:
        remedy = "" if error.before is None else f": move that folder away to start from step {error.before}"
        raise ConfigError(f"checkpoint {error.folder} is damaged ({error.what}){remedy}") from error
