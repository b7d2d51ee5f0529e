"""Configs of runs that an earlier version of this project wrote, and which lack the fields that were added since.

A field that was added declares the value with which a run is as it was before the field existed, in the metadata of its
dataclass field, whichever package declares it:

    qk_norm: bool = dataclasses.field(metadata={"as_before": False})

That value need not be the default of configs/base.py. It is a value of JSON, so a tuple is a list, or for a section of
fields {}. A field of the first version declares none: a config without it is damaged.
"""

import copy
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from experiment.config import ExperimentConfig
from experiment.objective import field_classes, row_classes
from models.config import ModelConfig

# The version of config.json. Add 1 with the first field that is added, is removed or changes its meaning after a
# release (docs/dependencies.md). Version 1 has no entry "version".
CONFIG_VERSION = 2

AS_BEFORE = "as_before"


def fill_missing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's config, nested dicts, with the fields that it lacks and that declare a value AS_BEFORE.

    Everything else is as given, also what is no config field, and sections that are missing or no dicts.
    """
    config = _filled(config, ExperimentConfig)
    for name, hint in typing.get_type_hints(ExperimentConfig).items():
        if dataclasses.is_dataclass(hint) and isinstance(config.get(name), dict):
            config[name] = _filled(config[name], hint)
    if isinstance(config.get("model"), dict):
        config["model"] = _filled(config["model"], ModelConfig)
    if isinstance(config.get("objective"), dict):
        config["objective"] = _filled_objective(config["objective"])
    return config


def _filled_objective(fields: Mapping[str, Any]) -> dict[str, Any]:
    fields = _filled(fields, *field_classes(fields))
    if isinstance(fields.get("denoisers"), dict):
        is_linear = fields.get("schedule") == "linear"
        fields["denoisers"] = {
            name: _filled(row, *row_classes(row, is_linear=is_linear)) if isinstance(row, dict) else row
            for name, row in fields["denoisers"].items()
        }
    return fields


def _filled(fields: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Returns `fields` with those of dataclasses that are missing and declare a value AS_BEFORE."""
    missing = {
        field.name: copy.deepcopy(field.metadata[AS_BEFORE])
        for cls in classes
        for field in dataclasses.fields(cls)
        if field.name not in fields and AS_BEFORE in field.metadata
    }
    return {**fields, **missing}
