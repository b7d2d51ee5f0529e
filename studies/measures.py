"""What a study measures of a trained run: a number."""

import abc
import dataclasses
import functools
import hashlib
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax

from command.flags import override_flags, resolve
from configs.studies.base import better_of
from contract.errors import ConfigError
from evaluation.cross_evaluate import scoring_experiment, scoring_params
from evaluation.floors import heldout_floors
from evaluation.probes.command import answer, check_probe, make_probe
from evaluation.probes.exact_match import ExactMatch
from evaluation.probes.heldout_text import Infilling
from evaluation.probes.linear import Linear
from evaluation.probes.probe import Probe
from experiment.config import from_mapping
from experiment.experiment import Experiment
from experiment.outside import code_flag
from files.paths import read_bytes
from huggingface.vocabulary import VOCABULARY
from models.parameters import Params
from run.compiled_run import make_run
from run.corpus import open_corpora
from run.evaluation import evaluate
from run.restore import load_experiment, load_params, reading_mesh
from workdir.run_config import flatten
from workdir.workdir import Workdir

TOTALS = ("raw_tokens", "flops", "seconds")  # of the training, in every line of metrics
# Fields of config.data that are the run's in a measure under another config: its vocabulary and its text.
_OF_RUN = (*VOCABULARY, "source", "path", "heldout_path", "document_per", "text_key", "on_unreadable", "filters")
_OF_RUN += ("cache_dir", "read_by_range")
_PROBE_METRICS = [f"{prefix}{unit}_per_byte" for prefix in ("", "masked_", "pseudo_") for unit in ("bits", "nats")]
_PROBE_METRICS += ["exact_match", "accuracy"]
# Metrics of probes -> by what their floors, as printed, are multiplied.
_UNITS_OF_FLOORS = {"bits_per_byte": 1.0, "nats_per_byte": math.log(2), "accuracy": 1.0, "exact_match": 1.0}


@dataclasses.dataclass(frozen=True)
class RunValue:
    """What a measure says about a run.

    Attributes:
      value: None where the run has no value.
      margin: the standard error of the value over held-out documents; None where it is unknown.
      floors: the name of a floor (evaluation/floors.py) -> its value, in the unit of the measure.
    """

    value: float | None
    margin: float | None = None
    floors: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Trained:
    """A finished run, opened when a measure needs it.

    Args:
      workdir: of the run; it does not exist without pre-training.
      start: of the run from which it started, if any.
      fine_tunings: measure -> of the run that was fine-tuned for it.
    """

    def __init__(self, workdir: Workdir, start: Workdir | None, fine_tunings: Mapping[str, Workdir]):
        self.workdir, self.fine_tunings, self._start = workdir, fine_tunings, start
        self._answers: dict[str, Mapping[str, Any]] = {}

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The held-out metrics of the run. Raises ConfigError as `finished_lines` does."""
        return finished_lines(self.workdir)

    @functools.cached_property
    def before(self) -> dict[str, Any]:
        """The totals of the start."""
        return finished_lines(self._start)[-1] if self._start is not None else dict.fromkeys(TOTALS, 0)

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The run's experiment, on this machine."""
        return load_experiment(self.workdir.path)

    @functools.cached_property
    def mesh(self):
        """The devices that read the run."""
        return reading_mesh(self.experiment, batch_size=self.experiment.train.batch_size)

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of the last step."""
        return load_params(self.experiment, self.workdir.path, mesh=self.mesh)[0]

    def answer(self, probe: Probe, config: str, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the answer of a probe of the run's model under a config; measures of equal probes share it."""
        key = repr((probe, config, overrides))
        if key not in self._answers:
            experiment, params = self.under(config, overrides)
            corpora = make_run(experiment, mesh=self.mesh).corpora if probe.reads_corpus else None
            self._answers[key] = answer(probe, experiment, params, corpora, self.mesh)
        return self._answers[key]

    def under(self, config: str, overrides: Mapping[str, Any]) -> tuple[Experiment, Params]:
        """The run's model under another config, with its parameters; under its own if `config` is ""."""
        if not config:
            return self.experiment, self.params
        experiment = _scored_under(config, overrides, self.experiment)
        return experiment, scoring_params(self.experiment, experiment, self.params)


