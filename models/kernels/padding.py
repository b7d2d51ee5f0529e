"""Arrays padded at the end of a dimension, to the sizes that kernels can compute."""

import jax.numpy as jnp
from jax import Array


def pad(x: Array, axis: int, length: int, value: float = 0) -> Array:
    """Returns `x` with `axis` padded at its end to `length` by `value`."""
    widths = [(0, length - size if i == axis else 0) for i, size in enumerate(x.shape)]
    return jnp.pad(x, widths, constant_values=value)


def pad_to_multiple(x: Array, axis: int, multiple: int, value: float = 0) -> Array:
    """Returns `x` with `axis` padded at its end to a multiple of `multiple` by `value`."""
    return pad(x, axis, -(-x.shape[axis] // multiple) * multiple, value)
