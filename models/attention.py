"""Attention: one mask for every architecture, one product of queries, keys and values, one module with their kernels.

Suffixes: B batch, L length, Q queries, S keys, D model, H heads, G key/value heads, R = H / G query heads to each of
them, K head dim.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, dropout, linear_maps, split_key
from models.placement import target_platform
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    scale: float, query: Array, keys: Array, values: Array, bias: Array | None, mask: Array, keep: Array | None
) -> Array:
    """Softmax of scale * query keys^T + bias where `mask` is True, times `keep`, times the values.

    query [B, G, R, Q, K], keys and values [B, G, S, K], bias float32 [1, G, R, Q, S], mask [B, 1, 1, Q, S], keep
    [B, G, R, 1, S] (dropout: 0, or 1 / (1 - rate)).

    The gradient is written out. The backward pass then keeps the probabilities in the compute dtype and nothing else
    of their size; the softmax's gradient takes each query's sum over keys from its output, of a head's width (as
    FlashAttention 2 does, Dao 2023, section 3.1).
    """
    return _attend_forward(scale, query, keys, values, bias, mask, keep)[0]


def _attend_forward(scale, query, keys, values, bias, mask, keep):
    if target_platform() == "cpu":
        # Laid out head by head once; XLA would make a second copy of both, transposed, for the products over K.
        keys, values = jax.lax.optimization_barrier((keys, values))
    query = (scale * query).astype(query.dtype)  # not the scores, which are many more
    scores = jnp.einsum("BGRQK,BGSK->BGRQS", query, keys, preferred_element_type=jnp.float32)
    scores = scores + jnp.where(mask, 0, _HIDDEN) if bias is None else scores + bias + jnp.where(mask, 0, _HIDDEN)
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    probabilities = exponentials * jnp.where(mask.any(-1, keepdims=True), 1 / exponentials.sum(-1, keepdims=True), 0)
    # From here on the queries of a key/value head are one axis, as the products have it: one array, not two.
    probabilities = _queries_of_head(probabilities.astype(query.dtype))
    mixed = jnp.einsum("BGQS,BGSK->BGQK", _times(probabilities, keep), values)
    return mixed.reshape(query.shape), (query, keys, values, bias, probabilities, keep, mixed)


def _attend_backward(scale, residuals, mixed_bar):
    query, keys, values, bias, probabilities, keep, mixed = residuals
    mixed_bar = _queries_of_head(mixed_bar)
    values_bar = _over_queries(_times(probabilities, keep), mixed_bar)
    probabilities_bar = jnp.einsum("BGQK,BGSK->BGQS", mixed_bar, values, preferred_element_type=jnp.float32)
    mean = (mixed_bar.astype(jnp.float32) * mixed.astype(jnp.float32)).sum(-1, keepdims=True)
    scores_bar = probabilities.astype(jnp.float32) * (_times(probabilities_bar, keep) - mean)
    bias_bar = None
    if bias is not None:
        # The sum over the batch, which XLA's CPU backend does far faster as a product with ones than as a
        # reduction (jax 0.10).
        bias_bar = jnp.tensordot(jnp.ones((1, len(query))), scores_bar, 1, precision="highest").reshape(bias.shape)
    scores_bar = scores_bar.astype(query.dtype)
    query_bar = (scale * jnp.einsum("BGQS,BGSK->BGQK", scores_bar, keys)).astype(query.dtype).reshape(query.shape)
    keys_bar = _over_queries(scores_bar, _queries_of_head(query))
    return query_bar, keys_bar, values_bar, bias_bar, None, None


def _queries_of_head(x: Array) -> Array:
    """[B, G, R, Q, ...] -> [B, G, R * Q, ...]"""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _over_queries(weights: Array, x: Array) -> Array:
    """[B, G, S, K]: weights [B, G, Q, S], of x [B, G, Q, K], summed over Q.

    In the order of axes that the heads were cut from, and go back to: XLA's CPU backend then lays x out as [K, Q] for
    the product, which is faster than from [Q, K] (jax 0.12).
    """
    return jnp.einsum("BGQS,BQGK->BSGK", weights, x.swapaxes(1, 2)).swapaxes(1, 2)


def _times(x: Array, keep: Array | None) -> Array:
    """x [B, G, R * Q, S] times `keep` [B, G, R, 1, S], in x's dtype."""
    if keep is None:
        return x
    B, G, R, _, S = keep.shape
    return (x.reshape(B, G, R, -1, S) * keep).astype(x.dtype).reshape(x.shape)


_attend.defvjp(_attend_forward, _attend_backward)


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
    bias, keep = None, None
    if bias_1xHxQxS is not None:
        bias = bias_1xHxQxS.astype(jnp.float32).reshape(1, G, H // G, Q, -1)
    if dropout_key is not None and dropout_rate:
        shape = (B, G, H // G, 1, keys_values.keys.shape[2])
        keep = jax.random.bernoulli(dropout_key, 1 - dropout_rate, shape) / (1 - dropout_rate)
    mixed = _attend(scale, query, *keys_values, bias, mask_Bx1xQxS[:, None], keep)
    return mixed.reshape(B, H, Q, K)


class Attention(nnx.Module):
    """Multi-head attention, grouped-query where there are fewer key/value heads; self or cross, as it is called."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        D, H, G, K = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        self.query = Linear(config, D, H * K, initializers.query(config), rngs=rngs)
        self.key = Linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.value = Linear(config, D, G * K, initializers.key_value(config), rngs=rngs)
        self.out = Linear(config, H * K, D, initializers.attention_output(config), rngs=rngs)

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

    def _heads(self, x_BxLxD: Array, *kernels: Linear) -> list[Array]:
        B, L, D = x_BxLxD.shape
        x = x_BxLxD.reshape(B * L, D)
        return [y.reshape(B, L, -1, self.config.head_dim).swapaxes(1, 2) for y in linear_maps(x, *kernels)]
