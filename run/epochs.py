"""Resolves `train.epochs`, passes over the training text, to `train.steps`, which needs the corpus."""

import dataclasses
import math
from fractions import Fraction

from contract.errors import ConfigError
from data.windows.documents import Documents
from data.windows.windowing import windows_per_epoch
from experiment.experiment import Experiment, make_experiment
from run.run import Run, make_run


def resolve_epochs(run: Run) -> Run:
    """Returns the run with `train.steps` set to the steps of `train.epochs`; `run` itself where train.epochs is 0.

    The schedule of the learning rate and everything else that depends on the number of steps is that of the resolved
    number. `experiment.config` then has both fields.

    Raises ConfigError where the config has no epoch (data.windows.windowing.windows_per_epoch), and where the schedule
    does not fit the resolved number of steps.
    """
    experiment = run.experiment
    epochs = experiment.train.epochs
    if not epochs:
        return run
    steps = steps_of(experiment, run.train_documents)
    try:
        resolved = make_experiment(experiment.config, steps=steps)
    except ConfigError as error:
        raise ConfigError(f"train.epochs={epochs:g} is {steps} steps with this corpus, and {error}") from error
    warnings = tuple(dict.fromkeys((*resolved.warnings, *experiment.warnings)))
    return make_run(dataclasses.replace(resolved, chosen=experiment.chosen, warnings=warnings), mesh=run.mesh)


def steps_of(experiment: Experiment, documents: Documents) -> int:
    """Returns the fewest steps that read every window of `documents` at least `train.epochs` times on average.

    ceil(epochs * windows of an epoch / windows of a step). A fraction of an epoch reads that fraction of the windows.
    The last step reads on into the next epoch where the quotient is not an integer.
    """
    windows = windows_per_epoch(documents, experiment.batch_spec)
    per_step = experiment.train.batch_size * experiment.data.examples_per_row
    # The decimal number that the config shows, not its binary approximation: 1.1 epochs of 10 windows are 11 windows.
    return math.ceil(Fraction(repr(experiment.train.epochs)) * windows / per_step)


def describe_epochs(experiment: Experiment, documents: Documents) -> str:
    """Returns how `train.epochs` was resolved, in words."""
    windows = windows_per_epoch(documents, experiment.batch_spec)
    per_step = experiment.train.batch_size * experiment.data.examples_per_row
    kind = "rows" if experiment.data.documents == "whole" else "windows"
    return (
        f"{experiment.train.steps:,}: {experiment.train.epochs:g} epochs of {windows:,} {kind}, {per_step:,} per step"
    )
