"""The learning rate of a run that continues with another length: compared with the run's schedule so far.

A schedule that depends on the length of the run, such as a cosine, has another rate at every step once train.steps
changes. `optimizer.cycles` states which schedule is meant.
"""

import math
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from experiment.config import OptimizerConfig, TrainConfig, from_mapping
from experiment.experiment import Experiment
from experiment.schedules import cycles_of, make_schedule

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
    changes without such a choice; and for fewer steps than the run has made.
    """
    optimizer, steps = experiment.optimizer, experiment.train.steps
    old = from_mapping(OptimizerConfig, saved["optimizer"], "optimizer")
    old_steps = from_mapping(TrainConfig, saved["train"], "train").steps
    epochs = experiment.train.epochs
    length = f"train.epochs={epochs:g}, {steps} steps," if epochs else f"train.steps={steps}"
    if steps < step:
        raise ConfigError(
            f"{length} is below step {step}, from which the run continues: set train.steps={step} or more, or choose "
            "another --workdir"
        )
    rate, new_rate = _rate(old, old_steps, step), _rate(optimizer, steps, step)
    tolerance = _ROUNDING * optimizer.learning_rate
    if steps == step or math.isclose(rate, new_rate, rel_tol=_ROUNDING, abs_tol=tolerance):
        return []
    change = f"the learning rate after step {step} from {rate:.6g} to {new_rate:.6g}"
    if optimizer.cycles not in ("", old.cycles):
        return [f"optimizer.cycles={optimizer.cycles} changes {change}"]
    cycles, end = old.cycles or f"0-{old_steps}", cycles_of(old, old_steps)[-1].end
    choices = f"optimizer.cycles={cycles} (the schedule so far, which ends at {_rate(old, old_steps, end):.6g})"
    if steps > end:
        choices += f" or {cycles},{end}-{steps} (then a new warm-up and {optimizer.schedule} schedule)"
    raise ConfigError(f"{length} changes {change}, because the run had {old_steps} steps: set {choices}")


def how_to_continue(experiment: Experiment) -> str:
    """Returns how a run that has ended is made longer, and what its learning rate is then, as a sentence."""
    optimizer, train = experiment.optimizer, experiment.train
    field, rate = "train.epochs" if train.epochs else "train.steps", _rate(optimizer, train.steps, train.steps)
    if optimizer.cycles or optimizer.schedule in _WITHOUT_END:
        return f"To continue, raise {field}: the learning rate continues at {rate:.6g}"
    one, steps = f"--config.optimizer.cycles=0-{train.steps}", 2 * train.steps
    return (
        f"To continue, raise {field} and choose a learning rate. For {steps} steps: {one} (it stays at {rate:.6g}), or "
        f"{one},{train.steps}-{steps} (a new warm-up and {optimizer.schedule} schedule)"
    )


def _rate(optimizer: OptimizerConfig, steps: int, step: int) -> float:
    """Returns the learning rate of the update after `step` updates."""
    return float(make_schedule(optimizer, steps)(step))
