"""The resolved config in the workdir of a run, and the check that another config may continue the run."""

import json
import os
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from files.atomic import write_json
from files.paths import check_access, check_path, exists, make_folder, read_text
from workdir.older_configs import CONFIG_VERSION, fill_missing

# Fields that a continued run may change: the state, the data and the meaning of the metrics do not depend on them.
#   train.steps, train.epochs, optimizer.cycles: train/continued_schedule.py checks the learning rate after the change.
#   train.grad_accum_steps, mesh.*, model.attention, model.remat, model.scan_unroll, loss.chunk_size: a change only
#     affects the order of summation, so results are equal up to rounding.
#   train.eval_every may change, but not train.eval_windows: the best checkpoint is that of the lowest eval loss, and
#     only losses of the same windows are comparable.
#   data.cache_dir: a token store is identified by its contents, not by its folder.
MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "optimizer.cycles",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.max_nonfinite_updates",
    "train.profile_steps",
    "train.trackers",
    "train.tracker_project",
    "train.grad_accum_steps",
    "model.attention",
    "model.remat",
    "model.scan_unroll",
    "loss.chunk_size",
    "data.reader_threads",
    "data.prefetch_batches",
    "data.cache_dir",
    "mesh.",
)

# Fields that the processes of a run may set differently: nothing that they compute depends on these.
PER_PROCESS = ("data.reader_threads", "data.prefetch_batches", "data.cache_dir")

# At the start of data.tokenizer in config.json: the folder of that file. It can be moved with its tokenizer.
IN_WORKDIR = "{workdir}/"
# In the folder of a model that train.convert imported: where the model is from.
IMPORTED_FILE = "imported.json"

_SECTIONS = ("data", "objective", "model", "loss", "optimizer", "train", "mesh")
_VERSION = "version"  # the entry of config.json with its version; files of version 1 have none
_ABSENT = object()


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any]) -> None:
    """Writes `config`, nested mappings of JSON values, to workdir/config.json atomically, with CONFIG_VERSION.

    Tuples become lists. Creates `workdir`. Raises ConfigError if `workdir` cannot be written.
    """
    check_path(os.fspath(workdir), f"--workdir={workdir}")
    try:
        make_folder(workdir)
        write_json(os.path.join(workdir, "config.json"), {_VERSION: CONFIG_VERSION, **config})
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: {error.filename}") from error


def is_imported(workdir: str | os.PathLike) -> bool:
    """Returns whether train.convert wrote the folder `workdir`: no run, but a model whose training text is unknown."""
    return exists(os.path.join(workdir, IMPORTED_FILE))


def read_config(workdir: str | os.PathLike, *, named_by: str = "--workdir") -> dict[str, Any]:
    """Returns what `write_config` wrote, with the folder's path for IN_WORKDIR.

    Fields that did not exist when an earlier version wrote the file have the values that mean "as before"
    (workdir/older_configs.py).

    named_by: the flag or config field that names the folder, for messages.

    Raises ConfigError if `workdir` has no readable config.json, and if a later version wrote it.
    """
    path = os.path.join(workdir, "config.json")
    config = _read(workdir, named_by)
    version = config.pop(_VERSION, 1)
    if type(version) is not int or version < 1:
        raise ConfigError(f"{path} cannot be read: its version {version!r} is no version of this project")
    if version > CONFIG_VERSION:
        raise ConfigError(
            f"{path} has version {version}, and this version of the code reads versions up to {CONFIG_VERSION}: use "
            "the version of the code that wrote it, or a later one"
        )
    if not isinstance(config.get("corpus") or {}, dict):
        raise ConfigError(f"{path} is damaged: its section 'corpus' has no fields: copy it from a backup")
    config = fill_missing(config)
    data = config.get("data")
    if isinstance(data, dict) and str(data.get("tokenizer")).startswith(IN_WORKDIR):
        data["tokenizer"] = os.path.join(workdir, data["tokenizer"].removeprefix(IN_WORKDIR))
    return config


def config_version(workdir: str | os.PathLike) -> int:
    """Returns the version of workdir/config.json, 1 for a file without one. Raises ConfigError if it cannot be read."""
    version = _read(workdir, "--workdir").get(_VERSION, 1)
    return version if type(version) is int else 1


def _read(workdir: str | os.PathLike, named_by: str) -> dict[str, Any]:
    """Returns the fields of workdir/config.json as they are. Raises ConfigError as `read_config` does."""
    path = os.path.join(workdir, "config.json")
    check_access(os.fspath(workdir), f"{named_by}={workdir}")
    try:
        config = json.loads(read_text(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{named_by}={workdir} is not the folder of a run: {path} does not exist") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is damaged: it has no fields: copy it from a backup, or name the folder of a run")
    if "model_type" in config and not {"data", "model", "train"} & config.keys():
        raise ConfigError(
            f"{named_by}={workdir} is not the folder of a run, but a Hugging Face folder: python -m train.convert "
            f"--from={workdir} makes one of it"
        )
    return config


def missing_sections(config: Mapping[str, Any]) -> list[str]:
    """Returns the sections that `config` lacks, or that are no mappings."""
    return [name for name in _SECTIONS if not isinstance(config.get(name), Mapping)]


def check_same_run(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Checks that config `current` may continue the run of config `saved`, and returns the changes.

    Each change is a line "field: old -> new".

    Raises ConfigError if fields outside MAY_CHANGE differ or are in only one config. The error names all such fields.
    """
    old, new = flatten(saved), flatten(current)
    changed = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    lines = {name: f"{name}: {_text(old, name)} -> {_text(new, name)}" for name in changed}
    forbidden = [lines[name] for name in changed if not _may_change(name)]
    if forbidden:
        raise ConfigError(
            f"the workdir contains a run with another config ({'; '.join(forbidden)}): "
            "set these fields back, or choose another --workdir"
        )
    return list(lines.values())


def _may_change(name: str) -> bool:
    """Returns whether a field is in MAY_CHANGE."""
    return any(name == field or (field.endswith(".") and name.startswith(field)) for field in MAY_CHANGE)


def _text(values: dict[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "(none)"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns dotted field -> JSON value, for nested mappings. Tuples become lists."""
    flat = {}
    for name, value in config.items():
        is_group = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{name}.") if is_group else {prefix + name: json.loads(json.dumps(value))}
    return flat