def finished_lines(workdir: Workdir) -> list[dict[str, Any]]:
    """Returns the held-out metrics of a finished run. Raises ConfigError if those of its last step are missing."""
    lines, steps = workdir.metrics("eval"), workdir.config()["train"]["steps"]
    if not lines or lines[-1]["step"] != steps:
        raise ConfigError(f"{workdir} lacks the evaluation of step {steps}: delete it to train the run again")
    return lines


def _scored_under(config: str, overrides: Mapping[str, Any], trained: Experiment) -> Experiment:
    """Returns the experiment that scores the model of `trained` under `config`, on the text of its own corpus."""
    data = trained.config["data"]
    if data["sources"]:
        both = (section["sources"].items() for section in (data, resolve(config, overrides, config)["data"]))
        ours, theirs = ({name: (of["source"], of["path"]) for name, of in sources} for sources in both)
        if ours != theirs:
            raise ConfigError(
                f"config={config!r} has the corpora {theirs or 'of one text'}, and the runs read {ours}: override "
                "data.sources in the measure too, or measure without a config, as metric='loss/NAME' of a corpus"
            )
    overrides = {f"data.{name}": data[name] for name in _OF_RUN} | dict(overrides)
    return scoring_experiment(trained, resolve(config, overrides, config), name=config, overrides=overrides)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure(abc.ABC):
    """One measure of a study. Its fields are those of the function of configs/studies/base.py with its kind.

    better: which values are better.
    only: the variants that are measured; (): all.
    """

    better: Literal["lower", "higher"]
    only: tuple[str, ...] = ()

    kind: ClassVar[str]

    @property
    def files(self) -> Sequence[str]:
        """The files that it reads besides the corpora of a run."""
        return ()

    @property
    def warnings(self) -> Sequence[str]:
        """What a reader of its values must know first."""
        return ()

    def check(self, experiment: Experiment) -> None:  # noqa: B027  most runs have every measure
        """Raises ConfigError if a run of `experiment` cannot be measured."""

    def scored(self, experiment: Experiment) -> Experiment:
        """Returns the experiment that scores a run of `experiment`, whose corpora have the text."""
        return experiment

    @abc.abstractmethod
    def measure(self, name: str, trained: Trained) -> RunValue:
        """Returns what the measure, named `name`, says about a run."""

    def applies_to(self, variant: str) -> bool:
        """Whether the runs of a variant are measured."""
        return not self.only or variant in self.only

    def command(self, trained: Trained) -> str:
        """Returns the command that measures the run again; "" if its training prints the value."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scored(Measure):
    """A measure of a run's model under a config of its own, or under that of the run if `config` is ""."""

    config: str
    overrides: dict[str, Any]
    metric: str

    def scored(self, experiment):
        return _scored_under(self.config, self.overrides, experiment) if self.config else experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutMetric(_Scored):
    """See configs.studies.base.heldout_loss."""

    kind: ClassVar = "heldout"

    def check(self, experiment):
        _check_heldout_metric(self.scored(experiment), self.metric)

    def command(self, trained):
        return _evaluate(trained, self.config, self.overrides, {}) if self.config else ""

    def measure(self, name, trained):
        if not self.config:
            floors = _heldout_floors(trained.experiment, self.metric)
            return _measured(trained.lines[-1], self.metric, name, floors)
        experiment, params = trained.under(self.config, self.overrides)
        run = make_run(experiment, mesh=trained.mesh)
        floors = heldout_floors(experiment, run.corpora).get(self.metric, {})
        return _measured(evaluate(run, params), self.metric, name, floors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeMetric(_Scored):
    """See configs.studies.base.probe."""

    probe: str
    fields: dict[str, Any]

    kind: ClassVar = "probe"

    @property
    def files(self):
        return [path for field in ("path", "test") if (path := self.fields.get(field))]

    @property
    def warnings(self):
        probe = self._probe()
        if not isinstance(probe, Linear) or not (count := probe.test_texts_in_path):
            return ()
        return [f"{count:,} of the texts of {probe.test}, which are scored, are in {probe.path} too"]

    def cut_texts(self, experiment: Experiment) -> int:
        """Returns how many labelled texts do not fit the rows of a run, whose states are then those of their starts."""
        probe = self._probe()
        return probe.cut_texts(self.scored(experiment)) if isinstance(probe, Linear) else 0

    def _probe(self):
        return make_probe(self.probe, self.fields)

    def check(self, experiment):
        experiment, probe = self.scored(experiment), self._probe()
        check_probe(probe, experiment)
        *fields, leaf = self.metric.split(".")
        known, example = None, "bits_per_byte"
        if isinstance(probe, Infilling):
            known, example = [["spans", str(span)] for span in probe.spans], "spans.8.bits_per_byte"
        elif isinstance(probe, Linear):
            known, example = [["labels", count] for count in probe.labels], f"labels.{probe.labels[-1]}.accuracy"
        elif isinstance(probe, ExactMatch) and (groups := probe.groups(experiment)) is not None:
            known = [[], *(["groups", group] for group in groups)]
            example = ".".join([*known[-1], "exact_match"])
        if leaf not in _PROBE_METRICS or (known is not None and fields not in known):
            raise ConfigError(
                f"metric={self.metric!r} is not a number of --probe={self.probe}: name it as in {example!r}, one of "
                f"{', '.join(_PROBE_METRICS)}"
            )

    def command(self, trained):
        given = {name: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for name, v in self.fields.items()}
        return _evaluate(trained, self.config, self.overrides, {"probe": self.probe} | given)

    def measure(self, name, trained):
        line = trained.answer(self._probe(), self.config, self.overrides)
        return _measured(line, self.metric, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning(Measure):
    """See configs.studies.base.fine_tuning."""

    config: str
    overrides: dict[str, Any]
    metric: str

    kind: ClassVar = "fine_tuning"

    def check_metric(self, fine_tuned: Experiment) -> None:
        """Raises ConfigError if evaluations of the fine-tuned run do not have the metric."""
        _check_heldout_metric(fine_tuned, self.metric)

    def measure(self, name, trained):
        workdir = trained.fine_tunings[name]
        floors = _heldout_floors(load_experiment(workdir.path), self.metric)
        return _measured(finished_lines(workdir)[-1], self.metric, name, floors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput(Measure):
    """See configs.studies.base.throughput."""

    kind: ClassVar = "throughput"

    def measure(self, name, trained):
        return RunValue(trained.lines[-1]["raw_tokens"] / trained.lines[-1]["seconds"])


MEASURES: dict[str, type[Measure]] = {cls.kind: cls for cls in (HeldoutMetric, ProbeMetric, FineTuning, Throughput)}


def digests_of(measures: Iterable[Measure]) -> dict[str, str]:
    """Returns "digest of FILE" -> a hash of its bytes, for each file that `measures` read."""
    files = dict.fromkeys(file for measure in measures for file in measure.files)
    contents = {file: read_bytes(os.path.expanduser(file)) for file in files}
    return {f"digest of {file}": hashlib.blake2b(of, digest_size=8).hexdigest() for file, of in contents.items()}


def _evaluate(trained: Trained, config: str, overrides: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    """Returns the command of train.evaluate for a run. flags: besides those of the workdir and the config."""
    experiment = trained.experiment
    if config:
        default = flatten(resolve(config, {}, config))
        ours = flatten({"data": {name: experiment.config["data"][name] for name in _OF_RUN}})
        overrides = {field: v for field, v in ours.items() if default.get(field) != v} | dict(overrides)
    of_config = [f"--config={config}"] * bool(config) + override_flags(overrides)
    given = [f"--{name}={value}" for name, value in flags.items()]
    command = shlex.join(["python", "-m", "train.evaluate", f"--workdir={trained.workdir}", *of_config, *given])
    return command + code_flag(experiment.learner, experiment.denoisers)


def make_measure(name: str, fields: Mapping[str, Any]) -> Measure:
    """Returns the measure of a study. Raises ConfigError for an unknown kind or field."""
    kind = fields.get("kind")
    if kind not in MEASURES:
        raise ConfigError(f"measures.{name}.kind={kind!r} must be {', '.join(MEASURES)}")
    given = {field: value for field, value in fields.items() if field not in ("kind", "success_at")}
    if given.get("overrides") and not given["config"]:
        raise ConfigError(f"measures.{name}: overrides need config=..., of which they change fields: add it")
    known, better = better_of(str(given.get("metric", ""))), given.get("better")
    if better == "":
        raise ConfigError(
            f"measures.{name} must say which values of metric={given['metric']!r} are better: better='lower'"
        )
    if known and better in ("higher", "lower") and better != known:
        raise ConfigError(
            f"measures.{name}: {known} values of metric={given['metric']!r} are better: remove better={better!r}"
        )
    every = {field.name: field.default for field in dataclasses.fields(MEASURES[kind])}
    defaults = {field: value for field, value in every.items() if value is not dataclasses.MISSING}
    return from_mapping(MEASURES[kind], defaults | given, f"measures.{name}")


def _check_heldout_metric(experiment: Experiment, metric: str) -> None:
    """Raises ConfigError if `metric` is not in an evaluation of `experiment`. Traces the loss; nothing is compiled."""
    names = ["loss", "perplexity", "accuracy", "loss_stderr"]
    if metric in names:
        return
    learner, documents = experiment.learner, open_corpora(experiment, show_progress=False).heldout_documents
    batch = experiment.heldout(documents).batches[0]

    def sums(params: Params, batch: Any) -> Any:
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[1]

    names += jax.eval_shape(sums, experiment.params_shapes, batch).get("ratios", {})
    names += [f"{kind}/{name}" for name in experiment.metric_groups for kind in ("loss", "accuracy")]
    names += [experiment.byte_metric] if experiment.byte_metric else []
    if metric not in names:
        raise ConfigError(f"metric={metric!r} is not in its evaluations: use one of {', '.join(names)}")


def _heldout_floors(experiment: Experiment, metric: str) -> Mapping[str, float]:
    return heldout_floors(experiment, open_corpora(experiment, show_progress=False)).get(metric, {})


def _measured(line: Mapping[str, Any], metric: str, name: str, floors: Mapping[str, float] | None = None) -> RunValue:
    """Returns a field of a JSON line, with its standard error and its floors where these have fields next to it.

    metric: "spans.8.exact_match" is a field within fields. null is None.
    floors: in place of those of the line.
    """
    *fields, leaf = [metric] if metric in line else metric.split(".")
    part: Any = line
    for field in fields:
        part = part.get(field) if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or leaf not in part:
        known = ", ".join(key for key, item in line.items() if isinstance(item, int | float | Mapping))
        raise ConfigError(f"measure {name}: metric={metric!r} is not in the answer: it has {known}")
    value = part[leaf]
    if value is not None and not isinstance(value, int | float):
        raise ConfigError(f"measure {name}: metric={metric!r} is not a number: {value!r}")
    if floors is None:
        # Those next to bits per byte are in bits per byte, also where an exact match is there too.
        is_bits = any(key.endswith("bits_per_byte") for key in part)
        units = {unit: f for unit, f in _UNITS_OF_FLOORS.items() if unit.endswith("per_byte") or not is_bits}
        factors = {leaf.removesuffix(unit): factor for unit, factor in units.items() if leaf.endswith(unit)}
        floors = {
            floor: printed * factor
            for prefix, factor in factors.items()
            for floor, printed in part.get(f"{prefix}floors", {}).items()
        }
    before, slash, denoiser = leaf.partition("/")  # of loss/clm it is loss_stderr/clm
    margin = part.get(f"{before}_stderr{slash}{denoiser}")
    return RunValue(None if value is None else float(value), margin, floors)
