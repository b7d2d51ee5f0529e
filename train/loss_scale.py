"""Dynamic loss scaling, without which small gradients are 0 in float16: a state of two numbers, and how it moves.

Every function takes None for a precision that has float32's range of exponents, and then changes nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

INITIAL_FACTOR = 2.0**15
MIN_FACTOR, MAX_FACTOR = 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # good updates in a row


class LossScale(NamedTuple):
    """The loss is multiplied by `factor` before its gradient is taken, and the gradient divided by it after.

    In float16 a gradient below 2^-25 is 0 and one above 65,504 infinite; the factor moves gradients up into that range.
    It is a power of two, so that multiplying and dividing round nothing. As in Micikevicius et al. (2018) it is halved
    where a gradient is not finite, an update that is then left out, and doubled after 2,000 good updates in a row.
    flax's DynamicScale does the same around one value_and_grad, where ours adds up microbatches before it looks.
    """

    factor: jax.Array  # float32 [], from 1 to 2^24
    good_count: jax.Array  # int32 []: good updates since the factor last changed, or was to


def initial_loss_scale(precision: str) -> LossScale | None:
    """2^15 for "float16", None for the others."""
    if precision != "float16":
        return None
    return LossScale(jnp.full((), INITIAL_FACTOR, jnp.float32), jnp.zeros((), jnp.int32))


def scaled(loss: jax.Array, scale: LossScale | None) -> jax.Array:
    """The loss, float32 [], whose gradient to take."""
    return loss if scale is None else loss * scale.factor


def unscaled(grads, scale: LossScale | None):
    """A tree of float32 gradients of the scaled loss -> those of the loss. What is not finite stays so."""
    return grads if scale is None else jax.tree.map(lambda grad: grad / scale.factor, grads)


def adjusted(scale: LossScale | None, finite: jax.Array) -> LossScale | None:
    """The scale after an update whose gradients were all `finite`, bool [], or not."""
    if scale is None:
        return None
    good_count = scale.good_count + 1
    grows = finite & (good_count == GROWTH_INTERVAL)
    factor = scale.factor * jnp.where(grows, 2.0, jnp.where(finite, 1.0, 0.5))
    return LossScale(
        factor=jnp.clip(factor, MIN_FACTOR, MAX_FACTOR), good_count=jnp.where(finite & ~grows, good_count, 0)
    )


def can_shrink(scale: LossScale | None) -> jax.Array:
    """bool []: whether there is a smaller factor to try where a gradient is not finite."""
    return jnp.asarray(False) if scale is None else scale.factor > MIN_FACTOR
