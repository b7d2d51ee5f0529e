"""The programs of models/kernels/triton.py: each computes one block of an output from blocks of queries and keys.

A program gets two dictionaries of Pallas references by name: its inputs and its outputs. `DIMENSIONS` has their axes.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from models.kernels.dropout import keeps

_MASKED = -1e30  # the score of a masked key; the kernel subtracts scores, so that it must be finite

# Axes: B rows, H query heads, G key/value heads, Q queries, S keys, K head dim, N blocks of queries or keys; 2 is
# a size.
DIMENSIONS = {
    "query": "BHQK",
    "keys": "BGSK",
    "values": "BGSK",
    "bias": "HQS",
    "query_segment_ids": "BQ",
    "key_segment_ids": "BS",
    "bidirectional_mask": "BS",
    "query_order": "BQ",
    "key_order": "BS",
    "key_blocks": "BN2",  # for each block of queries: the first block of its keys, and one more than the last
    "query_blocks": "BN2",  # for each block of keys: likewise the blocks of its queries
    "seeds": "B2H",
    "output": "BHQK",
    "log_sums": "BHQ",  # of the exponentials of all scores of a query
    "output_bar": "BHQK",
    "means": "BHQ",  # of the gradients of a query's probabilities, weighted by the probabilities
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What a program does not read from arrays. `block` is the number of queries or of keys of a block."""

    scale: float
    causal: bool
    dropout_rate: float
    dropout_broadcast_positions: bool
    block: int
    interpret: bool


class _Place(NamedTuple):
    """The indices of blocks of queries and keys, and the leading indices of references that have rows or heads."""

    queries: Any
    keys: Any
    row: tuple[Any, ...] = ()  # empty if the references have one row
    head: tuple[Any, ...] = ()  # empty if the references have one head


def forward(inputs: dict[str, Any], outputs: dict[str, Any], *, options: Options) -> None:
    """Writes `output` and `log_sums` of one block of queries, of one row and head."""
    block = pl.program_id(0)
    queries = _slice(block, options)
    query = inputs["query"][queries, :]

    def add_keys(key_block, carry):
        output, maximum, total = carry
        place = _Place(block, key_block)
        keys = _slice(key_block, options)
        scores, visible = _scores(inputs, query, inputs["keys"][keys, :], place, options)
        new_maximum = jnp.maximum(maximum, scores.max(1))
        correction = jnp.exp(maximum - new_maximum)
        weights = jnp.where(visible, jnp.exp(scores - new_maximum[:, None]), 0)
        total = total * correction + weights.sum(1)
        kept = weights * _dropout_factors(inputs, place, options)
        values = inputs["values"][keys, :]
        output = output * correction[:, None] + _product(kept.astype(values.dtype), values)
        return output, new_maximum, total

    start = (
        jnp.zeros(query.shape, jnp.float32),
        jnp.full(options.block, _MASKED, jnp.float32),
        jnp.zeros(options.block, jnp.float32),
    )
    first, end = inputs["key_blocks"][block, 0], inputs["key_blocks"][block, 1]
    output, maximum, total = jax.lax.fori_loop(first, end, add_keys, start)
    total = jnp.where(total > 0, total, 1)  # 0: all keys are masked, and the output is 0
    outputs["output"][queries, :] = (output / total[:, None]).astype(query.dtype)
    outputs["log_sums"][queries] = maximum + jnp.log(total)


def backward_query(inputs: dict[str, Any], outputs: dict[str, Any], *, options: Options) -> None:
    """Writes the gradient of one block of queries, of one row and head."""
    block = pl.program_id(0)
    queries = _slice(block, options)

    def add_keys(key_block, query_bar):
        _, scores_bar, (_, keys) = _gradients(inputs, _Place(block, key_block), options)
        return query_bar + _product(scores_bar.astype(keys.dtype), keys)

    first, end = inputs["key_blocks"][block, 0], inputs["key_blocks"][block, 1]
    start = jnp.zeros((options.block, inputs["query"].shape[-1]), jnp.float32)
    query_bar = jax.lax.fori_loop(first, end, add_keys, start)
    outputs["query"][queries, :] = (options.scale * query_bar).astype(outputs["query"].dtype)


def backward_keys_values(inputs: dict[str, Any], outputs: dict[str, Any], *, options: Options) -> None:
    """Writes the gradients of one block of keys and values, of one row and key/value head, over its query heads."""
    block = pl.program_id(0)
    heads = inputs["query"].shape[0]
    first, end = inputs["query_blocks"][block, 0], inputs["query_blocks"][block, 1]

    def add_queries(index, carry):
        keys_bar, values_bar = carry
        head, query_block = jax.lax.div(index, end - first), first + jax.lax.rem(index, end - first)
        place = _Place(query_block, block, head=(head,))
        weights, scores_bar, (query, _) = _gradients(inputs, place, options)
        output_bar = inputs["output_bar"][head, _slice(query_block, options), :]
        keys_bar = keys_bar + _product(scores_bar.astype(query.dtype).T, query)
        return keys_bar, values_bar + _product(weights.astype(output_bar.dtype).T, output_bar)

    zeros = jnp.zeros((options.block, inputs["keys"].shape[-1]), jnp.float32)
    keys_bar, values_bar = jax.lax.fori_loop(0, heads * (end - first), add_queries, (zeros, zeros))
    keys = _slice(block, options)
    outputs["keys"][keys, :] = (options.scale * keys_bar).astype(outputs["keys"].dtype)
    outputs["values"][keys, :] = values_bar.astype(outputs["values"].dtype)


