"""Learning-rate schedules: linear warm-up from zero, then a cosine, a line, an inverse root, a constant or WSD."""

import optax

from contract.errors import ConfigError
from contract.ranges import check_ranges
from train.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates already made: int or int32 [] -> float32 [].

    `schedule(n)` is the rate of update n, counted from 0; a run uses schedule(0) to schedule(steps - 1). The rate rises
    linearly from 0 at n = 0 to `learning_rate` at n = `warmup_steps` (0: no warm-up). After the warm-up it is
      cosine        half a cosine down to final_learning_rate_fraction * learning_rate at n = `steps`, then constant.
      linear        a straight line to the same value (BERT, BART, ELECTRA: to 0), then constant.
      inverse_sqrt  learning_rate * sqrt(warmup_steps / n).
      constant      learning_rate.
      wsd           warm-up, stable, decay (MiniCPM, Hu et al. 2024): learning_rate until the last round(steps *
                    decay_fraction) updates. Over these, after a fraction x of them, the rate has fallen by a fraction
                    sqrt(x) of the way to final_learning_rate_fraction * learning_rate, then it is constant. Hägele et
                    al. (2024) found this shape, "1-sqrt", the best, with decays of 20%; MiniCPM decays exponentially
                    over 10%.

    T5's schedule (T5X pretrain.gin, base 1.0 and 10,000 warm-up steps) is 1 / sqrt(max(n, warmup_steps)): constant
    during the warm-up. inverse_sqrt with learning_rate=0.01 and warmup_steps=10000 is equal to it from step 10,000 on.
    It deliberately differs before, because Adam's first steps need a small rate.

    Raises ConfigError for a rate, fraction or number of steps out of range.
    """
    _check(config, steps)
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
    elif config.schedule == "inverse_sqrt":

        def after(count):  # from the end of the warm-up, as join_schedules counts
            return peak * (warmup / (count + warmup)) ** 0.5
    else:
        after = optax.constant_schedule(peak)
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], boundaries=[warmup])


def _decay_steps(config: OptimizerConfig, steps: int) -> int:
    return round(steps * config.decay_fraction)


def _check(config: OptimizerConfig, steps: int) -> None:
    """Raises ConfigError for a rate, fraction or number of steps out of range."""
    check_ranges(OptimizerConfig, vars(config), "optimizer")
    if config.warmup_steps >= steps:
        raise ConfigError(
            f"optimizer.warmup_steps={config.warmup_steps} must be below train.steps={steps}: "
            "the run would end before the warm-up does"
        )
    if config.schedule == "inverse_sqrt" and config.warmup_steps == 0:
        raise ConfigError(
            "optimizer.warmup_steps=0 with optimizer.schedule='inverse_sqrt': the rate is "
            "learning_rate * sqrt(warmup_steps / step), so set warmup_steps to 1 or more"
        )
    if config.schedule == "wsd" and not 1 <= _decay_steps(config, steps) <= steps - config.warmup_steps:
        raise ConfigError(
            f"optimizer.decay_fraction={config.decay_fraction} of train.steps={steps} is a decay of "
            f"{_decay_steps(config, steps)} steps: with optimizer.warmup_steps={config.warmup_steps} the decay must "
            f"have 1 to {steps - config.warmup_steps}"
        )
