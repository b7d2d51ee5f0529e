"""The models of runs, of Hugging Face folders and of configs."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cloze.model import Model, folder_name, train_batches
from cluster.devices import skip_libtpu_without_tpu, use_compilation_cache
from command.flags import resolve
from contract.batch import Batch
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from files.paths import absolute
from huggingface.convert import default_config, read_model
from huggingface.folder import is_huggingface_folder
from huggingface.origin import with_origin_fields
from run import sharding
from run.restore import config_for_reading, load_experiment, load_params, reading_mesh
from train.loop import train_and_evaluate
from workdir.workdir import Workdir

Config = str | os.PathLike | ConfigDict | Mapping[str, Any]

_ROOT = pathlib.Path(__file__).parents[1]


def load(path: str | os.PathLike, step: int | None = None, overrides: Mapping[str, Any] | None = None) -> Model:
    """Returns the model of a run's checkpoint, or of a Hugging Face folder.

    Args:
      path: the folder of a run, or one that transformers' `save_pretrained` wrote, of a family in docs/huggingface.md.
      step: the checkpoint of a run; None: the newest.
      overrides: for a Hugging Face folder: dotted fields to set in the config of its objective, such as
        {"data.inputs_length": 128}.

    Raises ConfigError for a folder that is neither, and for a checkpoint that does not exist.
    """
    _set_up_jax()
    _check_overrides(overrides)
    workdir = folder_name(path, "path")
    if is_huggingface_folder(workdir):
        return _from_hugging_face(workdir, step, overrides or {})
    if overrides:
        raise ConfigError(f"{workdir} is the folder of a run, whose config is in it: remove the overrides")
    experiment = load_experiment(workdir)
    mesh = reading_mesh(experiment)
    params, step = load_params(experiment, workdir, step, mesh=mesh)
    folder = absolute(Workdir(workdir).path)  # read later too, when the program may have changed its current folder
    return Model(experiment, params, mesh, source=f"{workdir}, step {step:,}", step=step, workdir=folder)


def new(config: Config, overrides: Mapping[str, Any] | None = None) -> Model:
    """Returns the model of a config with its initial parameters, drawn from the config's seed.

    Args:
      config: a file of configs/ with an optional preset, as in "configs/ul2.py:base", a ConfigDict, or a mapping with
        the fields of configs/base.py.
      overrides: dotted fields to set, such as {"model.num_layers": 2}. With "train.init_from" the model's shape and the
        vocabulary are those of that folder, but for the fields that are overridden.

    Raises ConfigError for a config that cannot work.
    """
    _set_up_jax()
    config, name = _read(config, overrides)
    experiment = make_experiment(config_for_reading(with_origin_fields(config, overrides or {})))
    mesh = reading_mesh(experiment)
    init = jax.jit(experiment.learner.init_params, out_shardings=sharding.shardings(mesh, experiment.params_shapes))
    params = init(jax.random.key(experiment.seed))
    return Model(experiment, params, mesh, source=f"{name}, initial parameters", step=0, workdir=None)


def train(config: Config, workdir: str | os.PathLike, overrides: Mapping[str, Any] | None = None) -> Model:
    """Trains as `python -m train.main` does, from the newest checkpoint in `workdir` if there is one.

    Args:
      config, overrides: as for `new`.
      workdir: the folder of the run.

    Returns the model of the newest checkpoint.

    Raises ConfigError as train.main does.
    """
    _set_up_jax()
    folder = folder_name(workdir, "workdir")
    fields = with_origin_fields(_read(config, overrides)[0], overrides or {}, folder)
    train_and_evaluate(make_experiment(fields), folder)
    return load(folder)


def batches(
    config: Config, overrides: Mapping[str, Any] | None = None, *, start: int = 0, shard: tuple[int, int] = (0, 1)
) -> Iterator[Batch]:
    """Returns an iterator without end over the training batches `start`, `start` + 1, ... of a config. Makes no model.

    Batch n is a function of the config and n: dicts of NumPy arrays with the fields of contract/batch.py, made in
    advance by data.reader_threads threads. The first call for a corpus writes its token store in data.cache_dir.

    Args:
      config, overrides: as for `new`.
      start: the first batch.
      shard: (index, count), for several processes or workers: of the train.batch_size rows of each batch only the
        index-th of `count` parts, train.batch_size / count adjacent rows. The parts of all shards in order are the
        batch of (0, 1).

    Raises ConfigError for a config that cannot work, for a corpus that cannot be read, and for a shard that is no part
    of a batch.
    """
    fields = with_origin_fields(_read(config, overrides)[0], overrides or {})
    return train_batches(make_experiment(fields), start, shard)


def _check_overrides(overrides: Any) -> None:
    """Raises ConfigError unless `overrides` is None or a mapping of dotted fields."""
    if overrides is not None and not (
        isinstance(overrides, Mapping) and all(isinstance(key, str) for key in overrides)
    ):
        raise ConfigError(f'overrides={overrides!r} must map dotted fields to values, as in {{"model.num_layers": 2}}')


def _set_up_jax() -> None:
    """Does what the commands do before JAX's first use, unless the caller has set these options of JAX."""
    skip_libtpu_without_tpu()
    use_compilation_cache()


def _from_hugging_face(path: str, step: int | None, overrides: Mapping[str, Any]) -> Model:
    """Returns the model of a Hugging Face folder, under the objective of its class (huggingface/convert.py)."""
    if step is not None:
        raise ConfigError(f"{path} is a Hugging Face folder, which has no steps: remove step={step}")
    config, _ = _read(str(default_config(path, path)), overrides)
    experiment, params, _ = read_model(path, config, overrides=overrides, is_default_config=True, where=path)
    mesh = reading_mesh(experiment)
    return Model(experiment, sharding.put_params(params, mesh), mesh, source=path, step=0, workdir=None)


def _read(config: Config, overrides: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Returns a config with its overrides as nested dicts, and its name.

    A relative path of a file is also looked for in this project's folder.
    """
    _check_overrides(overrides)
    given = dict(overrides or {})
    given |= {field: value.item() for field, value in given.items() if isinstance(value, np.generic)}
    if isinstance(config, str | os.PathLike):
        name = os.fspath(config)
        path = name.partition(":")[0]
        is_ours = not os.path.isfile(path) and (_ROOT / path).is_file()
        return resolve(str(_ROOT / name) if is_ours else name, given, name), name
    if not isinstance(config, ConfigDict | Mapping):
        raise ConfigError(f"config={config!r} must be a file of configs/, a ConfigDict or a mapping of its fields")
    config = ConfigDict(config).copy_and_resolve_references()
    for field, value in given.items():
        try:
            config.update_from_flattened_dict({field: value})
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{field}={value!r} is not a field of the config, or of another type") from error
    return config.to_dict(), "a config"
