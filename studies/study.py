"""A study, made from a file of configs/studies and checked: variants x seeds, a budget and measures."""

import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from contract.errors import ConfigError
from experiment.config import from_mapping

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
# Fields of the runs' length, which the budget sets, and of the start, which a variant's `start` sets.
_SET_BY_STUDY = ("seed", "train.steps", "train.epochs", "train.init_from")
_MOST_SEEDS = 10_000
# Measures that do not decide about a learning rate: the machine's speed, and one that a run may not have.
_NO_SCORE = ("throughput", "tokens_to_loss")


@dataclasses.dataclass(frozen=True)
class Stage:
    """The first part of a variant's training."""

    config: str
    share: float
    overrides: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """configs.studies.base.variant."""

    config: str
    overrides: dict[str, Any]
    start: Stage | None
    sweep: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much each run trains."""

    unit: Literal["raw_tokens", "flops"]
    amount: float


@dataclasses.dataclass(frozen=True)
class Published:
    """configs.studies.base.published."""

    source: str
    measure: str
    metric: str
    values: dict[str, Any]
    better_than: tuple[tuple[str, str], ...]
    better: Literal["higher", "lower"]
    sd: float


@dataclasses.dataclass(frozen=True)
class Study:
    """configs.studies.base.study, checked.

    Attributes:
      measures: name -> fields. `kind` is one of studies/measures.py, `better` is "higher" or "lower"; samples have
        no `better`.
    """

    question: str
    config: str
    baseline: str
    variants: dict[str, Variant]
    budget: Budget
    measures: dict[str, dict[str, Any]]
    overrides: dict[str, Any]
    seeds: int
    published: tuple[Published, ...]
    notes: str

    @property
    def compared(self) -> tuple[str, ...]:
        """The measures that have a value, in order."""
        return tuple(name for name, fields in self.measures.items() if fields["kind"] != "samples")

    def config_of(self, variant: str) -> str:
        """The config file, with preset, of a variant."""
        return self.variants[variant].config or self.config


def study_name(path: str) -> str:
    """Returns the name of the study in the file `path`, such as "masking_rate"."""
    return pathlib.Path(path).stem


def load_study(path: str) -> Study:
    """Returns the study that `get_study()` of the file `path` returns.

    Raises ConfigError, one line, for a file without a study and for a study that cannot work.
    """
    if not os.path.isfile(path):
        files = pathlib.Path("configs/studies").glob("[!_]*.py")
        studies = ", ".join(sorted({file.stem for file in files} - {"base", "common"}))
        raise ConfigError(f"--study={path} is not a file: name one of configs/studies ({studies}), with .py")
    spec = importlib.util.spec_from_file_location(f"_study_{study_name(path)}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--study={path} is not a Python file: name one of configs/studies, with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        fields = module.get_study() if hasattr(module, "get_study") else None
    except (Exception, SystemExit) as error:  # a study is a program and can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"--study={path} cannot be read: {reason}") from error
    if fields is None:
        raise ConfigError(f"--study={path} has no function get_study that returns a study: name one of configs/studies")
    return make_study(fields, path)


def with_changes(study: Study, *, seeds: int | None, budget: float | None) -> Study:
    """Returns `study` with another number of seeds or another budget, in the study's unit; None: as it is."""
    if seeds is not None:
        if seeds > _MOST_SEEDS:
            raise ConfigError(f"--seeds={seeds} must be at most {_MOST_SEEDS}")
        if seeds < 1:
            raise ConfigError(f"--seeds={seeds} must be 1 or more")
        study = dataclasses.replace(study, seeds=seeds)
    if budget is not None:
        if not 0 < budget < float("inf"):
            raise ConfigError(f"--budget={budget} must be above 0 and finite")
        study = dataclasses.replace(study, budget=Budget(study.budget.unit, budget))
    return study


def make_study(fields: Mapping[str, Any], path: str) -> Study:
    """Returns the study of nested plain dicts, as configs/studies/base.py makes them. path: for messages.

    Raises ConfigError, one line, for a study that cannot work.
    """
    where = f"--study={path}"
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{where}: get_study() must return configs.studies.base.study(...), not {fields!r}")
    try:
        study = from_mapping(Study, fields, "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}".replace("config field ", "")) from error
    _check(study, where)
    return study


