"""The plan of a study: the runs of each variant, their jobs, and what differs between the variants."""

import dataclasses
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from command.flags import override_flags, resolve
from contract.errors import ConfigError
from studies.measures import Measure
from studies.study import Study, Variant
from workdir.run_config import flatten

SCRATCH = "no_pretraining"  # the name of fine-tunings without pre-training
# Added to the seed of the run after a start, which then reads the text in another order; the seed of a sweep's runs.
AFTER_START_SEED, SWEEP_SEED = 1000, 2000
VALIDATION = {"data.heldout": "validation"}  # of the runs of a sweep

# Fields of how often and where a run reports, which do not change what it trains.
_REPORTING = re.compile(r"train\.((log|eval|checkpoint)_every|checkpoint_minutes|keep_checkpoints|tracker(s|_project))")


def unread_fields(fields: Mapping[str, Any]) -> set[str]:
    """Returns the names of fields that have no effect because of others. fields: a flat config."""
    architecture, schedule = fields.get("model.architecture"), fields.get("optimizer.schedule")
    positions, teacher = fields.get("model.positions"), fields.get("distillation.teacher")
    unread = {
        "data.targets_length model.share_stacks": architecture != "encoder_decoder",
        "data.bidirectional_inputs data.decoder_start_token": architecture == "encoder_only",
        "model.num_decoder_layers": fields.get("model.num_decoder_layers") in (0, fields.get("model.num_layers")),
        "model.rope_theta model.rope_scaling_factor model.partial_rotary_factor": positions != "rope",
        "model.rope_original_length": fields.get("model.rope_scaling_factor") == 1,
        "model.relative_num_buckets model.relative_max_distance": positions != "relative",
        "model.first_layer_global model.local_distance model.local_rope_theta": fields.get("model.global_every") == 1,
        "model.dropout_broadcast_positions model.attention_dropout": fields.get("model.dropout_rate") == 0,
        "model.initializer_range": fields.get("model.initializer") == "t5",
        "model.base_d_model model.base_num_layers": fields.get("model.parameterization") == "standard",
        "distillation.weight distillation.divergence distillation.temperature distillation.top_k": not teacher,
        "optimizer.decay_fraction": schedule != "wsd",
        "optimizer.final_learning_rate_fraction": schedule in ("constant", "inverse_sqrt", "rsqrt"),
        "optimizer.b1 optimizer.b2": fields.get("optimizer.name") == "adafactor",
        "optimizer.eps": fields.get("optimizer.name") in ("adafactor", "lion"),
    }
    return {field for names, is_unread in unread.items() if is_unread for field in names.split()}


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run: what `python -m train.main` trains.

    Attributes:
      config: the file, with preset, from which `fields` differ by overrides.
      fields: the resolved config of seed 0.
      raw_tokens: that it reads, counted; of a fine-tuning 0.
      flops: model FLOPs of its training.
      text_digest: of its corpora, both sides of their splits; "" where they were not opened, as on a board.
    """

    config: str
    fields: dict[str, Any]
    raw_tokens: int
    flops: float
    text_digest: str = ""

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
class VariantPlan:
    """The runs of one seed of a variant, or of fine-tunings without pre-training.

    Attributes:
      start: the run from which `main` starts, if any.
      main: None without pre-training.
      fine_tunings: measure -> the run that is fine-tuned for it. `fields` lack train.init_from.
      sweep: field -> values; the field has the first of them in `main`.
      num_params: parameters that `main` trains.
      heldout_digest: of the test text, which the study reports; "" without pre-training.
      heldout_windows: run.evaluation.heldout_windows of `main`.
      tokenizer: the fingerprint of that of `main`, whose file may be a copy; "" where it is not known.
      text_facts: documents and tokens of both sides of the split, for people; "" without pre-training.
      readings: how often `main` reads its training text; 0 of several corpora.
      warnings: on the split of the corpus, on the warm-up, and on a start whose training text is not known.
      validation_digest: of the text on which a sweep's runs are measured; "" without a sweep.
      shared_by: of fine-tunings without pre-training, the variants that have them.
      code: experiment.outside.code_digests of `start` and `main`.
    """

    name: str
    fine_tunings: dict[str, PlannedRun]
    start: PlannedRun | None = None
    main: PlannedRun | None = None
    sweep: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    num_params: int = 0
    heldout_digest: str = ""
    heldout_windows: str = ""
    tokenizer: str = ""
    text_facts: str = ""
    readings: float = 0.0
    warnings: tuple[str, ...] = ()
    validation_digest: str = ""
    shared_by: tuple[str, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)

    def fine_tuned_for(self, measure: str) -> str:
        """The first measure with the same fine-tuning, whose run `measure` shares."""
        run = self.fine_tunings[measure]
        return next(name for name, other in self.fine_tunings.items() if other == run)

    @property
    def text_digests(self) -> dict[str, str]:
        """ "digest of the text", with the stage unless it is `main` -> text_digest of its run, as in outcomes."""
        stages = {"": self.main, " of the start": self.start}
        stages |= {f" of {measure}": run for measure, run in self.fine_tunings.items()}
        return {f"digest of the text{stage}": run.text_digest for stage, run in stages.items() if run is not None}

    @property
    def distinct_fine_tunings(self) -> list[PlannedRun]:
        """The runs of `fine_tunings`, each once."""
        return [run for name, run in self.fine_tunings.items() if self.fine_tuned_for(name) == name]

    def trains_as(self, other: "VariantPlan") -> bool:
        """Whether both train the same models."""

        def trained(plan: VariantPlan) -> tuple:
            runs = [{} if run is None else flatten(run.fields) for run in (plan.start, plan.main)]
            unread = [unread_fields(run) for run in runs]
            return plan.sweep, [
                {k: v for k, v in run.items() if k not in of_run and not _REPORTING.fullmatch(k)}
                for run, of_run in zip(runs, unread, strict=True)
            ]

        return trained(self) == trained(other)

    @property
    def stages(self) -> list[PlannedRun]:
        """The runs that share the budget: the start, if any, and `main`; [] without pre-training."""
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
    """The checked plan of a study.

    Attributes:
      file_digests: of the files that measures read: studies.measures.digests_of.
      warnings: what a reader must know first, each once.
      later: fields of configs/base.py that the code with which the study began did not have. All runs have their
        defaults, and neither study.json nor a digest of a config has them.
    """

    study: Study
    variants: dict[str, VariantPlan]
    measures: dict[str, Measure]
    file_digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: Sequence[str] = ()
    later: frozenset[str] = frozenset()

    @property
    def confounders(self) -> dict[str, list[Any]]:
        """See `find_confounders`."""
        return find_confounders(self.study, self._stages)

    @property
    def questions(self) -> dict[str, list[Any]]:
        """See `find_questions`."""
        return find_questions(self.study, self._stages)

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Variant -> the flat config of its run, with the fingerprint of its tokenizer in place of the path."""
        named = {
            name: {"data.tokenizer": one.tokenizer} if one.tokenizer else {} for name, one in self.variants.items()
        }
        return {name: flatten(one.main.fields) | named[name] for name, one in self.variants.items()}

    @property
    def text_facts(self) -> str:
        """The facts about the text of the first variant: the test text is the same for all of them."""
        return next(iter(self.variants.values())).text_facts

    @property
    def _stages(self) -> dict[str, list[Mapping[str, Any]]]:
        return {name: [run.fields for run in variant.stages] for name, variant in self.variants.items()}

    @property
    def runs(self) -> dict[str, VariantPlan]:
        """The variants and the fine-tunings without pre-training, by name."""
        return self.variants | self.scratch

    def measures_of(self, job: "Job") -> dict[str, Measure]:
        """The measures of a job's run: of a sweep's run the first one, which decides the sweep."""
        if job.variant in self.scratch:
            return {name: self.measures[name] for name in self.runs[job.variant].fine_tunings}
        names = [self.study.first_measure] if job.field else self.measures
        return {name: self.measures[name] for name in names if self.measures[name].applies_to(job.variant)}

    def fine_tunings_of(self, job: "Job") -> list[PlannedRun]:
        """The fine-tunings that a job trains, each once."""
        variant, measures = self.runs[job.variant], self.measures_of(job)
        runs = {variant.fine_tuned_for(name): run for name, run in variant.fine_tunings.items() if name in measures}
        return list(runs.values())

    def heldout_digest_of(self, job: "Job") -> str:
        """The digest of the text on which a job's run is measured; "" for fine-tunings alone."""
        variant = self.runs[job.variant]
        return variant.validation_digest if job.field else variant.heldout_digest

    def config_digest(self, job: "Job", swept: Mapping[str, Any]) -> str:
        """Returns a digest of the configs of a job's runs. swept: the field of a sweep -> the value that it chose."""
        variant = self.runs[job.variant]
        tuned = [run for name, run in variant.fine_tunings.items() if name in self.measures_of(job)]
        fields = [job.name, dict(swept), *([self.kept_fields(run) for run in runs] for runs in (variant.stages, tuned))]
        text = json.dumps(fields, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def kept_fields(self, run: PlannedRun) -> dict[str, Any]:
        """Returns the config of a run without the fields `later`."""

        def kept(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
            return {
                name: kept(value, f"{prefix}{name}.") if isinstance(value, Mapping) else value
                for name, value in fields.items()
                if prefix + name not in self.later
            }

        return kept(run.fields)

    @functools.cached_property
    def scratch(self) -> dict[str, VariantPlan]:
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
        plans = {}
        for names, runs in found:
            name = SCRATCH if len(found) == 1 else f"{SCRATCH}_{names[0]}"
            plans[name] = VariantPlan(name=name, fine_tunings=runs, shared_by=tuple(names))
        return plans


def find_confounders(study: Study, stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Returns field -> its value in each variant, of what differs between variants beyond the question of a study.

    A stage is a variant's run, or the start before it. In the stages whose own overrides or sweep name a field, the
    field is the question: they may have any value. All other stages must have one value of it; else the field is a
    confounder, however many stages name it. Objectives, fields of `varies`, and what follows from the budget may
    differ. Sweeps of one field over different values are a confounder too, "sweep of FIELD".

    stages: variant -> the configs of its stages, as nested mappings, the run's own last.
    """
    runs = {name: [flatten(config) for config in configs] for name, configs in stages.items()}
    found: dict[str, list[Any]] = {}
    for field, values in _differing(runs).items():
        others = [run.get(field) for name in runs for run in _not_naming(field, study.variants[name], runs[name])]
        if field not in study.varies and any(value != others[0] for value in others):
            found[field] = values
    swept = {name: study.variants[name].sweep for name in runs}
    for field in dict.fromkeys(field for sweep in swept.values() for field in sweep):
        values = [set(sweep.get(field, ())) for sweep in swept.values()]
        if field not in study.varies and any(value != values[0] for value in values):
            found[f"sweep of {field}"] = [[*sweep[field]] if field in sweep else "none" for sweep in swept.values()]
    return found


def find_questions(study: Study, stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Returns field -> its value in each variant, of what differs because the study says so, besides objectives.

    These are the fields of `varies`, and those that overrides of variants name and that are no confounder. Arguments as
    for `find_confounders`.
    """
    runs = {name: [flatten(config) for config in configs] for name, configs in stages.items()}
    confounders = find_confounders(study, stages)
    return {field: values for field, values in _differing(runs).items() if field not in confounders}


def _differing(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Returns field -> its value in each variant, of the fields that differ, without objectives and reporting.

    runs: variant -> the flat configs of its stages.
    """
    every = [run for of_variant in runs.values() for run in of_variant]
    expected = {"train.steps"}  # the budget determines the steps
    expected |= set.intersection(*map(unread_fields, every))
    found: dict[str, list[Any]] = {}
    for field in dict.fromkeys(field for run in every for field in run):
        if field in expected or field.startswith("objective.") or _REPORTING.fullmatch(field):
            continue
        if any(run.get(field) != every[0].get(field) for run in every):
            found[field] = [_shown([run.get(field) for run in of_variant]) for of_variant in runs.values()]
    return found


def _not_naming(field: str, variant: Variant, runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the stages of a variant whose overrides and sweep do not name `field`."""
    *starts, main = runs
    if variant.start is not None and field in variant.start.overrides:
        starts = []
    return [*starts, *([] if field in variant.overrides or field in variant.sweep else [main])]


def _shown(values: Sequence[Any]) -> Any:
    """Returns the value of a field in the stages of a variant; text if they differ."""
    return values[-1] if all(value == values[-1] for value in values) else ", then ".join(map(str, values))


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
        parts = [[*sweep_jobs(variant), *(Job(name, seed) for seed in seeds)] for name, variant in plan.runs.items()]
    else:
        parts = [[Job(name, seed)] for seed in seeds for name in plan.runs]
    if worker >= len(parts):
        raise ConfigError(f"--worker={worker}/{num_workers} has nothing to do: use at most {len(parts)} workers")
    return [job for part in parts[worker::num_workers] for job in part]


def sweep_jobs(variant: VariantPlan) -> list[Job]:
    """Returns the jobs of a variant's sweep, one for each value."""
    return [Job(variant.name, 0, field, value) for field, values in variant.sweep.items() for value in values]


def with_fields(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested `fields` with dotted fields replaced. `fields` is unchanged."""
    result = dict(fields)
    for field, value in changes.items():
        section, _, rest = field.partition(".")
        result[section] = with_fields(result[section], {rest: value}) if rest else value
    return result
