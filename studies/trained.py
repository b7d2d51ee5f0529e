"""A finished run of a study, as measures read it."""

import functools
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from evaluation.cross_evaluate import scoring_experiment, scoring_params
from experiment.experiment import Experiment
from models.parameters import Params
from run.restore import load_experiment, load_params, reading_mesh
from workdir.metrics import metrics_path, read_metrics
from workdir.resolve import resolve, scoring_overrides
from workdir.run_config import read_config

TOTALS = ("raw_tokens", "flops", "seconds")  # of the training, in every line of metrics


class Trained:
    """A finished run, opened when a measure needs it."""

    def __init__(self, workdir: str, start: str, fine_tunings: Mapping[str, str]):
        """
        Args:
          workdir: of the run.
          start: the workdir of the run from which it started; "" without one.
          fine_tunings: measure -> the workdir of the run that was fine-tuned for it.
        """
        self.workdir, self.fine_tunings = workdir, fine_tunings
        self.lines = finished_lines(workdir)
        self.before = finished_lines(start)[-1] if start else dict.fromkeys(TOTALS, 0)  # totals of the start

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


def finished_lines(workdir: str) -> list[dict[str, Any]]:
    """Returns the held-out metrics of a finished run. Raises ConfigError if those of its last step are missing."""
    lines, steps = read_metrics(workdir, "eval"), read_config(workdir)["train"]["steps"]
    if not lines or lines[-1]["step"] != steps:
        raise ConfigError(
            f"{metrics_path(workdir)} lacks the evaluation of step {steps}: delete {workdir} to train the run again"
        )
    return lines


def scored_under(config: str, overrides: Mapping[str, Any], trained: Experiment) -> Experiment:
    """Returns the experiment that scores the model of `trained` under `config`, on the text of its own corpus."""
    overrides = scoring_overrides(overrides, trained)
    return scoring_experiment(trained, resolve(config, overrides, config), name=config, overrides=overrides)
