"""Dynamic loss scaling for float16, in which small gradients underflow to 0.

A scale of None (float32 and bfloat16, which have enough exponent bits) leaves losses and gradients unchanged.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

INITIAL_FACTOR = 2.0**15
MIN_FACTOR, MAX_FACTOR = 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # updates in a row with finite gradients before the factor grows


class LossScale(NamedTuple):
    """The loss is multiplied by `factor` before differentiation, and the gradients are divided by it.

    In float16, gradients below 2^-25 round to 0 and gradients above 65,504 to infinity; the factor moves gradients
    between these limits. The factor is a power of two, so multiplication and division do not round. As in Micikevicius
    et al. (2018), an update whose gradients are not finite is skipped and halves the factor; 2,000 updates in a row
    with finite gradients double the factor. Deviation from flax's DynamicScale, which checks the gradients of a single
    value_and_grad: microbatches are summed before the check.
    """

    factor: jax.Array  # float32 [], from 1 to 2^24
    good_count: jax.Array  # int32 []: finite updates since the factor last changed or would have exceeded its maximum


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
    """Returns the scale after an update. finite: bool [], whether all gradients of the update were finite."""
    if scale is None:
        return None
    good_count = scale.good_count + 1
    grows = finite & (good_count == GROWTH_INTERVAL)
    factor = scale.factor * jnp.where(grows, 2.0, jnp.where(finite, 1.0, 0.5))
    return LossScale(
        factor=jnp.clip(factor, MIN_FACTOR, MAX_FACTOR), good_count=jnp.where(finite & ~grows, good_count, 0)
    )


def can_shrink(scale: LossScale | None) -> jax.Array:
    """Returns whether the factor is above its minimum, bool []: a smaller factor may make the gradients finite."""
    return jnp.asarray(False) if scale is None else scale.factor > MIN_FACTOR
