"""Makes the objective that `config.objective` describes: an entry of OBJECTIVES, or a mixture of several entries."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from contract.errors import ConfigError
from experiment.config import from_mapping
from objectives import OBJECTIVES, Mixture, Objective
from objectives.mixture import MixtureStep, TableRow, Weight


def make_objective(fields: Mapping[str, Any], field: str = "objective") -> Objective | Mixture:
    """Returns the objective `fields["name"]`, an entry of OBJECTIVES, built from the other fields.

    field: the config section that `fields` come from, for messages. Raises ConfigError for an unknown `name`, and for a
    field of the wrong name or type.
    """
    fields = dict(fields)
    name = fields.pop("name", None)
    if name not in OBJECTIVES:
        raise ConfigError(f"{field}.name={name!r} must be one of {', '.join(map(repr, OBJECTIVES))}")
    if OBJECTIVES[name] is Mixture:
        return _make_mixture(fields, field)
    return from_mapping(OBJECTIVES[name], fields, field)


@dataclasses.dataclass(frozen=True)
class MixtureFields:
    """Fields of `config.objective` of a mixture, besides its table `denoisers`."""

    mix_by: Literal["example", "token"]
    schedule: Literal["constant", "linear"]


@dataclasses.dataclass(frozen=True)
class LinearMixtureFields(MixtureFields):
    """The same with objective.schedule="linear"."""

    begin_step: MixtureStep
    end_step: MixtureStep


@dataclasses.dataclass(frozen=True)
class RowFields:
    """Fields of a row of a mixture's table, besides those of its objective."""

    weight: Weight
    mode: str
    corpora: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LinearRowFields(RowFields):
    """The same with objective.schedule="linear"."""

    final_weight: Weight


def _make_mixture(fields: Mapping[str, Any], field: str) -> Mixture:
    table = fields.get("denoisers")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{field}.denoisers must be a table of denoisers, as in configs/ul2.py")
    schedule = fields.get("schedule")
    is_linear = schedule == "linear"
    values = {name: value for name, value in fields.items() if name != "denoisers"}
    if "schedule" in fields and schedule not in ("constant", "linear"):
        values = {"mix_by": "example", "schedule": schedule}  # an error of begin_step would not name the cause
    mixture = from_mapping(LinearMixtureFields if is_linear else MixtureFields, values, field)
    rows = {name: _make_row(row, f"{field}.denoisers.{name}", is_linear) for name, row in table.items()}
    steps = (mixture.begin_step, mixture.end_step) if is_linear else ()
    return Mixture(rows, mixture.mix_by, *steps)


def _make_row(values: Mapping[str, Any], field: str, is_linear: bool) -> TableRow:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{field}={values!r} must be a group of fields, as in configs/ul2.py")
    if "final_weight" in values and not is_linear:
        raise ConfigError(f"{field}.final_weight needs objective.schedule='linear': set it, or remove final_weight")
    objective_class = OBJECTIVES.get(values.get("name"))
    if objective_class is Mixture:
        raise ConfigError(f"{field}.name={values['name']!r} is a mixture itself: it cannot be a row of a mixture")
    if objective_class is not None and objective_class.learner != "token_prediction":
        raise ConfigError(
            f"{field}.name={values['name']!r} is not trained by token prediction alone: it cannot be a row of a mixture"
        )
    values = {"corpora": ()} | dict(values)  # a row without the field reads all corpora
    row_class = LinearRowFields if is_linear else RowFields
    names = {declared.name for declared in dataclasses.fields(row_class)}
    row = from_mapping(row_class, {key: value for key, value in values.items() if key in names}, field)
    objective = make_objective({key: value for key, value in values.items() if key not in names}, field)
    return TableRow(objective, row.mode, row.weight, row.final_weight if is_linear else row.weight, row.corpora)
