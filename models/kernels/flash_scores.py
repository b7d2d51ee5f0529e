"""Scores, mask and dropout of one block of queries and keys, computed within the flash-attention kernels."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels.dropout import keeps
from models.kernels.flash_grid import Step, product, to_column

MASKED = -2e38  # the score of a masked key: exp(MASKED - x) is exactly 0 in float32 for every score x


def scaled_queries(step: Step, i: Array) -> Array:
    """Returns row i's queries [q, k], multiplied by the scale in their own dtype."""
    query = step.refs["query"][i]
    return query if step.options.scale == 1 else (query * step.options.scale).astype(query.dtype)


def masked_scores(step: Step, i: Array) -> Array:
    """Returns row i's scores, float32 [q, s]: MASKED where the key is masked.

    A key is visible if its segment is the query's and no order of the key is above that of the query.
    """
    refs = step.refs
    scores = product(scaled_queries(step, i), refs["keys"][i], (1, 1))
    if "bias" in refs:
        scores += refs["bias"][...]
    of_queries, of_keys = refs["query_vectors"], refs["key_vectors"]
    visible = to_column(of_queries[i, :1]) == of_keys[i, :1]
    for vector in range(1, of_keys.shape[1]):
        visible &= of_keys[i, vector : vector + 1] <= to_column(of_queries[i, vector : vector + 1])
    return jnp.where(visible, scores, MASKED)


def dropped(x: Array, step: Step, i: Array) -> Array:
    """Returns x [q, s] of row i after dropout: 0 where dropped, x / (1 - rate) elsewhere. Without seeds returns x."""
    if "seeds" not in step.refs:
        return x
    sizes, rate = step.blocks.sizes, step.options.dropout_rate
    key_index = step.at["s"] * sizes["s"] + jax.lax.broadcasted_iota(jnp.int32, (1, sizes["s"]), 1)
    query_index = jnp.zeros((1, 1), jnp.int32)
    if not step.options.dropout_broadcast_positions:
        first = step.refs["first_query"][0, 0] + step.at["q"] * sizes["q"]
        query_index = first + jax.lax.broadcasted_iota(jnp.int32, (sizes["q"], 1), 0)
    seeds = step.refs["seeds"][i, 0, step.at["h"]], step.refs["seeds"][i, 1, step.at["h"]]
    keep = keeps(seeds, query_index, key_index, rate)
    return jnp.where(keep, x * (1 / (1 - rate)), 0)
