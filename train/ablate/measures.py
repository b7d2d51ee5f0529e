"""What a study measures of a trained run: a number, or texts."""

import abc
import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from contract.errors import ConfigError
from models.parameters import Params
from train.ablate.resolve import resolve, scoring_overrides
from train.config import from_mapping
from train.experiment import Experiment
from train.generate.prompts import max_answer_length, not_a_language_model, read_prompt
from train.generate.sample import generate_answers, readable
from train.generate.sampling import Sampling
from train.heldout import evaluate
from train.probes import PROBES
from train.probes.command import answer, check_probe
from train.restore import language_model, load_experiment, load_params, reading_mesh
from train.run import make_run
from train.scoring import scoring_experiment, scoring_params

_SAMPLE_TOKENS = 64


class Trained:
    """A finished run, opened when a measure needs it."""

    def __init__(self, workdir: str, fine_tunings: Mapping[str, str]):
        """
        Args:
          workdir: of the run.
          fine_tunings: measure -> the workdir of the run that was fine-tuned for it.
        """
        self.workdir, self.fine_tunings = workdir, fine_tunings
        self.lines = metrics_lines(workdir)

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The run's experiment, on this machine."""
        return load_experiment(self.workdir)

    @functools.cached_property
    def mesh(self):
        """The devices that read the run."""
        return reading_mesh(self.experiment, batch_size=self.experiment.train.batch_size)

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of the last step."""
        return load_params(self.experiment, self.workdir, mesh=self.mesh)[0]

    def under(self, config: str, overrides: Mapping[str, Any]) -> tuple[Experiment, Params]:
        """The run's model under another config, with its parameters; under its own if `config` is ""."""
        if not config:
            return self.experiment, self.params
        experiment = scored_under(config, overrides, self.experiment)
        return experiment, scoring_params(self.experiment, experiment, self.params)


