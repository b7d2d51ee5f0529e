"""Dynamic loss scaling for float16, in which small gradients underflow to 0.

In every function None means no loss scale, for precisions with float32's range of exponents, and changes nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

INITIAL_FACTOR = 2.0**15
MIN_FACTOR, MAX_FACTOR = 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # good updates in a row before the factor grows


class LossScale(NamedTuple):
    """The loss is multiplied by `factor` before differentiation, and the gradients are divided by it.

    In float16 a gradient below 2^-25 rounds to 0 and one above 65,504 to infinity; the factor moves gradients into that
    range. It is a power of two, so multiplication and division do not round. As in Micikevicius et al. (2018), an
    update whose gradients are not finite is skipped and halves the factor; 2,000 good updates in a row double it.
    flax's DynamicScale does the same for a single value_and_grad; here microbatches are summed before the check.
    """

    factor: jax.Array  # float32 [], from 1 to 2^24
    good_count: jax.Array  # int32 []: good updates since the last change or the last clipped growth


def initial_loss_scale(precision: str) -> LossScale | None:
    """Returns a scale of 2^15 for "float16", None for other precisions."""
    if precision != "float16":
        return None
    return LossScale(jnp.full((), INITIAL_FACTOR, jnp.float32), jnp.zeros((), jnp.int32))


def scaled(loss: jax.Array, scale: LossScale | None) -> jax.Array:
    """Returns the loss to differentiate, float32 []."""
    return loss if scale is None else loss * scale.factor


def unscaled(grads, scale: LossScale | None):
    """Returns the gradients of the loss from those of the scaled loss, a float32 tree. NaN and infinity remain."""
    return grads if scale is None else jax.tree.map(lambda grad: grad / scale.factor, grads)


def adjusted(scale: LossScale | None, finite: jax.Array) -> LossScale | None:
    """Returns the scale after an update. finite: bool [], whether all its gradients were finite."""
    if scale is None:
        return None
    good_count = scale.good_count + 1
    grows = finite & (good_count == GROWTH_INTERVAL)
    factor = scale.factor * jnp.where(grows, 2.0, jnp.where(finite, 1.0, 0.5))
    return LossScale(
        factor=jnp.clip(factor, MIN_FACTOR, MAX_FACTOR), good_count=jnp.where(finite & ~grows, good_count, 0)
    )


def can_shrink(scale: LossScale | None) -> jax.Array:
    """Returns whether the factor is above its minimum, bool []: a smaller one may make the gradients finite."""
    return jnp.asarray(False) if scale is None else scale.factor > MIN_FACTOR
