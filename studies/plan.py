"""The plan of a study: the runs of each variant, with equal budgets, checked before the first of them starts."""

import dataclasses
import functools
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from command.flags import override_flags, resolve
from contract.errors import ConfigError
from data.windows.batches import Batches
from experiment.experiment import Experiment, make_experiment
from run.corpus import open_corpora
from run.restore import check_same_transformer
from studies.measures import SPLIT, VOCABULARY, FineTuning, Measure, make_measure
from studies.study import Budget, Study, Variant
from workdir.run_config import flatten

SCRATCH = "no_pretraining"  # the name of fine-tunings without pre-training
BUDGET_TOLERANCE = 0.02  # a run may differ from the budget by this share, because a step cannot be divided
_EVALUATIONS = 5  # of a run whose config does not set train.eval_every
_LINES = 20  # of training metrics
# Fields of how often and where a run reports, which do not change what it trains.
_REPORTING = re.compile(r"train\.((log|eval|checkpoint)_every|checkpoint_minutes|keep_checkpoints|tracker(s|_project))")
# Fields of study(same_model=...).
_SAME_MODEL = re.compile(
    r"(model|optimizer|loss)\..*|precision|train\.(batch_size|ema_decay)"
    r"|data\.(inputs_length|targets_length|examples_per_row|packing)"
)
_COUNTED_BATCHES = 32  # at first, from which the raw tokens of a step are estimated


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

    def command(self, fields: Mapping[str, Any], workdir: str) -> str:
        """Returns the command that trains this run with `fields`, its own but for a few, such as the seed."""
        default, wanted = flatten(resolve(self.config, {}, self.config)), flatten(fields)
        overrides = {field: value for field, value in wanted.items() if default.get(field) != value}
        flags = [f"--config={self.config}", *override_flags(overrides), f"--workdir={workdir}"]
        return shlex.join(["python", "-m", "train.main", *flags])


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTunings:
    """The fine-tunings of one seed of a model.

    fine_tunings: measure -> the run that is fine-tuned for it. `fields` lack train.init_from.
    """

    name: str
    fine_tunings: dict[str, PlannedRun]

    def fine_tuned_for(self, measure: str) -> str:
        """The first measure with the same fine-tuning, whose run `measure` shares."""
        run = self.fine_tunings[measure]
        return next(name for name, other in self.fine_tunings.items() if other == run)

    @property
    def distinct_fine_tunings(self) -> list[PlannedRun]:
        """The runs of `fine_tunings`, each once."""
        return [run for name, run in self.fine_tunings.items() if self.fine_tuned_for(name) == name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScratchPlan(FineTunings):
    """The fine-tunings of `variants` from initial weights: what the measures reach without pre-training."""

    variants: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantPlan(FineTunings):
    """The runs of one seed of a variant.

    Attributes:
      start: the run from which `main` starts, if any.
      sweep: field -> values; the field has the first of them in `main`.
      num_params: parameters that `main` trains.
    """

    start: PlannedRun | None
    main: PlannedRun
    sweep: dict[str, tuple[Any, ...]]
    num_params: int
    heldout_digest: str

    def trains_as(self, other: "VariantPlan") -> bool:
        """Whether both train the same models."""

        def trained(plan: VariantPlan) -> tuple:
            runs = [{} if run is None else flatten(run.fields) for run in (plan.start, plan.main)]
            return plan.sweep, [{k: v for k, v in run.items() if not _REPORTING.fullmatch(k)} for run in runs]

        return trained(self) == trained(other)

    @property
    def stages(self) -> list[PlannedRun]:
        """The runs that share the budget: the start, if any, and `main`."""
        return [run for run in (self.start, self.main) if run is not None]

    @property
    def raw_tokens(self) -> int:
        """Raw tokens of the training, the start included."""
        return sum(run.raw_tokens for run in self.stages)

    @property
    def flops(self) -> float:
        """Model FLOPs of the training, the start included."""
        return sum(run.flops for run in self.stages)

    @property
    def steps(self) -> int:
        """Updates of the training, the start included."""
        return sum(run.steps for run in self.stages)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked plan of a study."""

    study: Study
    variants: dict[str, VariantPlan]
    measures: dict[str, Measure]

    @property
    def confounders(self) -> dict[str, list[Any]]:
        """See `find_confounders`."""
        return find_confounders(self.study, [variant.main.fields for variant in self.variants.values()])

    @functools.cached_property
    def scratch(self) -> dict[str, ScratchPlan]:
        """Name -> fine-tunings without pre-training, each once. Variants whose fine-tunings are equal share them.

        The fine-tunings of variants differ if the variants have other shapes or other attention over inputs. The name
        is then "no_pretraining_VARIANT", of the first of the variants that share them.
        """
        found: list[tuple[list[str], dict[str, PlannedRun]]] = []
        for name, variant in self.variants.items():
            if not (runs := variant.fine_tunings):
                continue
            same = next((one for one in found if all(one[1].get(m, run) == run for m, run in runs.items())), None)
            if same is None:
                found.append(same := ([], {}))
            same[0].append(name)
            same[1].update(runs)
        plans = [
            ScratchPlan(
                name=SCRATCH if len(found) == 1 else f"{SCRATCH}_{names[0]}", fine_tunings=runs, variants=tuple(names)
            )
            for names, runs in found
        ]
        return {plan.name: plan for plan in plans}


def find_confounders(study: Study, configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns field -> its value in each of `configs`, of the fields that differ beyond the question of the study.

    configs: of the variants' runs, as nested mappings.
    """
    runs = [flatten(config) for config in configs]
    expected = study.question_fields | {"train.steps"}  # the budget determines the steps
    if all(run["model.architecture"] != "encoder_decoder" for run in runs):
        expected.add("data.targets_length")  # a single stack does not read it
    found = {}
    for field in dict.fromkeys(field for run in runs for field in run):
        values = [run.get(field) for run in runs]
        may_differ = field in expected or field.startswith("objective.") or _REPORTING.fullmatch(field)
        if not may_differ and any(value != values[0] for value in values):
            found[field] = values
    return found


@dataclasses.dataclass(frozen=True)
class Job:
    """Trains and measures one run of a variant, or the fine-tunings of a seed without pre-training (Plan.scratch).

    field, value: of a sweep, whose runs are measured by the first measure alone; field is "" otherwise.
    """

    variant: str
    seed: int
    field: str = ""
    value: Any = None

    @property
    def name(self) -> str:
        """The name of the run's workdir, outcome and log, such as "bert_40-seed0"."""
        if self.field:
            return f"{self.variant}-{self.field.rpartition('.')[2]}={self.value}"
        return f"{self.variant}-seed{self.seed}"


def jobs_of(plan: Plan, worker: int = 0, num_workers: int = 1) -> list[Job]:
    """Returns the jobs of worker `worker`, from 0, of `num_workers`, each after those that it needs.

    The jobs of seed 0 precede those of seed 1, so that an unfinished study compares all variants. Where learning rates
    are swept, the jobs of a variant follow one another and have one worker, because its runs need its sweep.

    Raises ConfigError if the worker has no job.
    """
    seeds = range(plan.study.seeds)
    if any(variant.sweep for variant in plan.variants.values()):
        parts = [
            [Job(name, 0, field, value) for field, values in variant.sweep.items() for value in values]
            + [Job(name, seed) for seed in seeds]
            for name, variant in plan.variants.items()
        ]
        parts += [[Job(name, seed) for seed in seeds] for name in plan.scratch]
    else:
        parts = [[Job(name, seed)] for seed in seeds for name in (*plan.variants, *plan.scratch)]
    if worker >= len(parts):
        raise ConfigError(f"--worker={worker}/{num_workers} has nothing to do: use at most {len(parts)} workers")
    return [job for part in parts[worker::num_workers] for job in part]


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
    known = {field for plan in variants.values() for field in flatten(plan.main.fields)}
    if unknown := [field for field in study.varies if field not in known]:
        raise ConfigError(f"varies={unknown[0]!r} is no field of the runs: write it as in 'model.num_layers'")
    plan = Plan(study, variants, measures)
    if taken := plan.scratch.keys() & variants.keys():
        raise ConfigError(f"variant {taken.pop()} has the name of the fine-tunings without pre-training: rename it")
    return plan


def _plan_variant(
    study: Study, name: str, variant: Variant, measures: Mapping[str, Measure], overrides: Mapping[str, Any]
) -> VariantPlan:
    where = f"variant {name}"
    swept = {field: values[0] for field, values in variant.sweep.items()}
    same = _same_model(study.same_model) if study.same_model else {}
    start, share = None, 1.0
    if variant.start is not None:
        start_overrides = {**same, **study.overrides, **variant.start.overrides, **overrides}
        budget = dataclasses.replace(study.budget, amount=study.budget.amount * variant.start.share)
        start, _, _ = _budgeted(variant.start.config, start_overrides, budget, study.seeds, f"{where}, start")
        share -= variant.start.share
    budget = dataclasses.replace(study.budget, amount=study.budget.amount * share)
    run_overrides = {**same, **study.overrides, **variant.overrides, **swept, **overrides}
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


def _same_model(config: str) -> dict[str, Any]:
    """Returns the fields of `config` that the runs of a study share (configs.studies.base.study)."""
    fields = flatten(resolve(config, {}, f"same_model={config!r}"))
    return {name: value for name, value in fields.items() if _SAME_MODEL.fullmatch(name)}


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


def with_fields(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested `fields` with dotted fields replaced. `fields` is unchanged."""
    result = dict(fields)
    for field, value in changes.items():
        section, _, rest = field.partition(".")
        result[section] = with_fields(result[section], {rest: value}) if rest else value
    return result


def fine_tuning_fields(
    fields: Mapping[str, Any], overrides: Mapping[str, Any], trained: Experiment, workdir: str
) -> dict[str, Any]:
    """Returns `fields` of a config for fine-tuning the model of `trained`, which is in `workdir`.

    The shape of the model, the vocabulary, the precision, the seed, the split, the mesh and data.cache_dir are those of
    `trained`, without those that `overrides`, already part of `fields`, set. A decoder reads the text as it read inputs
    in its training: in both directions if some denoiser had inputs that saw each other, such as prefix LM's, and from
    the left otherwise.
    """
    run = trained.config
    shared = {f"model.{name}": getattr(trained.model, name) for name in run["model"]}
    shared |= {f"data.{name}": run["data"][name] for name in (*VOCABULARY, *SPLIT, "cache_dir")}
    if not trained.model.has_encoder:
        saw_both_sides = any(d.objective.has_inputs and max(d.weight, d.final_weight) > 0 for d in trained.denoisers)
        shared["data.bidirectional_inputs"] = trained.data.bidirectional_inputs and saw_both_sides
    shared |= {name: run[name] for name in ("precision", "seed", "mesh")} | {"train.init_from": workdir}
    return with_fields(fields, {field: value for field, value in shared.items() if field not in overrides})
