"""The plan of a study: the runs of each variant, with equal budgets, checked before the first of them starts."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from data.windows.batches import Batches
from experiment.experiment import Experiment, make_experiment
from run.corpus import open_corpora
from run.restore import check_same_transformer
from studies.measures import FineTuning, Measure, make_measure
from studies.study import Budget, Study, Variant
from workdir.resolve import fine_tuning_fields, resolve, with_fields
from workdir.run_config import flatten

BUDGET_TOLERANCE = 0.02  # a run may differ from the budget by this share, because a step cannot be divided
# Added to the seed of the run after a start, which then reads the text in another order; the seed of a sweep's runs.
AFTER_START_SEED, SWEEP_SEED = 1000, 2000
_EVALUATIONS = 5  # of a run whose config does not set train.eval_every
_LINES = 20  # of training metrics
# Fields of how often and where a run reports, which do not change what it trains.
_REPORTING = (
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.trackers",
    "train.tracker_project",
)
_COUNTED_BATCHES = 32  # from which the raw tokens of a step are estimated at first


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run: what `python -m train.main` trains.

    Attributes:
      config: the file, with preset, from which `fields` differ by overrides.
      fields: the resolved config of seed 0.
      raw_tokens: that it reads, counted; of a fine-tuning 0.
      flops: model FLOPs of its training.
    """

    config: str
    fields: dict[str, Any]
    raw_tokens: int
    flops: float

    @property
    def steps(self) -> int:
        """The number of its updates; of a run of train.epochs 0."""
        return self.fields["train"]["steps"]


