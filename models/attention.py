"""Scaled dot-product attention: the mask, the product of queries, keys and values, and the module with its kernels.

Suffixes: B batch, L length, Q queries, S keys, D model, H heads, G key/value heads, R = H / G query heads for each
key/value head, K head dim.
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
from models.layers import Linear, MaskWords, Norm, draw_mask, linear_maps, model_dropout, rms_normed, softcap, split_key
from models.placement import target_platform
from models.positions import Rotation, rotate

_MASK_VALUE = -1e10  # added to the score of a masked key: its exponential underflows to exactly 0 in float32


class KeysValues(NamedTuple):
    """Keys and values, each [B, G, S, K], or [N, B, G, S, K] for the N layers of a stack."""

    keys: Array
    values: Array


# (query [B, H, Q, K], keys_values[, dropout_key=]) -> [B, H, Q, K]: one of the attention kernels with the rest of its
# arguments bound (models/kernels.py).
AttentionFn = Callable[..., Array]


def attention_mask(
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask: Array | None = None,
    order_BxL: Array | None = None,
    query_offset: Array | int = 0,
) -> Array:
    """Returns bool [B, 1, Q, S]: True where the query attends to the key, False where the key is masked.

    A query attends to a key if all of these hold:
      - query and key are in the same segment, and that segment is not 0 (padding);
      - if `causal`: the key is not after the query, or the key is in the prefix (`bidirectional_mask`: bool [B, S], or
        [B, Q, S] where the prefix is open to some of the queries alone);
      - if `order_BxL` (int32) is given: the key's order is 0, ..., q for a query of order q >= 0; 0, ..., q - 1 or -q
        for a query of order -q < 0. Queries and keys are then the same row.

    One function thus gives the mask of an encoder (not causal), of a causal decoder, of a prefix LM (causal with a
    prefix), of cross-attention (not causal, queries and keys from two rows), of UniLM's sequence-to-sequence attention
    (an order) and of block diffusion (an order, negative in the noisy blocks).

    query_offset: index of query 0 in the row of keys; not 0 if a cache contains earlier keys.
    """
    query_BxQx1, key_Bx1xS = query_segment_ids_BxQ[:, :, None], key_segment_ids_BxS[:, None, :]
    visible_BxQxS = (query_BxQx1 == key_Bx1xS) & (key_Bx1xS != 0)
    if causal:
        query_index_Q = jnp.arange(query_BxQx1.shape[1]) + query_offset
        allowed = (jnp.arange(key_Bx1xS.shape[2]) <= query_index_Q[:, None])[None]
        if bidirectional_mask is not None:
            allowed = allowed | jnp.reshape(bidirectional_mask, (len(key_Bx1xS), -1, key_Bx1xS.shape[2]))
        visible_BxQxS = visible_BxQxS & allowed
    if order_BxL is not None:
        query_order_BxQx1, key_order_Bx1xS = order_BxL[:, :, None], order_BxL[:, None, :]
        last_BxQx1 = jnp.maximum(query_order_BxQx1, ~query_order_BxQx1)  # q for q >= 0, and q - 1 for -q
        in_order = (key_order_Bx1xS >= 0) & (key_order_Bx1xS <= last_BxQx1)
        visible_BxQxS = visible_BxQxS & (in_order | (key_order_Bx1xS == query_order_BxQx1))
    return visible_BxQxS[:, None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(
    scale: float,
    cap: float,
    dropout_rate: float,
    query: Array,
    keys: Array,
    values: Array,
    bias: Array | None,
    mask: Array,
    words: MaskWords | None,
) -> Array:
    """Returns softmax(scale * query keys^T + bias) over unmasked keys, after dropout, times values: [B, G, R, Q, K].

    With a `cap` other than 0 the scores are soft-capped before the bias is added.

    query [B, G, R, Q, K]; keys and values [B, G, S, K]; bias float32 [1, G, R, Q, S]; mask bool [B, 1, 1, Q, S];
    words of a mask [B, G, R, Q, S], or [B, G, R, 1, S] for all queries: the probabilities that dropout keeps; None: no
    dropout.

    The gradient is written by hand, so that only one array of the scores' size is saved for the backward pass:
    the probabilities, in the compute dtype; the mask of dropout is computed again. The softmax's gradient needs
    a sum over keys for each query, which equals the dot product of the output and the output's gradient
    (FlashAttention 2, Dao 2023, section 3.1). The backward pass of a soft-cap computes the scores again.
    """
    return _attend_forward(scale, cap, dropout_rate, query, keys, values, bias, mask, words)[0]


def _attend_forward(scale, cap, dropout_rate, query, keys, values, bias, mask, words):
    if target_platform() == "cpu":
        # Without the barrier XLA makes a second, transposed copy of keys and values for the products over K.
        keys, values = jax.lax.optimization_barrier((keys, values))
    query = (scale * query).astype(query.dtype)  # cheaper than scaling the scores, a larger array
    scores = jnp.einsum("BGRQK,BGSK->BGRQS", query, keys, preferred_element_type=jnp.float32)
    scores = softcap(scores, cap) if cap else scores
    mask_bias = jnp.where(mask, 0, _MASK_VALUE)
    scores = scores + mask_bias if bias is None else scores + bias + mask_bias
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    probabilities = exponentials * jnp.where(mask.any(-1, keepdims=True), 1 / exponentials.sum(-1, keepdims=True), 0)
    # Axes R and Q are merged before the probabilities are saved: the forward and the backward products then read
    # one array in one layout.
    probabilities = _merge_queries(probabilities.astype(query.dtype))
    output = jnp.einsum("BGQS,BGSK->BGQK", _apply_dropout(probabilities, words, dropout_rate), values)
    return output.reshape(query.shape), (query, keys, values, bias, probabilities, words, output)


def _attend_backward(scale, cap, dropout_rate, residuals, output_bar):
    query, keys, values, bias, probabilities, words, output = residuals
    output_bar = _merge_queries(output_bar)
    values_bar = _sum_over_queries(_apply_dropout(probabilities, words, dropout_rate), output_bar)
    probabilities_bar = jnp.einsum("BGQK,BGSK->BGQS", output_bar, values, preferred_element_type=jnp.float32)
    mean = (output_bar.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1, keepdims=True)
    scores_bar = probabilities.astype(jnp.float32) * (_apply_dropout(probabilities_bar, words, dropout_rate) - mean)
    bias_bar = None
    if bias is not None:
        # The sum over the batch. XLA's CPU backend computes a product with ones far faster than a reduction (jax 0.10).
        bias_bar = jnp.tensordot(jnp.ones((1, len(query))), scores_bar, 1, precision="highest").reshape(bias.shape)
    if cap:
        scores_bar = scores_bar * _softcap_gradient(query, keys, cap)
    scores_bar = scores_bar.astype(query.dtype)
    query_bar = (scale * jnp.einsum("BGQS,BGSK->BGQK", scores_bar, keys)).astype(query.dtype).reshape(query.shape)
    keys_bar = _sum_over_queries(scores_bar, _merge_queries(query))
    return query_bar, keys_bar, values_bar, bias_bar, None, None


def _softcap_gradient(scaled_query: Array, keys: Array, cap: float) -> Array:
    """Returns the derivative of the soft-capped scores with respect to the scores, float32 [B, G, R * Q, S]."""
    query = _merge_queries(scaled_query)
    scores = jnp.einsum("BGQK,BGSK->BGQS", query, keys, preferred_element_type=jnp.float32)
    return 1 - jnp.square(jnp.tanh(scores / cap))


def _merge_queries(x: Array) -> Array:
    """Reshapes [B, G, R, Q, ...] to [B, G, R * Q, ...]: all queries of a key/value head on one axis."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _sum_over_queries(weights: Array, x: Array) -> Array:
    """Returns [B, G, S, K]: the sum of x [B, G, Q, K] over Q with weights [B, G, Q, S].

    The product runs on [B, Q, G, K], the axis order in which the projections made the heads: XLA's CPU backend then
    lays x out as [K, Q] for the product, which is faster than [Q, K] (jax 0.12).
    """
    return jnp.einsum("BGQS,BQGK->BSGK", weights, x.swapaxes(1, 2)).swapaxes(1, 2)


