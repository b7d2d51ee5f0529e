"""Makes the objective that `config.objective` describes: an entry of OBJECTIVES, or a mixture of several entries."""

import dataclasses
import math
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from contract.errors import ConfigError
from experiment.config import from_mapping
from experiment.outside import find_objective
from learners import LEARNERS
from objectives import OBJECTIVES, Mixture, Objective, Schedule
from objectives.mixture import LossWeight, MixtureStep, TableRow, Weight, learned_objective
from objectives.objective import Phases, name_later


def with_steps(fields: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Returns the fields of `config.objective` with the steps of schedules in steps, those of denoisers too.

    A float of at most 1 is a share of the run. steps: train.steps.
    """
    given = {name: fields[name] for name in ("begin_step", "end_step", "phase_steps") if name in fields}
    resolved = {**fields} | {name: _in_steps(value, steps) for name, value in given.items()}
    if isinstance(rows := fields.get("denoisers"), Mapping):
        rows = {name: with_steps(row, steps) if isinstance(row, Mapping) else row for name, row in rows.items()}
        resolved["denoisers"] = rows
    return resolved


def _in_steps(value: Any, steps: int) -> Any:
    """Returns a step, or a tuple of steps, as whole numbers. NaN and infinity stay, and are refused as no integers."""
    if isinstance(value, tuple | list):
        return tuple(_in_steps(each, steps) for each in value)
    is_number = isinstance(value, float) and math.isfinite(value)
    return round(value * (steps if value <= 1 else 1)) if is_number else value


def make_objective(fields: Mapping[str, Any]) -> Objective | Mixture:
    """Returns the objective of `make_scheduled`, for callers that do not need the steps of schedules."""
    return make_scheduled(fields)[0]


def make_scheduled(
    fields: Mapping[str, Any], field: str = "objective", steps: int = 0
) -> tuple[Objective | Mixture, Schedule | None]:
    """Returns the objective `fields["name"]`, an entry of OBJECTIVES, and the schedule of its number fields.

    With a schedule: the objective at its end. The schedule is None where the fields are constant, and for a mixture,
    whose rows have their own.

    Raises ConfigError for an unknown `name`, for a field of the wrong name or type, for a schedule of nothing or of a
    field that is no number field of the examples, for later values without a schedule, and for steps out of order.

    Args:
      fields: of `config.objective`, or of a row of a mixture.
      field: the config section that they come from, for messages.
      steps: train.steps, of which steps of schedules may be shares; 0 where these do not matter.
    """
    fields = with_steps(fields, steps)
    name = fields.pop("name", None)
    if (cls := find_objective(name)) is None:
        raise ConfigError(f"{field}.name={name!r} must be one of {', '.join(map(repr, OBJECTIVES))}")
    if issubclass(cls, Mixture):
        return _make_mixture(fields, field), None
    if any(str(name).startswith(("schedule", "begin_step", "end_step", "final_", "phase_")) for name in fields):
        return (_phased if fields.get("schedule") == "phases" else _linear)(cls, fields, field)
    missing = [declared.name for declared in dataclasses.fields(cls) if declared.name not in fields]
    if missing and field == "objective":
        raise ConfigError(
            f"config field objective.{missing[0]} is missing, which objective.name={name!r} has: start from a config "
            "of that objective, with --same_model=... for the model of this one"
        )
    return from_mapping(cls, fields, field), None


@dataclasses.dataclass(frozen=True)
class ScheduleSteps:
    """Fields of `config.objective` of an objective with schedule="linear", besides its own and its `final_` fields."""

    begin_step: MixtureStep
    end_step: MixtureStep


@dataclasses.dataclass(frozen=True)
class PhaseSteps:
    """Fields of `config.objective` of an objective with schedule="phases", besides its own and its `phase_` fields."""

    phase_steps: tuple[MixtureStep, ...]


def _linear(cls: type[Objective], fields: Mapping[str, Any], field: str) -> tuple[Objective, Schedule | None]:
    """Returns the same as `make_scheduled` for fields of which some are of a linear schedule."""
    finals = {name: value for name, value in fields.items() if str(name).startswith("final_")}
    steps = {name: fields[name] for name in ("begin_step", "end_step") if name in fields}
    own = {name: value for name, value in fields.items() if name not in {"schedule", *finals, *steps}}
    if (kind := fields.get("schedule", "constant")) not in ("constant", "linear"):
        raise ConfigError(f"{field}.schedule={kind!r} must be one of 'constant', 'linear', 'phases'")
    if unread := [name for name in own if str(name).startswith("phase_")]:
        raise ConfigError(f"{field}.{unread[0]} needs {field}.schedule='phases': set it, or remove {unread[0]}")
    initial = from_mapping(cls, own, field)
    if kind == "constant":
        if unread := [*finals, *steps]:
            raise ConfigError(f"{field}.{unread[0]} needs {field}.schedule='linear': set it, or remove {unread[0]}")
        return initial, None
    _check_changed(cls, finals, field, "linear", "final_")
    linear = from_mapping(ScheduleSteps, steps, field)
    if linear.begin_step > linear.end_step:
        raise ConfigError(
            f"{field}.begin_step={linear.begin_step} must be {field}.end_step={linear.end_step} or less, both in steps"
        )
    values = {name.removeprefix("final_"): value for name, value in finals.items()}
    try:
        final = from_mapping(cls, own | values, field)
    except ConfigError as error:
        raise ConfigError(name_later(str(error), field, values, "final_")) from None
    return final, Schedule(initial, final, tuple(values), linear.begin_step, linear.end_step)


def _phased(cls: type[Objective], fields: Mapping[str, Any], field: str) -> tuple[Objective, Schedule]:
    """Returns the same as `make_scheduled` for fields of which some are of phases."""
    given = {name: value for name, value in fields.items() if str(name).startswith("phase_")}
    own = {name: value for name, value in fields.items() if name not in {"schedule", *given}}
    initial = from_mapping(cls, own, field)
    begins = from_mapping(PhaseSteps, {k: v for k, v in given.items() if k == "phase_steps"}, field).phase_steps
    values = {name.removeprefix("phase_"): value for name, value in given.items() if name != "phase_steps"}
    _check_changed(cls, [f"phase_{name}" for name in values], field, "phases", "phase_")
    if not begins or list(begins) != sorted(begins):
        raise ConfigError(
            f"{field}.phase_steps={begins} must be the first steps of the phases after the first, in order"
        )
    for name, later in values.items():
        if not isinstance(later, tuple | list) or len(later) != len(begins):
            raise ConfigError(
                f"{field}.phase_{name}={later!r} must have a value for each of the {len(begins)} phases that "
                f"{field}.phase_steps begins"
            )
    try:
        of_phases = [{name: later[k] for name, later in values.items()} for k in range(len(begins))]
        *between, final = (from_mapping(cls, own | of_phase, field) for of_phase in of_phases)
    except ConfigError as error:
        raise ConfigError(name_later(str(error), field, values, "phase_")) from None
    return final, Phases(initial, final, tuple(values), begins[0], begins[-1], tuple(between), tuple(begins))


def _check_changed(cls: type[Objective], changed: Collection[str], field: str, kind: str, prefix: str) -> None:
    """Raises ConfigError where a schedule changes nothing, or what is no number field. changed: with the prefix."""
    choices = [f"{prefix}{name}" for name in _number_fields(cls)]
    others = [name for name in changed if name not in choices]
    if others or not changed:
        what = f"has {others[0]}" if others else "changes no field"
        hint = f"it can have {', '.join(choices)}" if choices else f"{cls.__name__} has no number field of the examples"
        raise ConfigError(f"{field}.schedule={kind!r} {what}: {hint}")


def _number_fields(cls: type[Objective]) -> list[str]:
    """The fields that a schedule can change: floats that examples depend on.

    Of the fields of the learner, constants of the compiled step, the `auxiliary_weight_field` alone is in the batch.
    """
    hints, constants = typing.get_type_hints(cls), {*_learner_fields(cls)} - {cls.auxiliary_weight_field}
    names = [declared.name for declared in dataclasses.fields(cls)]
    return [name for name in names if hints[name] is float and name not in constants]


def _learner_fields(cls: type[Objective]) -> list[str]:
    """The fields that a class with a learner of its own declares, which this learner reads."""
    others = [base for base in cls.__mro__ if dataclasses.is_dataclass(base) and base.learner == "token_prediction"]
    of_examples = {declared.name for base in others for declared in dataclasses.fields(base)}
    return [declared.name for declared in dataclasses.fields(cls) if declared.name not in of_examples]


@dataclasses.dataclass(frozen=True)
class MixtureFields:
    """Fields of `config.objective` of a mixture, besides its table `denoisers`."""

    mix_by: Literal["example", "token"]
    schedule: Literal["constant", "linear"]


@dataclasses.dataclass(frozen=True)
class LinearMixtureFields(ScheduleSteps, MixtureFields):
    """MixtureFields of a mixture with objective.schedule="linear"."""


@dataclasses.dataclass(frozen=True)
class RowFields:
    """Fields of a row of a mixture's table, besides those of its objective."""

    weight: Weight
    mode: str
    corpora: tuple[str, ...]
    loss_weight: LossWeight


@dataclasses.dataclass(frozen=True)
class LinearRowFields(RowFields):
    """RowFields of a mixture with objective.schedule="linear"."""

    final_weight: Weight


def _make_mixture(fields: Mapping[str, Any], field: str) -> Mixture:
    table = fields.get("denoisers")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{field}.denoisers must be a table of denoisers, as in configs/ul2.py")
    is_linear = (schedule := fields.get("schedule")) == "linear"
    values = {name: value for name, value in fields.items() if name != "denoisers"}
    if "schedule" in fields and schedule not in ("constant", "linear"):
        values = {"mix_by": "example", "schedule": schedule}  # an error of begin_step would not name the cause
    mixture = from_mapping(LinearMixtureFields if is_linear else MixtureFields, values, field)
    if is_linear and not any("final_weight" in row for row in table.values() if isinstance(row, Mapping)):
        raise ConfigError(
            f"{field}.schedule='linear' changes weights, and no denoiser has a final_weight: add one to each, or set "
            "schedule, begin_step and end_step in the denoiser whose other fields change"
        )
    rows = {name: _make_row(row, f"{field}.denoisers.{name}", is_linear) for name, row in table.items()}
    made = Mixture(rows, mixture.mix_by, *((mixture.begin_step, mixture.end_step) if is_linear else ()))
    if learned_objective(made) is not made:
        _check_learner(made, f"{field}.denoisers")
    return made


def _check_learner(mixture: Mixture, table: str) -> None:
    """Raises ConfigError unless the learner that rows name can train all rows. table: the mixture's config field."""
    learned = learned_objective(mixture)
    first = next(name for name, row in mixture.drawn.items() if row.objective is learned)
    if learned.learner not in LEARNERS:
        return  # make_learner names those that there are
    trained = LEARNERS[learned.learner].rows_of_others
    if trained == "none":
        raise ConfigError(
            f"{table}.{first} ({type(learned).__name__}) cannot be a row of a mixture: its learner {learned.learner!r} "
            "trains no rows of other objectives"
        )
    for name, row in mixture.drawn.items():
        objective = row.objective
        if objective.learner == "token_prediction":
            if trained == "causal" and (objective.has_inputs or objective.in_place or objective.has_places):
                raise ConfigError(
                    f"{table}.{name} ({type(objective).__name__}) has inputs, masks or another order, and the learner "
                    f"{learned.learner!r} of {table}.{first} trains rows without: remove it, or set its weights to 0"
                )
            continue
        theirs, ours = _read_by_learner(mixture.drawn[first]), _read_by_learner(row)
        differing = [key for key in theirs | ours if theirs.get(key) != ours.get(key)]
        if differing:
            raise ConfigError(
                f"{table}.{name}: its {differing[0]} differs from that of {table}.{first}, and one learner trains all "
                "rows of a mixture: make both equal"
            )


def _read_by_learner(row: TableRow) -> dict[str, Any]:
    """Returns the name of a row's learner, the fields that it reads, and the schedule of its weight, if any."""
    objective, schedule = row.objective, row.schedule
    read = {"learner": objective.learner}
    read |= {name: getattr(objective, name) for name in _learner_fields(type(objective))}
    if schedule and objective.auxiliary_weight_field in schedule.fields:
        steps = getattr(schedule, "begins", (schedule.begin_step, schedule.end_step))
        read["schedule"] = steps, [getattr(end, objective.auxiliary_weight_field) for end in schedule.ends]
    return read


def _make_row(values: Mapping[str, Any], field: str, is_linear: bool) -> TableRow:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{field}={values!r} must be a group of fields, as in configs/ul2.py")
    if "final_weight" in values and not is_linear:
        raise ConfigError(f"{field}.final_weight needs objective.schedule='linear': set it, or remove final_weight")
    objective_class = find_objective(values.get("name"))
    if objective_class is Mixture:
        raise ConfigError(f"{field}.name={values['name']!r} is a mixture itself: it cannot be a row of a mixture")
    optional: dict[str, Any] = {"corpora": (), "loss_weight": 1.0}  # without the fields: all corpora, and no factor
    of_objective = optional.keys() & getattr(objective_class, "__dataclass_fields__", {}).keys()
    row_class = LinearRowFields if is_linear else RowFields
    names = {declared.name for declared in dataclasses.fields(row_class)} - of_objective
    row = from_mapping(row_class, optional | {key: value for key, value in values.items() if key in names}, field)
    own = {key: value for key, value in values.items() if key not in names}
    final_weight = row.final_weight if is_linear else row.weight
    objective, schedule = make_scheduled(own, field)
    return TableRow(objective, row.mode, row.weight, final_weight, row.corpora, schedule, row.loss_weight)
