"""The exponential moving average of the parameters (Polyak averaging), which evaluations read in place of them."""

import jax
import jax.numpy as jnp
import optax

from models.parameters import Params


def initial_average(params: Params) -> Params:
    """Returns the average before the first update: a copy of `params`, because a donated state has no array twice."""
    return jax.tree.map(jnp.copy, params)


def averaged(average: Params, params: Params, *, decay: float, num_updates: jax.Array) -> Params:
    """Returns the average after an update: d * average + (1 - d) * params, with d = min(decay, (1 + n) / (10 + n)).

    The warm-up of d is that of `num_updates` in TensorFlow's tf.train.ExponentialMovingAverage. Without it the initial
    parameters, which are random, would keep a weight of decay^n: 0.55 after 600 updates with a decay of 0.999. With it
    the average is over about the last tenth of the updates until d reaches `decay`, at n = 8,989 for 0.999. The average
    starts with the initial parameters, so no bias correction as in Adam, whose moments start at 0, is needed.

    Args:
      average, params: float32 arrays of the same shapes; `params` are those after the update.
      decay: `train.ema_decay`, in (0, 1).
      num_updates: n, int32 []: updates since the start of the run, this one included and skipped ones not.
    """
    # 1 - d, without the cancellation of a float32 d close to 1.
    step_size = jnp.maximum(1.0 - decay, 9.0 / (10.0 + num_updates))
    return optax.incremental_update(params, average, step_size)
