"""A study, made from a file of configs/studies and checked: variants x seeds, a budget and measures."""

import dataclasses
import math
import os
import pathlib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from command.flags import execute_file, override_flags
from contract.errors import ConfigError, programs_of_users
from experiment.config import from_mapping

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
RESERVED = ("main", "start", "sweep")  # what study.json names next to the fine-tunings of measures
# Fields that change over which tokens a run's own loss is, how the loss is computed, or the vocabulary. A single
# stack's rows hold inputs and targets, so its windows have other lengths.
SCORED_BY = re.compile(
    r"(objective|loss)\.|model\.architecture|data\.(tokenizer|num_sentinels|mode_tokens|append_special_tokens"
    r"|decoder_start_token|inputs_length|targets_length|(sources\..*\.)?documents|examples_per_row|packing"
    r"|on_unusable)|train\.eval_windows"
)
# Fields that change which part of the held-out text is scored, or how it is cut, whatever the objective.
TEXT_BY = re.compile(r"data\.(tokenizer|(sources\..*\.)?document_per|filters\..*)")
# Fields by which a loss weighs the corpora.
RATES = re.compile(r"data\.(sources\..*\.weight|rates.*|mix_by)")
_TUNED_BY = re.compile(r"data\.tokenizer")  # all else of a fine-tuning's text is its own, and cut alike for all runs
_OF_WINDOWS = ("continuation", "infilling", "pseudo_log_likelihood")  # probes of windows of the held-out text
_MOST_SEEDS = 1000  # a run after a start and the runs of a sweep have the seeds from here on
# Fields that the study sets -> what sets them.
_SET_BY_STUDY = {
    "seed": "the study's seeds set it",
    "train.steps": "every run has the study's budget",
    "train.epochs": "every run has the study's budget",
    "data.heldout": "the runs of a sweep are measured on the validation text and all others on the test text",
}


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
    values: dict[str, float]
    better_than: tuple[tuple[str, str], ...]
    better: Literal["higher", "lower"]
    sd: float


