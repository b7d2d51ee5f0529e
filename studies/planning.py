"""Makes the plan of a study: equal budgets, fine-tunings and the texts of its runs, all checked."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from command.flags import resolve, same_model_fields
from contract.errors import ConfigError, errors_naming
from data.windows.batches import Batches
from data.windows.split import split_warnings
from evaluation.cross_evaluate import RUN_FIELDS
from evaluation.leakage import check_start, num_trained
from experiment.experiment import Experiment, make_experiment
from experiment.outside import code_digests, code_of
from huggingface.origin import with_origin_fields
from huggingface.teacher import with_teacher
from huggingface.vocabulary import VOCABULARY
from run.corpus import Corpora, open_corpora
from run.evaluation import heldout_windows
from run.restore import check_same_transformer
from studies.markdown import large
from studies.measures import FineTuning, HeldoutMetric, Measure, ProbeMetric, digests_of, make_measure
from studies.plan import AFTER_START_SEED, SWEEP_SEED, VALIDATION, Plan, PlannedRun, VariantPlan, with_fields
from studies.study import TEXT_BY, Budget, Study, Variant, describe_windows, scored_otherwise
from train.init_from import check_init_from
from workdir.run_config import flatten

BUDGET_TOLERANCE = 0.02  # a run may differ from the budget by this share, because a step cannot be divided
_EVALUATIONS = 5  # of a run whose config does not set train.eval_every
_LINES = 20  # of training metrics
# Overrides by which a measure scores other text than the run's.
_TEXT = re.compile(r"data\.(source|path|heldout|split)")
_MOST_STEPS = 2**31
_MOST_WARMUP = 0.25  # of a run's updates, without a warning
_COUNTED_BATCHES = 32  # at first, from which the raw tokens of a step are estimated
_MOST_COUNTED_BATCHES = 5_000  # of larger budgets, the tokens are estimated from these


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
            here, there = (flatten(one.main.fields) for one in (plan, other_plan))
            unread = ", ".join(field for field in here if here[field] != there[field])
            but = f" but for {unread}, which neither reads" if unread else ""
            raise ConfigError(f"variants {name} and {other} are equal{but}: remove one, or change its overrides")
        if plan.heldout_digest != other_plan.heldout_digest:
            raise ConfigError(
                f"variants {name} and {other} hold out different text (heldout_digest {plan.heldout_digest} and "
                f"{other_plan.heldout_digest}), so they do not compare: give both the same corpus and split"
            )
    known = {field for plan in variants.values() for field in flatten(plan.main.fields)}
    if unknown := [field for field in study.varies if field not in known]:
        raise ConfigError(f"varies={unknown[0]!r} is no field of the runs: write it as in 'model.num_layers'")
    warnings = [line for one in (*variants.values(), *measures.values()) for line in one.warnings]
    plan = Plan(study, variants, measures, digests_of(measures.values()))
    plan = dataclasses.replace(plan, warnings=[*dict.fromkeys([*warnings, *_describe_texts(plan)])])
    if taken := plan.scratch.keys() & variants.keys():
        raise ConfigError(f"variant {taken.pop()} has the name of the fine-tunings without pre-training: rename it")
    return plan


def _describe_texts(plan: Plan) -> Iterator[str]:
    """Yields a warning for each measure that scores other windows, texts or parts of texts of some variants."""
    rows = {(config["data.inputs_length"], config["data.tokenizer"]) for config in plan.configs.values()}
    different: dict[str, list[str]] = {}
    for name, measure in plan.measures.items():
        measured = [variant for variant in plan.variants.values() if measure.applies_to(variant.name)]
        if isinstance(measure, HeldoutMetric) and not measure.config and measure.metric.endswith("per_byte"):
            yield from filter(None, [describe_windows({one.name: one.heldout_windows for one in measured}, name)])
        if isinstance(measure, ProbeMetric) and len(rows) > 1:
            cut = {one.name: measure.cut_texts(make_experiment(one.main.fields)) for one in measured}
            if len({*cut.values()}) > 1:
                each = ", ".join(f"{variant} {count:,}" for variant, count in cut.items())
                yield f"{name} reads starts of texts that do not fit a row: {each}"
        found = scored_otherwise(plan.study.measures[name], [plan.configs[one.name] for one in measured])
        different.setdefault(", ".join(field for field in found if TEXT_BY.match(field)), []).append(name)
    for fields, names in different.items():
        if fields:
            yield (
                f"variants that differ in {fields} are scored on different text by {', '.join(names)}: no verdict "
                "unless the floors are equal (docs/studies.md, measures)"
            )


def _plan_variant(
    study: Study, name: str, variant: Variant, measures: Mapping[str, Measure], overrides: Mapping[str, Any]
) -> VariantPlan:
    where = f"variant {name}"
    first = study.first_measure
    if variant.sweep and measures[first].files:
        raise ConfigError(
            f"{where} is swept, and the first measure, {first}, reads a text of its own, so the sweep would choose by "
            "the text that the study reports: put a measure of held-out text first"
        )
    swept = {field: values[0] for field, values in variant.sweep.items()}
    shared = study.same_model
    same = same_model_fields(shared, f"same_model={shared!r}") if shared else {}
    start, share, of_start = None, 1.0, ()
    seeds = [*range(study.seeds), *[SWEEP_SEED] * bool(swept)]
    if variant.start is not None:
        start_overrides = {**study.overrides, **variant.start.overrides, **overrides}
        budget = dataclasses.replace(study.budget, amount=study.budget.amount * variant.start.share)
        start, *of_start = _budgeted(variant.start.config, same, start_overrides, budget, seeds, f"{where}, start")
        seeds = [seed + AFTER_START_SEED for seed in seeds]
        share -= variant.start.share
        same |= {"train.init_from": start.fields["train"]["init_from"]}  # of the run, a job sets the start's folder
    budget = dataclasses.replace(study.budget, amount=study.budget.amount * share)
    run_overrides = {**study.overrides, **variant.overrides, **swept, **overrides}
    config = variant.config or study.config
    main, experiment, corpora = _budgeted(config, same, run_overrides, budget, seeds, where)
    for field, values in variant.sweep.items():
        if field in overrides:
            raise ConfigError(f"{where}: {field} is swept, so --config.{field} cannot set it: remove the flag")
        for value in values[1:]:
            _experiment(with_fields(main.fields, {field: value}), f"{where}, {field}={value!r}")
    fine_tunings: dict[str, PlannedRun] = {}
    trained_on: list[str] = []
    for measure_name, measure in measures.items():
        if not measure.applies_to(name):
            continue
        with errors_naming(f"{where}: measure {measure_name} does not fit"):
            if isinstance(measure, FineTuning):
                fine_tunings[measure_name] = _fine_tuning(measure, experiment, f"{where}, measure {measure_name}")
            measure.check(experiment)
            trained_on += _describe_trained_on(measure_name, measure, name, experiment, corpora)
    of_sweep = (main, start, fine_tunings.get(first)) if variant.sweep else ()
    validation = [_validation_digest(run, where) for run in of_sweep if run is not None]
    warnings = _warnings(name, main, corpora) + trained_on
    first_experiment, first_corpora = of_start or (experiment, corpora)
    with errors_naming(where):
        warnings += check_start(first_experiment, first_corpora)
        if first_experiment.train.init_from:
            check_init_from(first_experiment)
    return VariantPlan(
        name=name,
        start=start,
        main=main,
        fine_tunings=fine_tunings,
        sweep={field: tuple(values) for field, values in variant.sweep.items()},
        num_params=experiment.num_params,
        heldout_digest=corpora.heldout_digest,
        heldout_windows=heldout_windows(experiment),
        tokenizer=experiment.tokenizer.fingerprint,
        text_facts=_describe_text(corpora, main.raw_tokens),
        readings=_readings(corpora, main.raw_tokens),
        warnings=tuple(warnings),
        validation_digest=validation[0] if validation else "",
        code=code_digests(of for one in (*of_start[:1], experiment) for of in [code_of(one.learner, one.denoisers)]),
    )


def _validation_digest(run: PlannedRun, where: str) -> str:
    """Returns the digest of the validation text of a sweep's run. Raises ConfigError if it cannot be read."""
    with errors_naming(f"{where}: its sweep needs validation text (data.heldout)"):
        return _open(make_experiment(with_fields(run.fields, VALIDATION))).heldout_digest


