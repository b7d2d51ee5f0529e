"""The learning rate of a run that continues with another length: compared with the run's schedule so far.

A schedule that depends on the length of the run, such as a cosine, has another rate at every step once train.steps
changes. `optimizer.cycles` states which schedule is meant.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from experiment.config import OptimizerConfig, TrainConfig, from_mapping
from experiment.experiment import Experiment
from experiment.schedules import Cycle, cycles_of, cycles_text, make_schedule

# Of the peak rate, and of the rate: schedules are computed in float32.
_ROUNDING = 1e-6
# Schedules whose rates do not depend on the length of a cycle.
_WITHOUT_END = ("constant", "inverse_sqrt")


def check_schedule(saved: Mapping[str, Any], experiment: Experiment, step: int) -> list[str]:
    """Checks that a run of config `saved` continues after `step` at its learning rate, and returns warnings.

    Another rate at the next update is accepted, with a warning, only where `optimizer.cycles` is set to another value.

    Args:
      saved: the run's config, as nested dicts, with train.epochs resolved.
      experiment: of the continued run. It differs from `saved` in workdir.run_config.MAY_CHANGE alone.
      step: of the checkpoint from which the run continues.

    Raises ConfigError, one line with both rates and the values of `optimizer.cycles` to choose from, for a rate that
    changes without such a choice; and for a length or cycles that contradict the steps already made.
    """
    optimizer, steps = experiment.optimizer, experiment.train.steps
    old_optimizer = from_mapping(OptimizerConfig, saved["optimizer"], "optimizer")
    old_steps = from_mapping(TrainConfig, saved["train"], "train").steps
    if steps < step:
        raise ConfigError(
            f"{_length(experiment.train)} is below step {step}, from which the run continues: set train.steps={step} "
            "or more, or choose another --workdir"
        )
    old, new = cycles_of(old_optimizer, old_steps), cycles_of(optimizer, steps)
    is_chosen = optimizer.cycles not in ("", old_optimizer.cycles)
    if is_chosen and not _same_past(old, new, step):
        raise ConfigError(
            f"optimizer.cycles={optimizer.cycles} is another schedule for the {step} steps that the run has made: "
            f"begin with {cycles_text([cycle for cycle in old if cycle.begin < step])}; only the last end may change"
        )
    if steps == step and _same_past(old, new, step):
        return []  # no update is left
    rate, new_rate = _rate(old_optimizer, old_steps, step), _rate(optimizer, steps, step)
    tolerance = _ROUNDING * optimizer.learning_rate
    changes = not math.isclose(rate, new_rate, rel_tol=_ROUNDING, abs_tol=tolerance)
    if is_chosen:
        return [f"the learning rate after step {step} changes from {rate:.6g} to {new_rate:.6g}"] if changes else []
    if not _same_past(old, new, step):
        raise ConfigError(
            f"optimizer.cycles={optimizer.cycles!r} is another schedule than that of the {step} steps that the run has "
            f"made: set optimizer.cycles={old_optimizer.cycles or cycles_text(old)} again"
        )
    if changes:
        was = f"{old_steps} steps" + (f" and optimizer.cycles={old_optimizer.cycles}" if old_optimizer.cycles else "")
        raise ConfigError(
            f"{_length(experiment.train)} changes the learning rate after step {step} from {rate:.6g} to "
            f"{new_rate:.6g}, because the run had {was}: set {_choices(old_optimizer, old_steps, steps, step)}"
        )
    return []


def how_to_continue(experiment: Experiment) -> str:
    """Returns how a run that has ended is made longer, and what its learning rate is then, as a sentence."""
    optimizer, train = experiment.optimizer, experiment.train
    field, rate = "train.epochs" if train.epochs else "train.steps", _rate(optimizer, train.steps, train.steps)
    if optimizer.cycles or optimizer.schedule in _WITHOUT_END:
        return f"To continue, raise {field}: the learning rate continues at {rate:.6g}"
    one, steps = f"optimizer.cycles=0-{train.steps}", 2 * train.steps
    return (
        f"To continue, raise {field} and choose a learning rate. For {steps} steps: {one} (it stays at {rate:.6g}), or "
        f"{one},{train.steps}-{steps} (a new warm-up and {optimizer.schedule} schedule)"
    )


def _choices(optimizer: OptimizerConfig, old_steps: int, steps: int, step: int) -> str:
    """Returns the values of `optimizer.cycles` for a run that continues, with what each does."""
    old = cycles_of(optimizer, old_steps)
    end = max(old[-1].end, step)
    if steps >= old[-1].end:
        keeps = f"the learning rate stays at {_rate(optimizer, old_steps, end):.6g} from step {end} on"
    else:
        keeps = "the run ends before its schedule does"
    choices = [(old, keeps)]
    if steps > end:
        choices.append(
            ((*old, Cycle(end, steps)), f"a new warm-up and {optimizer.schedule} schedule from step {end} on")
        )
    if steps > old[-1].begin:
        choices.append(
            ((*old[:-1], Cycle(old[-1].begin, steps)), "one schedule up to the new end, with this change of the rate")
        )
    texts = []
    for cycles, effect in choices:
        with contextlib.suppress(ConfigError):  # such as a warm-up that is longer than the added steps
            make_schedule(dataclasses.replace(optimizer, cycles=cycles_text(cycles)), steps)
            texts.append(f"optimizer.cycles={cycles_text(cycles)} ({effect})")
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else texts[0]


def _same_past(old: tuple[Cycle, ...], new: tuple[Cycle, ...], step: int) -> bool:
    """Returns whether the cycles that begin before `step` are the same, except for the last one's end."""
    old, new = (tuple(cycle for cycle in cycles if cycle.begin < step) for cycles in (old, new))
    return old[:-1] == new[:-1] and old[-1].begin == new[-1].begin


def _length(train: TrainConfig) -> str:
    return f"train.epochs={train.epochs:g}, {train.steps} steps," if train.epochs else f"train.steps={train.steps}"


def _rate(optimizer: OptimizerConfig, steps: int, step: int) -> float:
    """Returns the learning rate of the update after `step` updates."""
    return float(make_schedule(optimizer, steps)(step))