def _apply_dropout(x: Array, words: MaskWords | None, rate: float) -> Array:
    """Returns x [B, G, R * Q, S] / (1 - rate) where the mask [B, G, R, Q or 1, S] is True, else 0; dtype of x."""
    if words is None:
        return x
    kept = words.kept(rate)
    B, G, R, _, S = kept.shape
    return (x.reshape(B, G, R, -1, S) * (kept / (1 - rate))).astype(x.dtype).reshape(x.shape)


_attend.defvjp(_attend_forward, _attend_backward)


def dot_product_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    bias_1xHxQxS: Array | None,
    scale: float,
    near_Bx1xQxS: Array | None = None,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_broadcast_positions: bool = False,
    dropout_key: Array | None = None,
) -> Array:
    """Returns [B, H, Q, K] in the dtype of the queries; scores and softmax are float32.

    H must be a multiple of G, the number of key/value heads. A masked key has probability 0 and gradient 0, and the
    output of a query whose keys are all masked (padding) is 0, all exactly while a query's scores, with the bias,
    differ by less than 9e9. `near` is a second mask, that of one layer. A `cap` other than 0 is that of a soft-cap of
    the scores, before the bias is added. Dropout is applied to the probabilities; with `dropout_broadcast_positions`
    all queries share one draw, as in T5. No dropout if `dropout_key` is None.
    """
    B, H, Q, K = query_BxHxQxK.shape
    G = keys_values.keys.shape[1]
    query = query_BxHxQxK.reshape(B, G, H // G, Q, K)
    bias, words = None, None
    if bias_1xHxQxS is not None:
        bias = bias_1xHxQxS.astype(jnp.float32).reshape(1, G, H // G, Q, -1)
    if dropout_key is not None and dropout_rate:
        shape = (B, G, H // G, 1 if dropout_broadcast_positions else Q, keys_values.keys.shape[2])
        words = draw_mask(dropout_key, shape)
    mask_Bx1xQxS = mask_Bx1xQxS if near_Bx1xQxS is None else mask_Bx1xQxS & near_Bx1xQxS
    output = _attend(scale, cap, dropout_rate, query, *keys_values, bias, mask_Bx1xQxS[:, None], words)
    return output.reshape(B, H, Q, K)


class Attention(nnx.Module):
    """The projections of multi-head attention, grouped-query where model.num_kv_heads is below model.num_heads.

    The same module serves self-attention and cross-attention. The norms of model.head_norms are those of RedLLM and its
    decoder (Zhang et al. 2025, arXiv 2510.26622, section 3): Attn = softmax(LN(Q) LN(K)^T / sqrt(K)) LN(V) in the
    decoder, and LN(Attn) in RedLLM. LN has no parameters, and is over the features of a head.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        D, H, G, K = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        linear = functools.partial(Linear, config, D, use_bias=config.qkv_bias, rngs=rngs)
        self.query = linear(H * K, initializers.query(config))
        self.key = linear(G * K, initializers.key_value(config))
        self.value = linear(G * K, initializers.key_value(config))
        self.out = Linear(config, H * K, D, initializers.attention_output(config), rngs=rngs)
        if config.qk_norm:
            self.query_norm, self.key_norm = (Norm(config, features=K, rngs=rngs) for _ in range(2))

    def queries(self, x_BxQxD: Array, rotation: Rotation | None) -> Array:
        """Returns queries [B, H, Q, K] in the compute dtype. rotation: of rotary positions; None: no rotation."""
        return self._project(x_BxQxD, rotation, "query")[0]

    def keys_values(self, x_BxSxD: Array, rotation: Rotation | None) -> KeysValues:
        """Returns keys and values, each [B, G, S, K] in the compute dtype. rotation: as for `queries`."""
        return KeysValues(*self._project(x_BxSxD, rotation, "key", "value"))

    def queries_keys_values(self, x_BxLxD: Array, rotation: Rotation | None) -> tuple[Array, KeysValues]:
        """Returns queries, keys and values of the same states, for self-attention.

        rotation: angles of rotary position embeddings, applied to queries and keys; None: no rotation.
        """
        query, *keys_values = self._project(x_BxLxD, rotation, "query", "key", "value")
        return query, KeysValues(*keys_values)

    def __call__(
        self,
        query_BxHxQxK: Array,
        keys_values: KeysValues,
        *,
        attention_fn: AttentionFn,
        dropout_key: Array | None = None,
    ) -> Array:
        """Returns [B, Q, D] in the compute dtype: attention, the output projection and dropout.

        No dropout if `dropout_key` is None.
        """
        attention_key, output_key = split_key(dropout_key, 2)
        # Some kernels have no dropout.
        options = {"dropout_key": attention_key} if self.config.dropout_rate and self.config.attention_dropout else {}
        output_BxHxQxK = attention_fn(query_BxHxQxK, keys_values, **options)
        output_BxHxQxK = self._normed(output_BxHxQxK) if self.config.head_norms == "qkvo" else output_BxHxQxK
        B, H, Q, K = output_BxHxQxK.shape
        y = self.out(output_BxHxQxK.swapaxes(1, 2).reshape(B * Q, H * K))
        return model_dropout(self.config, y.reshape(B, Q, -1), output_key)

    def _project(self, x_BxLxD: Array, rotation: Rotation | None, *names: str) -> list[Array]:
        """Returns each projection of x, [B, heads, L, K]: normed and rotated, as the model does it."""
        B, L, D = x_BxLxD.shape
        outputs = linear_maps(x_BxLxD.reshape(B * L, D), *(getattr(self, name) for name in names))
        heads = [y.reshape(B, L, -1, self.config.head_dim).swapaxes(1, 2) for y in outputs]
        return [self._placed(x, name, rotation) for name, x in zip(names, heads, strict=True)]

    def _placed(self, x_BxHxLxK: Array, name: str, rotation: Rotation | None) -> Array:
        """Returns the projection `name` after its norm, of model.qk_norm or model.head_norms; values do not rotate."""
        is_value, x = name == "value", x_BxHxLxK
        if self.config.qk_norm and not is_value:
            x = getattr(self, f"{name}_norm")(x)
        elif self.config.head_norms != "none":
            x = self._normed(x)
        return x if is_value or rotation is None else rotate(x, rotation)

    def _normed(self, x: Array) -> Array:
        """Returns x, [B, heads, L, K], after a norm without parameters."""
        return rms_normed(x, self.config.norm_epsilon)
