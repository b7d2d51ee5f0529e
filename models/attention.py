"""Attention: one mask for every architecture, one product of queries, keys and values, one module with their kernels.

Suffixes: B batch, L length, Q queries, S keys, D model, H heads, G key/value heads, R = H / G query heads to each of
them, K head dim.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import dropout, linear, split_key
from models.positions import Rotation, rotate

_HIDDEN = -1e10  # a score whose exponential is exactly 0 in float32 beside any real one


class KeysValues(NamedTuple):
    """What queries attend to, each [B, G, S, K]; with a leading layer axis for the layers of a stack."""

    keys: Array
    values: Array


# (queries [B, H, Q, K], keys and values; scale, and dropout's rate and key where it is used) -> [B, H, Q, K]: one of
# the kernels, with who sees whom and the bias in it.
Attend = Callable[..., Array]


def attention_mask(
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask_BxS: Array | None = None,
    order_BxL: Array | None = None,
    query_offset: Array | int = 0,
) -> Array:
    """bool [B, 1, Q, S]: True where a query sees a key.

    It does where both are of the same segment and that is not 0 (padding), and, if `causal`, the key is not after the
    query or is in the bidirectional prefix, and, where `order_BxL` (int32, of a row that is queries and keys at once)
    is given, the key's order is not above the query's. This is the encoder's mask (not causal), the causal one, the
    prefix LM's (causal, with a prefix), the cross attention's (not causal, queries and keys of two rows) and, with an
    order, that of any other split of a row into what is read first and what later (UniLM).

    Query i stands at index `query_offset` + i of the row that the keys are of: not 0 where a cache holds earlier keys.
    """
    query_BxQx1, key_Bx1xS = query_segment_ids_BxQ[:, :, None], key_segment_ids_BxS[:, None, :]
    visible_BxQxS = (query_BxQx1 == key_Bx1xS) & (key_Bx1xS != 0)
    if causal:
        query_index_Q = jnp.arange(query_BxQx1.shape[1]) + query_offset
        in_reach = (jnp.arange(key_Bx1xS.shape[2]) <= query_index_Q[:, None])[None]
        if bidirectional_mask_BxS is not None:
            in_reach = in_reach | bidirectional_mask_BxS[:, None, :]
        visible_BxQxS = visible_BxQxS & in_reach
    if order_BxL is not None:
        visible_BxQxS = visible_BxQxS & (order_BxL[:, None, :] <= order_BxL[:, :, None])
    return visible_BxQxS[:, None]


@jax.custom_jvp
def attention_probabilities(scores: Array, bias: Array | None, mask: Array) -> Array:
    """Softmax over the last axis of scores + bias, float32 [B, G, R, Q, S]; bias [1, G, R, Q, S], mask [B, 1, 1, Q, S].

    Where `mask` is False the probability and the gradient are exactly 0, even for a query that sees no key at all.
    """
    scores = scores + jnp.where(mask, 0, _HIDDEN) if bias is None else scores + bias + jnp.where(mask, 0, _HIDDEN)
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials * jnp.where(mask.any(-1, keepdims=True), 1 / exponentials.sum(-1, keepdims=True), 0)


@attention_probabilities.defjvp
def _attention_probabilities_jvp(primals, tangents):
    """Written out so that the backward pass keeps the probabilities and nothing else of this size."""
    probabilities, (moved, bias_moved, _) = attention_probabilities(*primals), tangents
    if bias_moved is not None:
        # A product with ones and not a broadcast, for the sake of its transpose: the sum over the batch, which XLA's
        # CPU backend does a hundred times faster as a product than as a reduction (jax 0.10).
        ones_Bx1 = jnp.ones((len(probabilities), 1))
        moved += jnp.tensordot(ones_Bx1, bias_moved, 1, precision="highest")
    moved *= probabilities
    return probabilities, moved - probabilities * moved.sum(-1, keepdims=True)


def dot_product_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    bias_1xHxQxS: Array | None,
    scale: float,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """[B, H, Q, K] in the queries' dtype; scores and softmax in float32. H is a multiple of the keys' heads G.

    A hidden key has probability exactly 0 and gradient exactly 0, and a query that sees no key (padding) gives exactly
    0. Dropout of the probabilities is shared by all queries, as in T5.
    """
    B, H, Q, K = query_BxHxQxK.shape
    G = keys_values.keys.shape[1]
    query = query_BxHxQxK.reshape(B, G, H // G, Q, K)
    scores = scale * jnp.einsum("BGRQK,BGSK->BGRQS", query, keys_values.keys, preferred_element_type=jnp.float32)
    bias = None if bias_1xHxQxS is None else bias_1xHxQxS.reshape(1, *scores.shape[1:])
    probabilities = attention_probabilities(scores, bias, mask_Bx1xQxS[:, None]).astype(query.dtype)
    probabilities = dropout(probabilities, dropout_rate, dropout_key, shared_axis=3)
    return jnp.einsum("BGRQS,BGSK->BGRQK", probabilities, keys_values.values).reshape(B, H, Q, K)


class Attention(nnx.Module):
    """Multi-head attention, grouped-query where there are fewer key/value heads; self or cross, as it is called."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        D, H, G, K = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        self.query = linear(config, D, H * K, initializers.query(config), rngs=rngs)
        self.key = linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.value = linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.out = linear(config, H * K, D, initializers.attention_output(config), rngs=rngs)

    def queries(self, x_BxQxD: Array) -> Array:
        """[B, H, Q, K]"""
        return self._heads(x_BxQxD, self.query)[0]

    def keys_values(self, x_BxSxD: Array) -> KeysValues:
        """Each [B, G, S, K]"""
        return KeysValues(*self._heads(x_BxSxD, self.key, self.value))

    def queries_keys_values(self, x_BxLxD: Array, rotation: Rotation | None) -> tuple[Array, KeysValues]:
        """Both of the same states, for self attention; queries and keys turned by their positions' angles, if any."""
        query, key, value = self._heads(x_BxLxD, self.query, self.key, self.value)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, KeysValues(key, value)

    def __call__(
        self,
        query_BxHxQxK: Array,
        keys_values: KeysValues,
        *,
        attend: Attend,
        dropout_key: Array | None = None,
    ) -> Array:
        """[B, Q, D]: what the queries find, through the output kernel."""
        probabilities_key, output_key = split_key(dropout_key, 2)
        dropping = {"dropout_rate": self.config.dropout_rate, "dropout_key": probabilities_key}
        mixed_BxHxQxK = attend(
            query_BxHxQxK,
            keys_values,
            scale=self.config.head_dim**-0.5 if self.config.scale_attention else 1.0,
            **(dropping if self.config.dropout_rate else {}),
        )
        B, H, Q, K = mixed_BxHxQxK.shape
        y = self.out(mixed_BxHxQxK.swapaxes(1, 2).reshape(B * Q, H * K))
        return dropout(y.reshape(B, Q, -1), self.config.dropout_rate, output_key, shared_axis=1)

    def _heads(self, x_BxLxD: Array, *kernels: nnx.Linear) -> list[Array]:
        B, L, D = x_BxLxD.shape
        x = x_BxLxD.reshape(B * L, D)
        return [kernel(x).reshape(B, L, -1, self.config.head_dim).swapaxes(1, 2) for kernel in kernels]
