"""A study, made from a file of configs/studies and checked: variants x seeds, a budget and measures."""

import dataclasses
import importlib.util
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from contract.errors import ConfigError
from experiment.config import from_mapping

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
# Fields that the study sets -> what sets them.
_SET_BY_STUDY = {
    "seed": "the study's seeds set it",
    "train.steps": "every run has the study's budget",
    "train.epochs": "every run has the study's budget",
    "train.init_from": "a variant's start sets it",
}
# Measures that do not decide about a learning rate: the machine's speed, and one that a run may not have.
_NO_SCORE = ("throughput", "tokens_to_loss")
# Measures that are no success rate: not of one run's quality.
_NO_SUCCESS = ("throughput", "samples")


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
      name: of the file, such as "masking_rate".
      measures: name -> fields. `kind` is one of studies/measures.py, `better` is "higher" or "lower"; samples have
        no `better`. A success rate has `success_at` (configs.studies.base.success_rate).
    """

    name: str
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
    same_model: str
    varies: tuple[str, ...]

    @property
    def compared(self) -> tuple[str, ...]:
        """The measures that have a value, in order."""
        return tuple(name for name, fields in self.measures.items() if fields["kind"] != "samples")

    def config_of(self, variant: str) -> str:
        """The config file, with preset, of a variant."""
        return self.variants[variant].config or self.config

    @property
    def question_fields(self) -> set[str]:
        """The dotted fields, besides those of `objective`, in which the question lets the runs differ."""
        named = [{*variant.overrides, *variant.sweep} for variant in self.variants.values()]
        return set(self.varies).union(*named)

    def measured(self, measure: str) -> list[str]:
        """The variants that a measure has (`only`)."""
        only = self.measures[measure].get("only")
        return [variant for variant in self.variants if not only or variant in only]


def load_study(path: str) -> Study:
    """Returns the study that `get_study()` of the file `path` returns.

    Raises ConfigError, one line, for a file without a study and for a study that cannot work.
    """
    where = f"--study={path}"
    if not path.endswith(".py") or not pathlib.Path(path).is_file():
        folder = pathlib.Path("configs/studies")
        names = {file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("[!_]*.py")}
        studies = ", ".join(sorted(names - {"base", "common", "gym/common"}))
        raise ConfigError(f"{where} is not a Python file: name one of configs/studies ({studies}), with .py")
    spec = importlib.util.spec_from_file_location(f"_study_{pathlib.Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        fields = module.get_study() if hasattr(module, "get_study") else None
    except (Exception, SystemExit) as error:  # a study is a program and can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{where} cannot be read: {reason}") from error
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{where} has no function get_study that returns configs.studies.base.study(...)")
    return make_study(fields, path)


def make_study(fields: Mapping[str, Any], path: str) -> Study:
    """Returns the study of nested plain dicts, as configs/studies/base.py makes them. path: of its file.

    Raises ConfigError, one line, for a study that cannot work.
    """
    where = f"--study={path}"
    try:
        study = from_mapping(Study, {"name": pathlib.Path(path).stem} | dict(fields), "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}".replace("config field ", "")) from error
    _check(study, where)
    return study


def with_changes(study: Study, *, seeds: int | None, budget: float | None) -> Study:
    """Returns `study` with another number of seeds or another budget, in the study's unit; None: as it is."""
    if seeds is not None:
        study = dataclasses.replace(study, seeds=seeds)
    if budget is not None:
        study = dataclasses.replace(study, budget=Budget(study.budget.unit, budget))
    _refuse(study.seeds < 1, "", f"--seeds={study.seeds} must be 1 or more")
    _refuse(not 0 < study.budget.amount < float("inf"), "", f"--budget={budget} must be above 0 and finite")
    return study


