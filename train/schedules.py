"""Learning-rate schedules: linear warm-up from zero, then a cosine, a line, an inverse root, a constant or WSD."""

import optax

from contract.errors import ConfigError
from train.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate as a function of the number of updates already made: int or int32 [] -> float32 [].

    `schedule(n)` is the rate of update n, counted from 0, so an update of a run uses schedule(0) .. schedule(steps-1).
    It rises linearly from 0 at n = 0 to `learning_rate` at n = `warmup_steps` (0: no warm-up), then

      cosine        half a cosine down to final_learning_rate_fraction * learning_rate at n = `steps`, flat after it;
      linear        a straight line to the same end (BERT, BART, ELECTRA: to 0);
      inverse_sqrt  learning_rate * sqrt(warmup_steps / n);
      constant      learning_rate;
      wsd           warm-up, stable, decay (MiniCPM, Hu et al. 2024): learning_rate, and over the last round(steps *
                    decay_fraction) updates down to final_learning_rate_fraction * learning_rate at n = `steps`, flat
                    after it. With a share x of the decay done, sqrt(x) of the way down is: the "1-sqrt" shape that
                    Hägele et al. (2024) found best, with decays of 20%. MiniCPM's own is an exponential over 10%.

    T5's own schedule (T5X pretrain.gin, base 1.0 and 10,000 warm-up steps) is 1 / sqrt(max(n, warmup_steps)): *flat*
    through the warm-up. inverse_sqrt with learning_rate=0.01, warmup_steps=10000 is the same from step 10,000 on and
    differs before it on purpose: Adam's first steps are the ones that need a small rate.

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
        done = optax.linear_schedule(0.0, 1.0, decay_steps, transition_begin=steps - warmup - decay_steps)

        def after(count):
            return peak - (peak - final) * done(count) ** 0.5
    elif config.schedule == "inverse_sqrt":

        def after(count):  # join_schedules counts from the end of the warm-up
            return peak * (warmup / (count + warmup)) ** 0.5
    else:
        after = optax.constant_schedule(peak)
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], boundaries=[warmup])


def _decay_steps(config: OptimizerConfig, steps: int) -> int:
    return round(steps * config.decay_fraction)


def _check(config: OptimizerConfig, steps: int) -> None:
    """Raises ConfigError where `make_schedule` has no schedule to make."""
    if steps < 1:
        raise ConfigError(f"config.train.steps={steps} must be at least 1")
    if not 0 < config.learning_rate < float("inf"):
        raise ConfigError(f"config.optimizer.learning_rate={config.learning_rate} must be above 0")
    if not 0 <= config.final_learning_rate_fraction <= 1:
        raise ConfigError(
            f"config.optimizer.final_learning_rate_fraction={config.final_learning_rate_fraction} must be in [0, 1]"
        )
    if not 0 < config.decay_fraction <= 1:
        raise ConfigError(f"config.optimizer.decay_fraction={config.decay_fraction} must be above 0 and at most 1")
    if config.warmup_steps < 0:
        raise ConfigError(f"config.optimizer.warmup_steps={config.warmup_steps} must not be negative; 0 is off")
    if config.warmup_steps >= steps:
        raise ConfigError(
            f"config.optimizer.warmup_steps={config.warmup_steps} must be below config.train.steps={steps}: "
            "the run would end before the warm-up does"
        )
    if config.schedule == "inverse_sqrt" and config.warmup_steps == 0:
        raise ConfigError(
            "config.optimizer.warmup_steps=0 with config.optimizer.schedule='inverse_sqrt': the rate is "
            "learning_rate * sqrt(warmup_steps / step), so set it to at least 1"
        )
    if config.schedule == "wsd" and not 1 <= _decay_steps(config, steps) <= steps - config.warmup_steps:
        raise ConfigError(
            f"config.optimizer.decay_fraction={config.decay_fraction} of config.train.steps={steps} is "
            f"{_decay_steps(config, steps)} steps of decay; config.optimizer.warmup_steps={config.warmup_steps} leaves "
            f"room for 1 to {steps - config.warmup_steps}"
        )
