"""Learning-rate schedules: linear warm-up from zero, then a cosine, a line, an inverse root, a constant or WSD.

A run has one such cycle, or those of `optimizer.cycles`.
"""

import re
from typing import NamedTuple

import jax.numpy as jnp
import optax

from contract.errors import ConfigError
from experiment.config import OptimizerConfig

_ROOTS = ("inverse_sqrt", "rsqrt")


class Cycle(NamedTuple):
    """The steps of one warm-up and schedule: from update `begin` on, counted from 0, to `end`."""

    begin: int
    end: int


def cycles_of(config: OptimizerConfig, steps: int) -> tuple[Cycle, ...]:
    """Returns the cycles of `optimizer.cycles`; one of all `steps` where the field is "".

    Raises ConfigError for other text than "0-END,BEGIN-END,...", and for cycles that do not begin in order.
    """
    if not config.cycles:
        return (Cycle(0, steps),)
    field = f"optimizer.cycles={config.cycles!r}"
    if not re.fullmatch(r"\d{1,9}-\d{1,9}(, *\d{1,9}-\d{1,9})*", config.cycles, re.ASCII):
        raise ConfigError(f"{field} must be the first and the last step of each cycle, as in '0-400,400-800'")
    cycles = tuple(Cycle(*map(int, part.split("-"))) for part in config.cycles.split(","))
    begins = [cycle.begin for cycle in cycles]
    if begins[0] != 0 or begins != sorted(set(begins)) or any(cycle.end <= cycle.begin for cycle in cycles):
        raise ConfigError(f"{field}: the first cycle must begin at 0, and each later than the one before")
    return cycles


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates already made: int or int32 [] -> float32 [].

    `schedule(n)` is the rate of update n, counted from 0; a run uses schedule(0) to schedule(steps - 1). The rate rises
    linearly from 0 at n = 0 to `learning_rate` at n = `warmup_steps` (0: no warm-up). After the warm-up it is
      cosine        half a cosine down to final_learning_rate_fraction * learning_rate at n = `steps`, then constant.
      linear        a straight line to the same value (BERT, BART, ELECTRA: to 0), then constant.
      inverse_sqrt  learning_rate * sqrt(warmup_steps / n).
      rsqrt         the same, without a warm-up: learning_rate until n = `warmup_steps` (T5X's rsqrt_decay).
      constant      learning_rate.
      wsd           warm-up, stable, decay (MiniCPM, Hu et al. 2024): learning_rate until the last round(steps *
                    decay_fraction) updates. Over these, after a fraction x of them, the rate has fallen by a fraction
                    sqrt(x) of the way to final_learning_rate_fraction * learning_rate, then it is constant. Hägele et
                    al. (2024) found this shape, "1-sqrt", the best, with decays of 20%; MiniCPM decays exponentially
                    over 10%.

    T5's schedule (T5X pretrain.gin, base 1.0 and 10,000 warm-up steps) is 1 / sqrt(max(n, warmup_steps)), which is
    rsqrt with learning_rate=0.01 and warmup_steps=10000. It suits Adafactor, which has no momentum; Adam's first steps
    need the small rates of inverse_sqrt, which is equal from step 10,000 on.

    With `optimizer.cycles` each cycle has such a warm-up and schedule, counted from its begin, with its length for
    `steps`. A cycle's schedule continues after its end, as described above, until the next cycle begins; a cycle that
    begins before the end of the one before it cuts that one short. The schedule then does not depend on `steps`.

    Raises ConfigError for a cycle that is too short for its warm-up or decay, and as `cycles_of` does.
    """
    cycles = cycles_of(config, steps)
    if cycles[-1].begin >= steps:
        raise ConfigError(
            f"optimizer.cycles={config.cycles!r}: the last cycle must begin before the run's end at step {steps}"
        )
    for begin, end in cycles:
        name = f"the {end - begin} steps of the cycle {begin}-{end}" if config.cycles else f"train.steps={steps}"
        _check(config, end - begin, name)
    first, *others = [_make_cycle(config, cycle.end - cycle.begin) for cycle in cycles]
    return optax.join_schedules([first, *others], [cycle.begin for cycle in cycles[1:]]) if others else first


def _make_cycle(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the schedule of a cycle of `steps`, which counts from its begin."""
    peak, warmup = config.learning_rate, config.warmup_steps
    final = peak * config.final_learning_rate_fraction
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, steps - warmup, alpha=config.final_learning_rate_fraction)
    elif config.schedule == "linear":
        after = optax.linear_schedule(peak, final, steps - warmup)
    elif config.schedule == "wsd":
        decay_steps = _decay_steps(config, steps)
        fraction = optax.linear_schedule(0.0, 1.0, decay_steps, transition_begin=steps - warmup - decay_steps)

        def after(count):
            return peak - (peak - final) * fraction(count) ** 0.5
    elif config.schedule in _ROOTS:

        def after(count):  # from the end of the warm-up, as join_schedules counts
            # join_schedules calls this function before the end of the warm-up too, with numbers below 0.
            return peak * (warmup / jnp.maximum(count + warmup, warmup)) ** 0.5
    else:
        after = optax.constant_schedule(peak)
    first = 0.0 if warmup and config.schedule != "rsqrt" else peak
    return optax.join_schedules([optax.linear_schedule(first, peak, warmup or 1), after], boundaries=[warmup])


def _decay_steps(config: OptimizerConfig, steps: int) -> int:
    return round(steps * config.decay_fraction)


def _check(config: OptimizerConfig, steps: int, length: str) -> None:
    """Raises ConfigError for a cycle of `steps` that is too short.

    length: names the cycle's steps in a message.
    """
    if config.warmup_steps >= steps:
        raise ConfigError(
            f"optimizer.warmup_steps={config.warmup_steps} must be below {length}: the steps would end before the "
            f"warm-up does: set optimizer.warmup_steps={max(steps // 10, min(1, steps - 1))}"
        )
    if config.schedule in _ROOTS and config.warmup_steps == 0:
        raise ConfigError(
            f"optimizer.warmup_steps=0 with optimizer.schedule={config.schedule!r}: the rate is "
            "learning_rate * sqrt(warmup_steps / step), so set warmup_steps to 1 or more"
        )
    if config.schedule == "wsd" and not 1 <= _decay_steps(config, steps) <= steps - config.warmup_steps:
        raise ConfigError(
            f"optimizer.decay_fraction={config.decay_fraction} of {length} is a decay of "
            f"{_decay_steps(config, steps)} steps: with optimizer.warmup_steps={config.warmup_steps} the decay must "
            f"have 1 to {steps - config.warmup_steps}"
        )