def _open(experiment: Experiment) -> Corpora:
    """Returns the corpora of a run. Raises ConfigError where it cannot train or be evaluated on them."""
    corpora = open_corpora(experiment)
    experiment.batches(corpora.train_documents)
    experiment.heldout(corpora.heldout_documents)
    return corpora


def _budgeted(
    config: str, same: Mapping[str, Any], overrides: Mapping[str, Any], budget: Budget, seeds: Sequence[int], where: str
) -> tuple[PlannedRun, Experiment, Corpora]:
    """Returns a run that trains `budget`, its experiment, and its corpora.

    same: fields of study(same_model=...), which yield to `overrides` and to the model of `train.init_from`.
    seeds: of all that train it. The number of steps is that of seed 0.
    """
    fields = resolve(config, {**same, **overrides}, where)
    with errors_naming(where):
        fields = with_origin_fields(fields, overrides)
    fields = with_fields(fields, {"train.epochs": 0.0, "data.heldout": "test"})
    warmup = fields["optimizer"]["warmup_steps"]
    # The number of steps is not known before the corpus is open, and does not change which windows a step reads.
    experiment = _experiment(with_fields(fields, {"train.steps": 10**9}), where)
    corpora = open_corpora(experiment)
    by_seed = {
        seed: dataclasses.replace(experiment, seed=seed).batches(corpora.train_documents) for seed in {0, *seeds}
    }
    step_flops = experiment.train_step_flops
    if budget.unit == "flops":
        steps = _at_most(budget.amount / step_flops)
    else:
        steps = _steps_of_tokens(by_seed[0], budget.amount)
    if steps <= warmup:
        raise ConfigError(
            f"{where}: {budget.amount:,.0f} {budget.unit} are {steps} steps, which optimizer.warmup_steps="
            f"{warmup} does not fit: raise --budget, or add --config.optimizer.warmup_steps={steps // 10} or a smaller "
            "--config.train.batch_size"
        )
    raw_tokens = {seed: _tokens(batches, 0, steps) for seed, batches in by_seed.items()}
    for seed in seeds:
        spent = {"raw_tokens": raw_tokens[seed], "flops": steps * step_flops}[budget.unit]
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
    run = PlannedRun(config, fields, raw_tokens[0], steps * step_flops, corpora.content_digest)
    return run, _experiment(fields, where), corpora


