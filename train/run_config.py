"""The resolved config that a run leaves in its workdir, and whether another one may continue that run."""

import json
import os
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError

# What a continued run may change, because neither the state, the data nor the meaning of a metric depends on it.
#   train.steps: how long to run. It also moves the end of a cosine, linear or wsd schedule.
#   train.grad_accum_steps, mesh.*, model.attention, model.remat, model.scan_unroll, loss.chunk_size: the same sums in
#     another order.
#   train.eval_every may change, train.eval_batches not: the best checkpoint is the lowest of comparable losses.
#   data.cache_dir: the token store is keyed by what is in it.
MAY_CHANGE = (
    "train.steps",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.max_nonfinite_updates",
    "train.profile_steps",
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


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any]) -> None:
    """Writes `config`, nested mappings of JSON values (tuples become lists), as workdir/config.json, all or nothing.

    Makes `workdir`. Raises ConfigError where it cannot be written, and for an address such as gs://bucket.
    """
    if "://" in os.fspath(workdir):
        raise ConfigError(f"--workdir={workdir} must be a folder of this machine: mount the bucket and name its folder")
    path = os.path.join(workdir, "config.json")
    try:
        os.makedirs(workdir, exist_ok=True)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: {error.filename}") from error


def read_config(workdir: str | os.PathLike) -> dict[str, Any]:
    """What `write_config` wrote. Raises ConfigError where `workdir` holds no readable config.json."""
    path = os.path.join(workdir, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError as error:
        raise ConfigError(f"--workdir={workdir} is not a run's: there is no {path}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def check_same_run(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Checks that the run of config `saved` may go on with config `current`.

    Returns the changes that are allowed, each as "field: old -> new". Raises ConfigError that names every field whose
    change would give the state or the data another meaning: all but MAY_CHANGE, and fields that only one of them has.
    """
    old, new = _flatten(json.loads(json.dumps(saved))), _flatten(json.loads(json.dumps(current)))
    changed = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    lines = {name: f"{name}: {_show(old, name)} -> {_show(new, name)}" for name in changed}
    refused = [lines[name] for name in changed if not _may_change(name)]
    if refused:
        raise ConfigError(
            f"the workdir holds a run of another config ({'; '.join(refused)}): "
            "set the fields back, or choose another --workdir"
        )
    return list(lines.values())


_ABSENT = object()


def _may_change(name: str) -> bool:
    return any(name == field or (field.endswith(".") and name.startswith(field)) for field in MAY_CHANGE)


def _show(values: dict[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "(none)"


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in config.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
