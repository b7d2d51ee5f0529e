"""Dropout of attention probabilities within fused kernels: draws by a hash of each entry's row, head, query and key.

A fused kernel never has all probabilities in memory, and computes them once more in its backward pass. It computes
which of them dropout keeps from a key and from indices alone, so that both passes keep the same entries, whatever the
sizes of the kernel's blocks and the mesh. Each microbatch has a key of its own (run/step.py).
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.placement import row_keys


def dropout_seeds(key: Array, rows: int, heads: int) -> Array:
    """Returns two seeds for each row and head, for queries and for keys: int32 [B, 2, H].

    They depend on `key`, on the row's index in the batch and on the head alone.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (2, heads), jnp.uint32))(row_keys(key, rows))
    return jax.lax.bitcast_convert_type(bits, jnp.int32)


def keeps(seeds: tuple[Array, Array], query_index: Array, key_index: Array, rate: float) -> Array:
    """Returns True with probability 1 - rate: a draw that depends on nothing but the arguments.

    The two seeds, query_index and key_index are int32 arrays, broadcast against each other. Kernels call this function
    on blocks: it has only operations that Pallas can compile for TPUs and GPUs, hence no unsigned integers.
    """
    # An index is mixed before its seed is added: otherwise seeds that differ by d would have the same draws, d apart.
    of_queries, of_keys = (
        _mixed(_mixed(index) + seed) for seed, index in zip(seeds, (query_index, key_index), strict=True)
    )
    bits = _mixed(of_queries + of_keys)
    return _shift_right(bits, 8) >= round(rate * 2**24)


def _mixed(x: Array) -> Array:
    """Returns int32 with each bit a function of all bits of x: the last steps of MurmurHash3 (Appleby, 2011)."""
    x = (x ^ _shift_right(x, 16)) * (0x85EBCA6B - 2**32)
    x = (x ^ _shift_right(x, 13)) * (0xC2B2AE35 - 2**32)
    return x ^ _shift_right(x, 16)


def _shift_right(x: Array, bits: int) -> Array:
    """Returns x shifted right by `bits`, with zeros for the vacant bits."""
    return jax.lax.shift_right_logical(x, jnp.full_like(x, bits))