def _check(study: Study, where: str) -> None:
    """Raises ConfigError for a study that cannot work, as far as its own fields show it."""
    for kind, names in (("variant", study.variants), ("measure", study.measures)):
        for name in names:
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{where}: {kind} {name!r} must have lower-case letters, digits and underscores only")
    if "start" in study.measures:
        raise ConfigError(f"{where}: measure 'start' must have another name, which is that of a variant's first stage")
    for name, fields in study.measures.items():
        if "kind" not in fields:
            raise ConfigError(f"{where}: measure {name} must be made by a function of configs/studies/base.py")
    if len(study.variants) < 2:
        raise ConfigError(f"{where}: a study needs two variants or more, and this one has {len(study.variants)}")
    if study.baseline not in study.variants:
        raise ConfigError(f"{where}: baseline={study.baseline!r} is not a variant: use {', '.join(study.variants)}")
    if not study.compared:
        raise ConfigError(f"{where}: measures must contain one that is not of kind 'samples'")
    if study.seeds < 1:
        raise ConfigError(f"{where}: seeds={study.seeds} must be 1 or more")
    if not 0 < study.budget.amount < float("inf"):
        raise ConfigError(f"{where}: budget.amount={study.budget.amount} must be above 0 and finite")
    for name, fields in study.measures.items():
        _check_only(study, fields.get("only", ()), f"{where}: measure {name}")
    check_overrides(study.overrides, where)
    swept = [name for name, variant in study.variants.items() if variant.sweep]
    if swept:
        only = study.measures[study.compared[0]].get("only", ())
        unmeasured = [name for name in swept if only and name not in only]
        if unmeasured:
            raise ConfigError(
                f"{where}: variant {unmeasured[0]} is swept, and the first measure, {study.compared[0]}, which decides "
                "the sweep, is restricted to other variants"
            )
    if swept and study.measures[study.compared[0]]["kind"] in _NO_SCORE:
        raise ConfigError(
            f"{where}: variant {swept[0]}: the first measure, {study.compared[0]}, decides the sweep, so its kind must "
            f"not be {' or '.join(_NO_SCORE)}"
        )
    for name, variant in study.variants.items():
        _check_variant(variant, f"{where}: variant {name}")
    for result in study.published:
        unknown = [name for name in _variants_of(result) if name not in study.variants]
        if result.measure not in study.compared:
            raise ConfigError(f"{where}: published, {result.source}: measure={result.measure!r} is not of the study")
        if unknown:
            raise ConfigError(f"{where}: published, {result.source}: {unknown[0]!r} is not a variant of the study")


def _check_only(study: Study, only: Sequence[str], where: str) -> None:
    unknown = [name for name in only if name not in study.variants]
    if unknown:
        raise ConfigError(f"{where}: only={unknown[0]!r} is not a variant of the study")
    if only and study.baseline not in only:
        raise ConfigError(
            f"{where}: only={tuple(only)} lacks the baseline {study.baseline!r}, with which the others are compared"
        )
    if len(only) == 1:
        raise ConfigError(f"{where}: only={tuple(only)} compares nothing: name two variants or more")


def _check_variant(variant: Variant, where: str) -> None:
    check_overrides(variant.overrides, where)
    if variant.start is not None:
        check_overrides(variant.start.overrides, f"{where}, start")
        if not 0 < variant.start.share < 1:
            raise ConfigError(f"{where}: start.share={variant.start.share} must be above 0 and below 1")
    if len(variant.sweep) > 1:
        raise ConfigError(f"{where}: sweep has the fields {', '.join(variant.sweep)}: sweep one field")
    for field, values in variant.sweep.items():
        check_overrides({field: values}, where)
        if not field.startswith("optimizer."):
            raise ConfigError(f"{where}: sweep of {field}: only fields of optimizer can be swept, at an equal budget")
        if not isinstance(values, list | tuple) or len(values) < 2 or len(set(map(repr, values))) < len(values):
            raise ConfigError(f"{where}: sweep of {field} must have two different values or more, not {values!r}")
        if field in variant.overrides:
            raise ConfigError(f"{where}: {field} is both swept and overridden: remove one")


def check_overrides(overrides: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a field that the study sets."""
    for field in overrides:
        if field in _SET_BY_STUDY:
            reason = "the study's seeds set it" if field == "seed" else "every run has the study's budget"
            if field == "train.init_from":
                reason = "a variant's start sets it"
            raise ConfigError(f"{where}: {field} cannot be overridden, because {reason}: remove it")


def _variants_of(result: Published) -> list[str]:
    return [*result.values, *(name for pair in result.better_than for name in pair)]
