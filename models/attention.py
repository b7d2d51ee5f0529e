"""Attention: one mask for every architecture, one product of queries, keys and values, one module with their kernels.

Suffixes: B batch, L length, Q queries, S keys, D model, H heads, G key/value heads, R = H / G query heads to each of
them, K head dim.
"""

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
    """What queries attend to, each [B, S, G, K]; with a leading layer axis for the layers of a stack."""

    keys: Array
    values: Array


def attention_mask(
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask_BxS: Array | None = None,
    query_offset: Array | int = 0,
) -> Array:
    """bool [B, 1, Q, S]: True where a query sees a key.

    It does where both are of the same segment and that is not 0 (padding), and, if `causal`, the key is not after the
    query or is in the bidirectional prefix. This is the encoder's mask (not causal), the causal one, the prefix LM's
    (causal, with a prefix) and the cross attention's (not causal, queries and keys of two rows).

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
    return visible_BxQxS[:, None]


def dot_product_attention(
    query_BxQxHxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    bias_1xHxQxS: Array | None,
    scale: float,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """[B, Q, H, K] in the queries' dtype; scores and softmax in float32. H is a multiple of the keys' heads G.

    A hidden key has probability exactly 0 and gradient exactly 0, and a query that sees no key (padding) gives exactly
    0. Dropout of the probabilities is shared by all queries, as in T5.
    """
    B, Q, H, K = query_BxQxHxK.shape
    G = keys_values.keys.shape[2]
    query = query_BxQxHxK.reshape(B, Q, G, H // G, K)
    scores = jnp.einsum("BQGRK,BSGK->BGRQS", query, keys_values.keys, preferred_element_type=jnp.float32)
    scores_BxHxQxS = scores.reshape(B, H, Q, -1) * scale
    if bias_1xHxQxS is not None:
        scores_BxHxQxS += bias_1xHxQxS
    probabilities = jax.nn.softmax(jnp.where(mask_Bx1xQxS, scores_BxHxQxS, _HIDDEN)).astype(query.dtype)
    probabilities = dropout(probabilities, dropout_rate, dropout_key, shared_axis=2)
    probabilities = probabilities.reshape(B, G, H // G, Q, -1)
    mixed_BxQxHxK = jnp.einsum("BGRQS,BSGK->BQGRK", probabilities, keys_values.values).reshape(B, Q, H, K)
    sees_any_BxQx1x1 = mask_Bx1xQxS.any(-1).transpose(0, 2, 1)[..., None]
    return jnp.where(sees_any_BxQx1x1, mixed_BxQxHxK, 0)


class Attention(nnx.Module):
    """Multi-head attention, grouped-query where there are fewer key/value heads; self or cross, as it is called."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        D, H, G, K = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        self.query = linear(config, D, H * K, initializers.query(config), rngs=rngs)
        self.key = linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.value = linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.out = linear(config, H * K, D, initializers.attention_output(config), rngs=rngs)

    def keys_values(self, x_BxSxD: Array, rotation: Rotation | None = None) -> KeysValues:
        keys, values = self._heads(self.key(x_BxSxD)), self._heads(self.value(x_BxSxD))
        return KeysValues(keys if rotation is None else rotate(keys, rotation), values)

    def __call__(
        self,
        x_BxQxD: Array,
        keys_values: KeysValues,
        *,
        mask_Bx1xQxS: Array,
        bias_1xHxQxS: Array | None = None,
        rotation: Rotation | None = None,
        dropout_key: Array | None = None,
    ) -> Array:
        """[B, Q, D]. `rotation` is of the queries; the keys were turned when they were made."""
        probabilities_key, output_key = split_key(dropout_key, 2)
        query_BxQxHxK = self._heads(self.query(x_BxQxD))
        if rotation is not None:
            query_BxQxHxK = rotate(query_BxQxHxK, rotation)
        mixed_BxQxHxK = dot_product_attention(
            query_BxQxHxK,
            keys_values,
            mask_Bx1xQxS=mask_Bx1xQxS,
            bias_1xHxQxS=bias_1xHxQxS,
            scale=self.config.head_dim**-0.5 if self.config.scale_attention else 1.0,
            dropout_rate=self.config.dropout_rate,
            dropout_key=probabilities_key,
        )
        y_BxQxD = self.out(mixed_BxQxHxK.reshape(*x_BxQxD.shape[:2], -1))
        return dropout(y_BxQxD, self.config.dropout_rate, output_key, shared_axis=1)

    def _heads(self, x_BxLxHK: Array) -> Array:
        return x_BxLxHK.reshape(*x_BxLxHK.shape[:2], -1, self.config.head_dim)
