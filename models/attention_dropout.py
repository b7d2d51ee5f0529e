"""Dropout of attention probabilities by a hash of each entry's row, head, query and key.

A fused kernel never has all probabilities in memory, and computes them once more in its backward pass. It computes
which of them dropout keeps from indices alone, so that both passes keep the same entries, whatever the kernel's blocks,
the microbatches and the mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from models.placement import row_keys


def dropout_seeds(key: Array, rows: int, heads: int) -> Array:
    """Returns int32 [B, H, 2]: 64 random bits for each row and head.

    They depend on `key`, on the row's index in the batch and on the head alone (models/placement.py: `row_keys`).
    """
    draw = jax.vmap(lambda key: jax.random.bits(key, (heads, 2), jnp.uint32))
    return jax.lax.bitcast_convert_type(draw(row_keys(key, rows)), jnp.int32)


def keep_factors(
    query_seed: Array, key_seed: Array, query_index: Array, key_index: Array, *, rate: float, broadcast_positions: bool
) -> Array:
    """Returns float32: 1 / (1 - rate) with probability 1 - rate, else 0, for each pair of a query and a key.

    Only operations that every backend of Pallas can compile, so that a kernel can call this function on a block.

    query_seed, key_seed: int32, the two entries of `dropout_seeds`.
    query_index, key_index: int32, indices in the row; arrays of shapes that broadcast to the result's shape.
    broadcast_positions: all queries share one draw for each key, as in T5.
    """
    if broadcast_positions:
        query_index = jnp.zeros_like(query_index)
    bits = _mix(_mix(query_seed + query_index) + _mix(key_seed + key_index))
    # The bits are a uniform int32, which is below this limit with probability 1 - rate.
    limit = min(round((1 - rate) * 2**32) - 2**31, 2**31 - 1)
    return jnp.where(bits < limit, np.float32(1 / (1 - rate)), np.float32(0))


def _mix(x: Array) -> Array:
    """Returns the int32 array with its bits mixed: the finalizer of MurmurHash3 (Appleby), a bijection.

    int32 instead of uint32: the product wraps around in the same way, and kernels need no unsigned types.
    """
    x = x ^ _shift_right(x, 16)
    x = x * np.uint32(0x85EBCA6B).view(np.int32)
    x = x ^ _shift_right(x, 13)
    x = x * np.uint32(0xC2B2AE35).view(np.int32)
    return x ^ _shift_right(x, 16)


def _shift_right(x: Array, bits: int) -> Array:
    """Returns x shifted right by `bits`, with zeros for the vacant bits."""
    return jax.lax.shift_right_logical(x, jnp.full_like(x, bits))