@dataclasses.dataclass(frozen=True)
class Study:
    """configs.studies.base.study, checked.

    Attributes:
      name: of the file, such as "masking_rate".
      measures: name -> fields. `kind` is one of studies/measures.py, `better` is "higher" or "lower". A
        success rate has `success_at` (configs.studies.base.success_rate).
      sweep: that of all variants, whose own field `sweep` has it too.
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
    sweep: dict[str, Any]

    @property
    def first_measure(self) -> str:
        """The measure that decides about the values of sweeps."""
        return next(iter(self.measures))

    def config_of(self, variant: str) -> str:
        """The config file, with preset, of a variant."""
        return self.variants[variant].config or self.config

    def measured(self, measure: str) -> list[str]:
        """The variants that a measure has (`only`)."""
        only = self.measures[measure].get("only")
        return [variant for variant in self.variants if not only or variant in only]

    def baseline_of(self, measure: str) -> str:
        """The variant with which a measure compares the others: the baseline, or its first one if it lacks that."""
        measured = self.measured(measure)
        return self.baseline if self.baseline in measured else measured[0]

    def command(self, file: str, out: str | os.PathLike, overrides: Mapping[str, Any], *more: str) -> str:
        """Returns the command of train.ablate that runs the study. more: further flags."""
        budget = [f"--budget={self.budget.amount:.15g}", f"--budget_unit={self.budget.unit}"]
        flags = [f"--study={file}", f"--out={out}", f"--seeds={self.seeds}", *budget, *override_flags(overrides), *more]
        return shlex.join(["python", "-m", "train.ablate", *flags])


def load_study(path: str) -> Study:
    """Returns the study that `get_study()` of the file `path` returns.

    Raises ConfigError, one line, for a file without a study and for a study that cannot work.
    """
    where = f"--study={path}"
    if not path.endswith(".py") or not pathlib.Path(path).is_file():
        folder = pathlib.Path("configs/studies")
        names = {file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("[!_]*.py")}
        studies = ", ".join(sorted(names - {"base", "common", "english", "gym/common"}))
        fault = "does not exist" if path.endswith(".py") else "is not a Python file"
        raise ConfigError(f"{where} {fault}: name a file of yours, or one of configs/studies ({studies}), with .py")
    module = execute_file(path, "--study")
    with programs_of_users(f"{where} cannot be read"):
        fields = module.get_study() if hasattr(module, "get_study") else None
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
    if study.sweep:
        _check_sweep(study.sweep, least=3, where=where)
        own = [name for name, variant in study.variants.items() if variant.sweep]
        _refuse(bool(own), where, f"variant {', '.join(own)} and the study both have a sweep: remove one")
        swept = {name: dataclasses.replace(each, sweep=study.sweep) for name, each in study.variants.items()}
        study = dataclasses.replace(study, variants=swept)
    check_study(study, where)
    return study


def with_changes(study: Study, *, seeds: int | None, budget: Budget | None) -> Study:
    """Returns `study` with another number of seeds or another budget; None: as it is."""
    if seeds is not None:
        study = dataclasses.replace(study, seeds=seeds)
    if budget is not None:
        study = dataclasses.replace(study, budget=budget)
    _check_size(study, "the command line")
    return study


def check_overrides(overrides: Iterable[str], where: str) -> None:
    """Raises ConfigError for a field that the study sets."""
    for field in overrides:
        reason = _SET_BY_STUDY.get(field)
        _refuse(reason is not None, where, f"{field} cannot be overridden, because {reason}: remove it")


def scored_fields(config: Mapping[str, Any], patterns: Iterable[re.Pattern]) -> dict[str, Any]:
    """Returns the fields of a flat config that match one of `patterns`, without filters that change no held-out text.

    The corpus' own held-out text is not filtered.
    """
    of_corpora = [value for field, value in config.items() if re.fullmatch(r"data\.sources\..*\.heldout_path", field)]
    is_whole = all(of_corpora or [config.get("data.heldout_path")])
    return {
        field: value
        for field, value in config.items()
        if any(pattern.match(field) for pattern in patterns) and not (is_whole and field.startswith("data.filters."))
    }


def scored_otherwise(measure: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the fields in which runs differ, and by which a measure scores other text or tokens of each of them.

    measure: of a Study. configs: of the runs, flat.
    """
    kind, metric, config = (measure.get(field, "") for field in ("kind", "metric", "config"))
    patterns = {"fine_tuning": [_TUNED_BY], "heldout": [TEXT_BY]}.get(kind, [])
    if kind == "heldout" and not config:
        patterns += [SCORED_BY] + [RATES] * ("/" not in metric)
    if measure.get("probe") in _OF_WINDOWS:
        patterns = [TEXT_BY]
    chosen = measure.get("overrides", {})  # the same for all runs
    found = [scored_fields({**of_run, **chosen}, patterns) for of_run in configs]
    names = dict.fromkeys(field for fields in found for field in fields)
    return [name for name in names if any(fields.get(name) != found[0].get(name) for fields in found)]


def describe_windows(windows: Mapping[str, str], metric: str) -> str:
    """Returns a line on runs that score `metric`, in bits per byte, in other windows of the same text; "" if none do.

    windows: the name of a run or a variant -> its run.evaluation.heldout_windows.
    """
    if len(set(windows.values())) < 2:
        return ""
    each = ", ".join(f"{name} {of_run}" for name, of_run in windows.items())
    return (
        f"the held-out text is scored in other windows ({each}), and longer ones lower {metric} by themselves: make "
        "them equal with data.inputs_length and data.documents, in training or in train.evaluate --config"
    )


def _refuse(is_wrong: bool, where: str, message: str) -> None:
    if is_wrong:
        raise ConfigError(f"{where}: {message}" if where else message)


def _check_size(study: Study, where: str) -> None:
    _refuse(not 1 <= study.seeds <= _MOST_SEEDS, where, f"seeds={study.seeds} must be 1 to {_MOST_SEEDS}")
    amount = study.budget.amount
    _refuse(not 0 < amount < math.inf, where, f"the budget, {amount}, must be above 0 and finite")