def _describe_text(corpora: Corpora, raw_tokens: float) -> str:
    """Returns, for people, the documents and tokens of both sides of each corpus, and how often a corpus is read."""
    texts = []
    for corpus in corpora.each:
        train, heldout = corpus.train_documents, corpus.heldout_documents
        text = f"{corpus.name}: " * bool(corpus.name)
        text += f"{len(heldout):,} documents ({large(heldout.num_tokens(eos=True))} tokens) held out, "
        text += f"{len(train):,} ({large(train.num_tokens(eos=True))} tokens) to train on"
        if (readings := _readings(corpora, raw_tokens)) > 1:
            text += f", which are read {readings:.1f} times"
        texts.append(f"{text}; {corpus.overlap}" if corpus.overlap.train else text)
    return "; ".join(texts)


def _readings(corpora: Corpora, raw_tokens: float) -> float:
    """Returns how often a run reads its training text; 0 of several corpora, which have rates of their own."""
    return raw_tokens / corpora.train_documents.num_tokens(eos=True) if len(corpora.each) == 1 else 0.0


def _warnings(name: str, main: PlannedRun, corpora: Corpora) -> list[str]:
    """Returns warnings about a variant's split, and about a warm-up that is most of its run."""
    warmup, steps = main.fields["optimizer"]["warmup_steps"], main.steps
    long = f"variant {name}: {warmup} of {steps} updates are warm-up: set a smaller optimizer.warmup_steps"
    split = [line for one in corpora.each for line in split_warnings(one.heldout_documents, corpora.split)]
    return [*[long] * (warmup > _MOST_WARMUP * steps), *split]