def metrics_lines(workdir: str, split: str = "eval") -> list[dict[str, Any]]:
    """Returns the lines of a split in a run's metrics.jsonl. Raises ConfigError if the file cannot be read."""
    path = os.path.join(workdir, "metrics.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return [line for line in lines if line["split"] == split]


def scored_under(config: str, overrides: Mapping[str, Any], trained: Experiment) -> Experiment:
    """Returns the experiment that scores the model of `trained` under `config`, on the text of its own corpus."""
    overrides = scoring_overrides(overrides, trained)
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
    is_compared: ClassVar[bool] = True

    @abc.abstractmethod
    def check(self, experiment: Experiment) -> None:
        """Raises ConfigError if a run of `experiment` cannot be measured."""

    @abc.abstractmethod
    def value(self, name: str, trained: Trained) -> Any:
        """Returns the measure, named `name`, of a run; None where it has no value."""

    def applies_to(self, variant: str) -> bool:
        """Whether the runs of a variant are measured."""
        return not self.only or variant in self.only


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutMetric(Measure):
    """See configs.studies.base.heldout_loss."""

    config: str
    overrides: dict[str, Any]
    metric: str

    kind: ClassVar = "heldout"

    def check(self, experiment):
        if self.config:
            scored_under(self.config, self.overrides, experiment)

    def value(self, name, trained):
        if not self.config:
            return _metric(trained.lines[-1], self.metric, name)
        experiment, params = trained.under(self.config, self.overrides)
        return _metric(evaluate(make_run(experiment, mesh=trained.mesh), params), self.metric, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeMetric(Measure):
    """See configs.studies.base.probe."""

    probe: str
    metric: str
    config: str
    overrides: dict[str, Any]
    fields: dict[str, Any]

    kind: ClassVar = "probe"

    def _probe(self):
        if self.probe not in PROBES:
            raise ConfigError(f"probe={self.probe!r} must be {', '.join(PROBES)}")
        try:
            return PROBES[self.probe](**self.fields)
        except TypeError as error:
            raise ConfigError(f"probe={self.probe!r}: {error}") from error

    def check(self, experiment):
        if self.config:
            experiment = scored_under(self.config, self.overrides, experiment)
        check_probe(self._probe(), experiment)

    def value(self, name, trained):
        probe = self._probe()
        experiment, params = trained.under(self.config, self.overrides)
        documents = make_run(experiment, mesh=trained.mesh).heldout_documents if probe.reads_corpus else None
        return _metric(answer(probe, experiment, params, documents, trained.mesh), self.metric, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning(Measure):
    """See configs.studies.base.fine_tuning."""

    config: str
    overrides: dict[str, Any]
    metric: str

    kind: ClassVar = "fine_tuning"

    def check(self, experiment):
        """Nothing: the plan of the study makes the experiment of the fine-tuning, which checks it."""

    def value(self, name, trained):
        return _metric(metrics_lines(trained.fine_tunings[name])[-1], self.metric, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput(Measure):
    """See configs.studies.base.throughput."""

    kind: ClassVar = "throughput"

    def check(self, experiment):
        """Nothing: every run has it."""

    def value(self, name, trained):
        return trained.lines[-1]["raw_tokens"] / trained.lines[-1]["seconds"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensToLoss(Measure):
    """See configs.studies.base.tokens_to_loss."""

    loss: float

    kind: ClassVar = "tokens_to_loss"

    def check(self, experiment):
        """Nothing: every run has a held-out loss."""

    def value(self, name, trained):
        points = [(line["raw_tokens"], line["loss"]) for line in trained.lines if line["loss"] is not None]
        return tokens_to(self.loss, points)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(Measure):
    """See configs.studies.base.samples."""

    prompts: tuple[str, ...]
    better: Literal["lower", "higher"] = "lower"  # not compared

    kind: ClassVar = "samples"
    is_compared: ClassVar = False

    def check(self, experiment):
        if experiment.learner.language_model(experiment.params_shapes) is None or not experiment.model.has_decoder:
            raise not_a_language_model(experiment)
        for prompt in self.prompts:
            read_prompt(experiment, prompt, None)

    def value(self, name, trained):
        model = language_model(trained.experiment, trained.params)
        assert model is not None  # check
        return {prompt: self._text(*model, prompt) for prompt in self.prompts}

    def _text(self, experiment: Experiment, params: Params, text: str) -> str:
        prompt, _ = read_prompt(experiment, text, None)
        greedy = Sampling(temperature=0.0, top_k=0, top_p=1.0)
        most = min(max_answer_length(experiment, prompt), _SAMPLE_TOKENS)
        [tokens] = generate_answers(experiment, params, prompt, greedy, max_tokens=most, num_samples=1, seed=0)
        return readable(experiment, prompt.prompting.complete(prompt.text, tokens, experiment.vocab))


MEASURES: dict[str, type[Measure]] = {
    cls.kind: cls for cls in (HeldoutMetric, ProbeMetric, FineTuning, Throughput, TokensToLoss, Samples)
}


def make_measure(name: str, fields: Mapping[str, Any]) -> Measure:
    """Returns the measure of a study. Raises ConfigError for an unknown kind or field."""
    kind = fields.get("kind")
    if kind not in MEASURES:
        raise ConfigError(f"measures.{name}.kind={kind!r} must be {', '.join(MEASURES)}")
    given = {field: value for field, value in fields.items() if field != "kind"}
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(MEASURES[kind])
        if field.default is not dataclasses.MISSING
    }
    return from_mapping(MEASURES[kind], defaults | given, f"measures.{name}")


def tokens_to(loss: float, points: list[tuple[float, float]]) -> float | None:
    """Returns where a curve of (tokens, loss) first reaches `loss`, linear between points; None if it does not."""
    before: tuple[float, float] | None = None
    for tokens, value in points:
        if value <= loss:
            if before is None:
                return float(tokens)
            share = (before[1] - loss) / (before[1] - value)
            return before[0] + share * (tokens - before[0])
        before = tokens, value
    return None


def _metric(line: Mapping[str, Any], metric: str, name: str) -> float | None:
    """Returns a field of a JSON line; "by_length.8.exact_match" is a field within a field. None for null."""
    value: Any = line
    for part in [metric] if metric in line else metric.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(key for key, item in line.items() if isinstance(item, int | float | Mapping))
            raise ConfigError(f"measure {name}: metric={metric!r} is not in the answer: it has {known}")
        value = value[part]
    if value is not None and not isinstance(value, int | float):
        raise ConfigError(f"measure {name}: metric={metric!r} is not a number: {value!r}")
    return None if value is None else float(value)