def check_study(study: Study, where: str) -> None:
    """Raises ConfigError, which begins with `where`, for a study that cannot work, as far as its own fields show it."""
    for kind, names in (("variant", study.variants), ("measure", study.measures)):
        for name in names:
            message = f"{kind} {name!r} must have lower-case letters, digits and underscores only"
            _refuse(not _NAME.fullmatch(name), where, message)
    count = len(study.variants)
    is_swept = any(variant.sweep for variant in study.variants.values())
    message = (
        f"a study needs two variants or more, or a sweep of one, and this one has {count}: add a baseline or a sweep"
    )
    _refuse(count < 2 - is_swept, where, message)
    unknown = study.baseline not in study.variants
    _refuse(unknown, where, f"baseline={study.baseline!r} is not a variant: use {', '.join(study.variants)}")
    _check_size(study, where)
    check_overrides(study.overrides, where)
    _refuse(not study.measures, where, "measures must contain one or more")
    for name, fields in study.measures.items():
        no_success = fields["kind"] == "throughput" or not math.isfinite(fields.get("success_at", 0))
        message = f"measure {name}: success_rate needs a measure of quality and a finite at"
        _refuse("success_at" in fields and no_success, where, message)
        message = f"measure {name!r} must have another name: study.json has a run or a field of this name"
        _refuse(name in RESERVED, where, message)
        check_overrides({"data.heldout"} & fields.get("overrides", {}).keys(), f"{where}: measure {name}")
        only = fields.get("only") or tuple(study.variants)
        is_wrong = len(only) < min(count, 2) or not {*only} <= study.variants.keys()
        lacks = "must have two variants of the study or more"
        _refuse(is_wrong, where, f"measure {name}: only={only} {lacks}")
    for name, variant in study.variants.items():
        _check_variant(study, variant, f"{where}: variant {name}")
    for result in study.published:
        source = f"{where}: published, {result.source}"
        _refuse(result.measure not in study.measures, source, f"measure={result.measure!r} is not of the study")
        for name in (*result.values, *(name for pair in result.better_than for name in pair)):
            _refuse(name not in study.variants, source, f"{name!r} is not a variant of the study")
        lacks = f"values must have the baseline {study.baseline!r}: an order is that of a variant and the baseline"
        _refuse(bool(result.values) and study.baseline not in result.values, source, lacks)


def _check_sweep(sweep: Mapping[str, Any], *, least: int, where: str) -> None:
    """Raises ConfigError unless the sweep is of one field of the optimizer, with `least` different values or more."""
    _refuse(len(sweep) > 1, where, f"sweep has the fields {', '.join(sweep)}: sweep one field")
    [(field, values)] = sweep.items()
    _refuse(not field.startswith("optimizer."), where, f"sweep of {field}: only fields of optimizer can be swept")
    is_list = isinstance(values, list | tuple) and all(type(value) in (int, float, str) for value in values)
    is_right = is_list and len(values) >= least and len(set(values)) == len(values)  # 1 and 1.0 are one value
    message = f"sweep of {field} must have {least} different numbers or texts, or more, not {values!r}"
    _refuse(not is_right, where, message)


def _check_variant(study: Study, variant: Variant, where: str) -> None:
    check_overrides(variant.overrides, where)
    if variant.start is not None:
        check_overrides(variant.start.overrides, f"{where}, start")
        share = variant.start.share
        _refuse(not 0 < share < 1, where, f"start.share={share} must be above 0 and below 1")
    if not variant.sweep:
        return
    _check_sweep(variant.sweep, least=2, where=where)
    [field] = variant.sweep
    _refuse(field in variant.overrides, where, f"{field} is both swept and overridden: remove one")
    first = study.measures[study.first_measure]
    is_wrong = first["kind"] == "throughput" or bool(first["only"])
    decides = f"is swept, and the first measure, {study.first_measure}, which decides the sweep,"
    _refuse(is_wrong, where, f"{decides} must be one of quality and of all variants: put another measure first")