def _describe_trained_on(
    name: str, measure: Measure, variant: str, experiment: Experiment, corpora: Corpora
) -> list[str]:
    """Returns a warning where a measure scores other text than what a run holds out, and the run trains on it."""
    scored = measure.scored(experiment)
    if scored is experiment or not any(_TEXT.match(field) for field in measure.overrides):
        return []
    text = open_corpora(scored)
    count, total = num_trained(text, corpora), len(text.heldout_documents)
    return [f"{count:,} of {total:,} documents on which {name} scores {variant} are its training text"] * bool(count)


def _at_most(steps: float) -> int:
    """Returns a number of steps, rounded, 1 or more. Raises ConfigError for more than a run can have."""
    if steps >= _MOST_STEPS:
        raise ConfigError(f"the budget is {steps:.3g} steps, and a run has less than {_MOST_STEPS:,}: lower --budget")
    return max(round(steps), 1)


def _steps_of_tokens(batches: Batches, amount: float) -> int:
    """Returns the number of batches, 1 or more, whose raw tokens are nearest to `amount`."""
    per_step = _tokens(batches, 0, _COUNTED_BATCHES) / _COUNTED_BATCHES
    if amount > per_step * _MOST_COUNTED_BATCHES:
        return _at_most(amount / (_tokens(batches, 0, _MOST_COUNTED_BATCHES) / _MOST_COUNTED_BATCHES))
    steps = _at_most(amount / per_step)
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
    """Returns the raw tokens of `count` batches from batch `first` on; of very many, those at the first ones' rate."""
    counted = min(count, _MOST_COUNTED_BATCHES)
    return sum(map(int, batches.count_windows(first, counted).raw_tokens)) * count // counted


def _fine_tuning(measure: FineTuning, trained: Experiment, where: str) -> PlannedRun:
    fields = fine_tuning_fields(resolve(measure.config, measure.overrides, where), measure.overrides, trained)
    experiment = _experiment(fields, where)
    check_same_transformer(where, trained, experiment)
    measure.check_metric(experiment)
    flops, text_digest = experiment.train.steps * experiment.train_step_flops, _open(experiment).content_digest
    return PlannedRun(config=measure.config, fields=fields, raw_tokens=0, flops=flops, text_digest=text_digest)


def _experiment(fields: Mapping[str, Any], where: str) -> Experiment:
    with errors_naming(where):
        return with_teacher(make_experiment(fields))


def fine_tuning_fields(fields: Mapping[str, Any], overrides: Mapping[str, Any], trained: Experiment) -> dict[str, Any]:
    """Returns `fields` of a config for fine-tuning the model of `trained`, whose folder is known when the run starts.

    The shape of the model, the vocabulary, the precision, the seed, the split, the mesh and data.cache_dir are those of
    `trained`, without those that `overrides`, already part of `fields`, set. A decoder reads the text in both
    directions if it read some rows or prefixes so in its training, and from the left otherwise.
    """
    run = trained.config
    shared = {f"model.{name}": getattr(trained.model, name) for name in run["model"]}
    shared |= {f"data.{name}": run["data"][name] for name in (*VOCABULARY, *RUN_FIELDS, "cache_dir", "read_by_range")}
    if not trained.model.has_encoder:
        shared["data.bidirectional_inputs"] = trained.model.has_prefix
    shared |= {name: run[name] for name in ("precision", "seed", "mesh")} | {"train.init_from": ""}
    return with_fields(fields, {field: value for field, value in shared.items() if field not in overrides})