def check_overrides(overrides: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a field that the study sets."""
    for field in overrides:
        reason = _SET_BY_STUDY.get(field)
        _refuse(reason is not None, where, f"{field} cannot be overridden, because {reason}: remove it")


def _refuse(is_wrong: bool, where: str, message: str) -> None:
    if is_wrong:
        raise ConfigError(f"{where}: {message}" if where else message)


def _check(study: Study, where: str) -> None:
    """Raises ConfigError for a study that cannot work, as far as its own fields show it."""
    for kind, names in (("variant", study.variants), ("measure", study.measures)):
        for name in names:
            message = f"{kind} {name!r} must have lower-case letters, digits and underscores only"
            _refuse(not _NAME.fullmatch(name), where, message)
    count = len(study.variants)
    _refuse(count < 2, where, f"a study needs two variants or more, and this one has {count}")
    unknown = study.baseline not in study.variants
    _refuse(unknown, where, f"baseline={study.baseline!r} is not a variant: use {', '.join(study.variants)}")
    _refuse(study.seeds < 1, where, f"seeds={study.seeds} must be 1 or more")
    amount = study.budget.amount
    _refuse(not 0 < amount < float("inf"), where, f"budget.amount={amount} must be above 0 and finite")
    check_overrides(study.overrides, where)
    for name, fields in study.measures.items():
        _refuse(name == "start", where, "measure 'start' must have another name: a variant's first stage has it")
        if "success_at" in fields:
            at = fields["success_at"]
            is_right = isinstance(at, float) and math.isfinite(at) and fields.get("kind") not in _NO_SUCCESS
            _refuse(not is_right, where, f"measure {name}: success_rate needs a measure of quality and a finite at")
        made = "kind" in fields
        _refuse(not made, where, f"measure {name} must be made by a function of configs/studies/base.py")
        only = fields.get("only", ())
        unknown = sorted({*only} - study.variants.keys())
        _refuse(bool(unknown), where, f"measure {name}: only={tuple(only)} has {unknown}, no variants of the study")
        lacks = f"measure {name}: only={tuple(only)} must have the baseline {study.baseline!r} and another variant"
        _refuse(bool(only) and (study.baseline not in only or len(only) == 1), where, lacks)
    _refuse(not study.compared, where, "measures must contain one that is not of kind 'samples'")
    for name, variant in study.variants.items():
        _check_variant(study, variant, f"{where}: variant {name}")
    for result in study.published:
        source = f"{where}: published, {result.source}"
        _refuse(result.measure not in study.compared, source, f"measure={result.measure!r} is not of the study")
        for name in (*result.values, *(name for pair in result.better_than for name in pair)):
            _refuse(name not in study.variants, source, f"{name!r} is not a variant of the study")
        _refuse(not 0 <= result.sd < float("inf"), source, f"sd={result.sd} must be 0 or more, and finite")
        lacks = f"values must have the baseline {study.baseline!r}: an order is that of a variant and the baseline"
        _refuse(bool(result.values) and study.baseline not in result.values, source, lacks)


def _check_variant(study: Study, variant: Variant, where: str) -> None:
    check_overrides(variant.overrides, where)
    if variant.start is not None:
        check_overrides(variant.start.overrides, f"{where}, start")
        share = variant.start.share
        _refuse(not 0 < share < 1, where, f"start.share={share} must be above 0 and below 1")
    if not variant.sweep:
        return
    _refuse(len(variant.sweep) > 1, where, f"sweep has the fields {', '.join(variant.sweep)}: sweep one field")
    [(field, values)] = variant.sweep.items()
    _refuse(not field.startswith("optimizer."), where, f"sweep of {field}: only fields of optimizer can be swept")
    distinct = isinstance(values, list | tuple) and len(values) >= 2 and len(set(map(repr, values))) == len(values)
    _refuse(not distinct, where, f"sweep of {field} must have two different values or more, not {values!r}")
    _refuse(field in variant.overrides, where, f"{field} is both swept and overridden: remove one")
    first = study.compared[0]
    kind, only = study.measures[first]["kind"], study.measures[first].get("only", ())
    decides = f"is swept, and the first measure, {first}, which decides the sweep,"
    name = where.rpartition(" ")[2]
    _refuse(kind in _NO_SCORE, where, f"{decides} is of kind {kind}: put another measure first")
    _refuse(bool(only) and name not in only, where, f"{decides} is restricted to other variants")