@dataclasses.dataclass(frozen=True)
class VariantPlan:
    """The runs of one seed of a variant.

    Attributes:
      start: the run from which `main` starts, if any.
      fine_tunings: measure -> the run that is fine-tuned for it. `fields` lack train.init_from.
      sweep: field -> values; the field has the first of them in `main`.
      num_params: parameters that `main` trains.
    """

    name: str
    start: PlannedRun | None
    main: PlannedRun
    fine_tunings: dict[str, PlannedRun]
    sweep: dict[str, tuple[Any, ...]]
    num_params: int
    heldout_digest: str

    def trains_as(self, other: "VariantPlan") -> bool:
        """Whether both train the same models."""

        def trained(plan: VariantPlan) -> tuple:
            runs = [{} if run is None else flatten(run.fields) for run in (plan.start, plan.main)]
            return plan.sweep, [{k: v for k, v in run.items() if k not in _REPORTING} for run in runs]

        return trained(self) == trained(other)

    @property
    def distinct_fine_tunings(self) -> list[PlannedRun]:
        """The runs of `fine_tunings`, each once: measures with equal configs share a run."""
        runs = list(self.fine_tunings.values())
        return [run for k, run in enumerate(runs) if run not in runs[:k]]

    @property
    def raw_tokens(self) -> int:
        """Raw tokens of the training, the start included."""
        return self.main.raw_tokens + (self.start.raw_tokens if self.start else 0)

    @property
    def flops(self) -> float:
        """Model FLOPs of the training, the start included."""
        return self.main.flops + (self.start.flops if self.start else 0)

    @property
    def steps(self) -> int:
        """Updates of the training, the start included."""
        return self.main.steps + (self.start.steps if self.start else 0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked plan of a study."""

    study: Study
    variants: dict[str, VariantPlan]
    measures: dict[str, Measure]

    @property
    def swept(self) -> bool:
        """Whether some variant has a sweep."""
        return any(variant.sweep for variant in self.variants.values())


def make_plan(study: Study, overrides: Mapping[str, Any]) -> Plan:
    """Returns the plan of `study`. Opens or builds the token stores; nothing is compiled.

    overrides: fields of all runs, from the command line; they replace the study's and the variants'.

    Raises ConfigError, one line that names the variant, for a config that cannot work, for variants that are equal or
    hold out different text, for a budget that the steps of a variant do not meet, and for a measure that does not fit.
    """
    measures = {name: make_measure(name, fields) for name, fields in study.measures.items()}
    variants = {
        name: _plan_variant(study, name, variant, measures, overrides) for name, variant in study.variants.items()
    }
    for (name, plan), (other, other_plan) in itertools.combinations(variants.items(), 2):
        if plan.trains_as(other_plan):
            raise ConfigError(f"variants {name} and {other} are equal: remove one, or change its overrides")
        if plan.heldout_digest != other_plan.heldout_digest:
            raise ConfigError(
                f"variants {name} and {other} hold out different text (heldout_digest {plan.heldout_digest} and "
                f"{other_plan.heldout_digest}), so they do not compare: give both the same corpus and split"
            )
    return Plan(study, variants, measures)


def _plan_variant(
    study: Study, name: str, variant: Variant, measures: Mapping[str, Measure], overrides: Mapping[str, Any]
) -> VariantPlan:
    where = f"variant {name}"
    swept = {field: values[0] for field, values in variant.sweep.items()}
    start, share = None, 1.0
    if variant.start is not None:
        start_overrides = {**study.overrides, **variant.start.overrides, **overrides}
        budget = dataclasses.replace(study.budget, amount=study.budget.amount * variant.start.share)
        start, _, _ = _budgeted(variant.start.config, start_overrides, budget, study.seeds, f"{where}, start")
        share -= variant.start.share
    budget = dataclasses.replace(study.budget, amount=study.budget.amount * share)
    run_overrides = {**study.overrides, **variant.overrides, **swept, **overrides}
    main, experiment, digest = _budgeted(variant.config or study.config, run_overrides, budget, study.seeds, where)
    for field, values in variant.sweep.items():
        if field in overrides:
            raise ConfigError(f"{where}: {field} is swept, so --config.{field} cannot set it: remove the flag")
        for value in values[1:]:
            _experiment(with_fields(main.fields, {field: value}), f"{where}, {field}={value!r}")
    fine_tunings: dict[str, PlannedRun] = {}
    for measure_name, measure in measures.items():
        if not measure.applies_to(name):
            continue
        try:
            if isinstance(measure, FineTuning):
                fine_tunings[measure_name] = _fine_tuning(measure, experiment, f"{where}, measure {measure_name}")
            measure.check(experiment)
        except ConfigError as error:
            raise ConfigError(f"{where}: measure {measure_name} does not fit: {error}") from error
    return VariantPlan(
        name=name,
        start=start,
        main=main,
        fine_tunings=fine_tunings,
        sweep={field: tuple(values) for field, values in variant.sweep.items()},
        num_params=experiment.num_params,
        heldout_digest=digest,
    )


def _budgeted(
    config: str, overrides: Mapping[str, Any], budget: Budget, seeds: int, where: str
) -> tuple[PlannedRun, Experiment, str]:
    """Returns a run that trains `budget`, its experiment, and the digest of the held-out text."""
    fields = with_fields(resolve(config, overrides, where), {"train.epochs": 0.0})
    warmup = fields["optimizer"]["warmup_steps"]
    # The number of steps is not known before the corpus is open, and does not change which windows a step reads.
    experiment = _experiment(with_fields(fields, {"train.steps": 10**9}), where)
    corpora = open_corpora(experiment)
    digest = corpora.heldout_digest
    by_seed = {
        seed: dataclasses.replace(experiment, seed=seed).batches(corpora.train_documents) for seed in range(seeds)
    }
    step_flops = experiment.train_step_flops
    if budget.unit == "flops":
        steps = max(round(budget.amount / step_flops), 1)
    else:
        steps = _steps_of_tokens(by_seed[0], budget.amount)
    if steps <= warmup:
        raise ConfigError(
            f"{where}: {budget.amount:,.0f} {budget.unit} are {steps} steps, which optimizer.warmup_steps="
            f"{warmup} does not fit: raise the budget, or lower train.batch_size or the warm-up"
        )
    raw_tokens = {seed: _tokens(batches, 0, steps) for seed, batches in by_seed.items()}
    for seed, tokens in raw_tokens.items():
        spent = {"raw_tokens": tokens, "flops": steps * step_flops}[budget.unit]
        if abs(spent / budget.amount - 1) > BUDGET_TOLERANCE:
            raise ConfigError(
                f"{where}: the nearest number of steps, {steps}, is {spent:,.0f} {budget.unit} with seed {seed}, which "
                f"differs from {budget.amount:,.0f} by more than {BUDGET_TOLERANCE:.0%}: raise --budget, or lower "
                "train.batch_size"
            )
    changes: dict[str, Any] = {"train.steps": steps}
    every = -(-steps // _EVALUATIONS)
    defaults = {"eval_every": every, "checkpoint_every": every, "log_every": max(steps // _LINES, 1)}
    changes |= {f"train.{name}": value for name, value in defaults.items() if f"train.{name}" not in overrides}
    fields = with_fields(fields, changes)
    run = PlannedRun(config=config, fields=fields, raw_tokens=raw_tokens[0], flops=steps * step_flops)
    return run, _experiment(fields, where), digest


def _steps_of_tokens(batches: Batches, amount: float) -> int:
    """Returns the number of batches, 1 or more, whose raw tokens are nearest to `amount`."""

    per_step = _tokens(batches, 0, _COUNTED_BATCHES) / _COUNTED_BATCHES
    steps = max(round(amount / per_step), 1)
    total = _tokens(batches, 0, steps)
    while total < amount:
        total += _tokens(batches, steps, 1)
        steps += 1
    while steps > 1 and total > amount:
        last = _tokens(batches, steps - 1, 1)
        if abs(total - last - amount) > abs(total - amount):
            break
        total -= last
        steps -= 1
    return steps


def _tokens(batches: Batches, first: int, count: int) -> int:
    """Returns the raw tokens of `count` batches from batch `first` on."""
    return sum(map(int, batches.count_windows(first, count).raw_tokens))


def _fine_tuning(measure: FineTuning, trained: Experiment, where: str) -> PlannedRun:
    fields = resolve(measure.config, measure.overrides, where)
    # The start's folder is known when the run starts; a plan checks the rest.
    fields = fine_tuning_fields(fields, measure.overrides, trained, workdir="")
    experiment = _experiment(fields, where)
    check_same_transformer(where, trained, experiment)
    measure.check_metric(experiment)
    flops = experiment.train.steps * experiment.train_step_flops
    return PlannedRun(config=measure.config, fields=fields, raw_tokens=0, flops=flops)


def _experiment(fields: Mapping[str, Any], where: str) -> Experiment:
    try:
        return make_experiment(fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