def backward_bias(inputs: dict[str, Any], outputs: dict[str, Any], *, options: Options) -> None:
    """Writes the gradient of the bias for one block of queries and keys, of one head: a sum over rows in float32."""
    query_block, key_block = pl.program_id(0), pl.program_id(1)

    def add_row(row, bias_bar):
        first, end = inputs["key_blocks"][row, query_block, 0], inputs["key_blocks"][row, query_block, 1]
        place = _Place(query_block, key_block, row=(row,))
        return jax.lax.cond(
            (first <= key_block) & (key_block < end),
            lambda bias_bar: bias_bar + _gradients(inputs, place, options)[1],
            lambda bias_bar: bias_bar,
            bias_bar,
        )

    zeros = jnp.zeros((options.block, options.block), jnp.float32)
    bias_bar = jax.lax.fori_loop(0, inputs["query"].shape[0], add_row, zeros)
    outputs["bias"][_slice(query_block, options), _slice(key_block, options)] = bias_bar


def _gradients(inputs: dict[str, Any], place: _Place, options: Options) -> tuple[Array, Array, tuple[Array, Array]]:
    """Returns the probabilities after dropout and the gradients of the scores, float32; the queries and the keys."""
    queries, keys = _slice(place.queries, options), _slice(place.keys, options)
    query = inputs["query"][(*place.row, *place.head, queries, slice(None))]
    output_bar = inputs["output_bar"][(*place.row, *place.head, queries, slice(None))]
    log_sums = inputs["log_sums"][(*place.row, *place.head, queries)]
    means = inputs["means"][(*place.row, *place.head, queries)]
    key = inputs["keys"][(*place.row, keys, slice(None))]
    values = inputs["values"][(*place.row, keys, slice(None))]
    scores, visible = _scores(inputs, query, key, place, options)
    probabilities = jnp.where(visible, jnp.exp(scores - log_sums[:, None]), 0)
    factors = _dropout_factors(inputs, place, options)
    probabilities_bar = _product(output_bar, values.T) * factors
    return probabilities * factors, probabilities * (probabilities_bar - means[:, None]), (query, key)


def _scores(inputs: dict[str, Any], query: Array, keys: Array, place: _Place, options: Options) -> tuple[Array, Array]:
    """Returns the scores of a block, _MASKED where the key is masked, float32, and the mask (`attention_mask`)."""
    queries_at, keys_at = _slice(place.queries, options), _slice(place.keys, options)

    def of_queries(name: str) -> Array:
        return inputs[name][(*place.row, queries_at)][:, None]

    def of_keys(name: str) -> Array:
        return inputs[name][(*place.row, keys_at)][None, :]

    key_ids = of_keys("key_segment_ids")
    visible = (of_queries("query_segment_ids") == key_ids) & (key_ids != 0)
    if options.causal:
        query_index, key_index = _indices(place, options)
        allowed = key_index <= query_index
        if "bidirectional_mask" in inputs:
            allowed = allowed | (of_keys("bidirectional_mask") != 0)
        visible = visible & allowed
    if "query_order" in inputs:
        visible = visible & (of_keys("key_order") <= of_queries("query_order"))
    scores = options.scale * _product(query, keys.T)
    if "bias" in inputs:
        scores = scores + inputs["bias"][(*place.head, queries_at, keys_at)]
    return jnp.where(visible, scores, _MASKED), visible


def _dropout_factors(inputs: dict[str, Any], place: _Place, options: Options) -> Array | float:
    """Returns the factors of a block's probabilities: 0 where dropped, 1 / (1 - rate) elsewhere; 1 without seeds."""
    if "seeds" not in inputs:
        return 1.0
    query_index, key_index = _indices(place, options)
    if options.dropout_broadcast_positions:
        query_index = jnp.zeros_like(query_index)
    seeds = inputs["seeds"][(*place.row, 0, *place.head)], inputs["seeds"][(*place.row, 1, *place.head)]
    keep = keeps(seeds, query_index, key_index, options.dropout_rate)
    return jnp.where(keep, 1 / (1 - options.dropout_rate), 0.0)


def _indices(place: _Place, options: Options) -> tuple[Array, Array]:
    """Returns the indices in the row of the queries, [block, 1], and of the keys, [1, block]."""
    within = jnp.arange(options.block, dtype=jnp.int32)
    return (place.queries * options.block + within)[:, None], (place.keys * options.block + within)[None, :]


def _slice(block: Any, options: Options) -> Any:
    """Returns the slice of a block of queries or keys in a row."""
    return pl.ds(block * options.block, options.block)


def _product(x: Array, y: Array) -> Array:
    """Returns the matrix product in float32."""
    return jnp.dot(x, y, preferred_element_type=jnp.float32)
