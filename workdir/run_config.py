"""The resolved config in the workdir of a run, and the check that another config may continue the run."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from command.program import print_note
from configs.base import get_config
from contract.errors import ConfigError
from files.atomic import parse_json, write_json
from files.paths import check_access, make_folder, read_text
from objectives import OBJECTIVES

# Fields that the processes of a run may set differently: nothing that they compute depends on these.
PER_PROCESS = ("data.reader_threads", "data.prefetch_batches", "data.cache_dir", "data.read_by_range")

# Fields that a continued run may change: the state, the data and the meaning of the metrics do not depend on them.
#   train.steps, train.epochs, optimizer.cycles: train/start.py checks the learning rate after the change.
#   train.grad_accum_steps, mesh.*, model.attention, model.remat, model.scan_unroll, loss.chunk_size: a change only
#     affects the order of summation, so results are equal up to rounding, but for the draws of dropout and of ELECTRA's
#     generator, which are those of a microbatch.
#   train.eval_every may change, but not train.eval_windows: the best checkpoint is that of the lowest eval loss, and
#     only losses of the same windows are comparable.
#   distillation.teacher: a teacher is identified by its parameters, in the section "teacher", not by its folder.
#   code.*: the file of an objective may move. train/start.py compares the digests of its contents.
#   data.cache_dir, data.read_by_range: a token store is identified by its contents, not by its folder.
#   data.tokenizer, and paths of a corpus (`is_corpus_path`): the same, in the section "corpus". A run that has its
#     tokenizer from train.init_from continues with its own copy.
MAY_CHANGE = (
    *("train.steps", "train.epochs", "optimizer.cycles", "train.log_every", "train.eval_every"),
    *("train.checkpoint_every", "train.checkpoint_minutes", "train.keep_checkpoints", "train.max_nonfinite_updates"),
    *("train.profile_steps", "train.trackers", "train.tracker_project", "train.grad_accum_steps"),
    *("model.attention", "model.remat", "model.scan_unroll", "loss.chunk_size", "distillation.teacher"),
    *(*PER_PROCESS, "data.tokenizer", "mesh.", "code."),
)

# At the start of data.tokenizer in config.json: the folder of that file. It can be moved with its tokenizer.
IN_WORKDIR = "{workdir}/"
# In the folder of a model that train.convert or Model.save wrote: where the model is from.
IMPORTED_FILE = "imported.json"

ADDED = ("corpus", "code", "teacher")  # sections of config.json that no config has
_SECTIONS = ("data", "objective", "model", "loss", "optimizer", "train", "mesh")
_MOST_NAMED = 10  # fields of an error; a run of another objective differs in a hundred
_DIGESTS = {"corpus.tokenizer": "data.tokenizer", "corpus.fingerprint": "digest of the corpus' text"}
_ABSENT = object()


def write_config(workdir: str | os.PathLike, config: Mapping[str, Any]) -> None:
    """Writes `config`, nested mappings of JSON values, to workdir/config.json atomically.

    Tuples become lists. Creates `workdir`. Raises OSError.
    """
    make_folder(workdir)
    write_json(os.path.join(workdir, "config.json"), config)


def read_config(workdir: str | os.PathLike, *, named_by: str = "--workdir") -> dict[str, Any]:
    """Returns what `write_config` wrote, with the folder's path for IN_WORKDIR.

    A field that the file lacks has its default of configs/base.py, or of the objective's class, which is printed to
    standard error.

    named_by: the flag or config field that names the folder, for messages.

    Raises ConfigError if `workdir` has no readable config.json.
    """
    path = os.path.join(workdir, "config.json")
    check_access(os.fspath(workdir), f"{named_by}={workdir}")
    try:
        config = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{named_by}={workdir} is not the folder of a run: {path} does not exist") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(config.get(name, {}), dict) for name in ADDED):
        raise ConfigError(f"{path} is damaged: copy it from a backup, or name the folder of a run")
    if "model_type" in config and not {"data", "model", "train"} & config.keys():
        raise ConfigError(
            f"{named_by}={workdir} is not the folder of a run, but a Hugging Face folder: python -m train.convert "
            f"--from={workdir} makes one of it"
        )
    for section, fields in get_config().to_dict().items():
        found = config.get(section)
        if section != "objective" and isinstance(fields, dict) and isinstance(found, dict):
            for name in fields.keys() - found.keys():
                print_note(f"{path} lacks {section}.{name}: it is {fields[name]!r}")
            config[section] = {**fields, **found}
    _add_defaults(config.get("objective"), f"{path} lacks objective")
    data = config.get("data")
    if isinstance(data, dict) and str(data.get("tokenizer")).startswith(IN_WORKDIR):
        data["tokenizer"] = os.path.join(workdir, data["tokenizer"].removeprefix(IN_WORKDIR))
    return config


def _add_defaults(fields: Any, note: str) -> None:
    """Adds the fields with a default that an objective, or a denoiser of a mixture, lacks, with a note of each."""
    if not isinstance(fields, dict):
        return
    rows = fields.get("denoisers")
    for name, row in rows.items() if isinstance(rows, dict) else ():
        _add_defaults(row, f"{note}.denoisers.{name}")
    objective = OBJECTIVES.get(str(fields.get("name"))) if rows is None else None
    for declared in dataclasses.fields(objective) if objective else ():
        if declared.name not in fields and declared.default is not dataclasses.MISSING:
            print_note(f"{note}.{declared.name}: it is {declared.default!r}")
            fields[declared.name] = declared.default


def missing_sections(config: Mapping[str, Any]) -> list[str]:
    """Returns the sections that `config` lacks, or that are no mappings."""
    return [name for name in _SECTIONS if not isinstance(config.get(name), Mapping)]


def check_same_run(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Checks that config `current` may continue the run of config `saved`, and returns the changes.

    Each change is a line "field: old -> new".

    Raises ConfigError if fields outside MAY_CHANGE differ or are in only one config. The error names the objective
    first, and up to _MOST_NAMED fields.
    """
    old, new = flatten(saved), flatten(current)
    changed = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    # The section "teacher" identifies the model of distillation.teacher.
    fields = {name: f"distillation.{name}" if name.startswith("teacher.") else name for name in changed}
    fields |= {name: said for name, said in _DIGESTS.items() if name in changed}
    lines = {name: f"{field}: {_text(old, name)} -> {_text(new, name)}" for name, field in fields.items()}
    is_other_text = "corpus.fingerprint" in changed
    forbidden = [name for name in changed if not may_change(name) or (is_other_text and is_corpus_path(name))]
    if forbidden:
        files_changed = is_other_text and {*forbidden} <= {"corpus.fingerprint", "corpus.heldout"}
        remedy = "restore the files of the corpus, which have changed" if files_changed else "set these fields back"
        forbidden.sort(key=lambda name: name != "objective.name")
        named = [lines[name] for name in forbidden[:_MOST_NAMED]]
        if others := len(forbidden) - len(named):
            named.append(f"and {others} more fields")
        raise ConfigError(
            f"the workdir contains a run with another config ({'; '.join(named)}): "
            f"{remedy}, or choose another --workdir"
        )
    return list(lines.values())


def may_change(name: str) -> bool:
    """Returns whether a field is in MAY_CHANGE, or names where the text of a corpus is."""
    is_named = any(name == field or (field.endswith(".") and name.startswith(field)) for field in MAY_CHANGE)
    return is_named or is_corpus_path(name)


def is_corpus_path(name: str) -> bool:
    """Returns whether a field is data.path or data.heldout_path, of the only corpus or of one of data.sources."""
    return re.fullmatch(r"data\.(sources\.[^.]+\.)?(heldout_)?path", name) is not None


def _text(values: dict[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "(none)"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns dotted field -> JSON value, for nested mappings. Tuples become lists."""
    flat = {}
    for name, value in config.items():
        is_group = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{name}.") if is_group else {prefix + name: json.loads(json.dumps(value))}
    return flat
