"""Heads that predict tokens beyond the next one, beside a decoder-only Transformer that they leave as it is.

Their parameters are their own: `layers/self_attention/query/kernel` [N, D, H * K], N the number of heads. The
embedding, the output table and the relative position biases are the Transformer's. Without the heads it is an ordinary
Transformer, which predicts the next token.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, Norm, dropout, split_key
from models.remat import rematerialized
from models.stack import Layer, Stack, Visibility
from models.transformer import Batch, Params, Transformer

Kind = Literal["independent", "sequential"]


class IndependentHeads(nnx.Module):
    """Gloeckle et al. 2024: for each further token one layer, on the states that enter the Transformer's last layer.

    So the Transformer's last layer is the head of the next token, and the layers below it are the trunk that all heads
    share. Each head's layer is followed by the Transformer's final norm.
    """

    def __init__(self, config: ModelConfig, num_heads: int, *, rngs: nnx.Rngs):
        self.config = config
        self.num_heads = num_heads
        self.layers = _stacked(lambda rngs: Layer(config, cross_attention=False, rngs=rngs), num_heads, rngs)

    def __call__(self, transformer: Transformer, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """[1 + N, B, L, D] in the compute dtype: the Transformer's own `hidden`, and that of each head.

        A head's state at a position depends on the input tokens up to that position.
        """
        decoder, rate = transformer.decoder, self.config.dropout_rate
        embed_key, trunk_key, heads_key, final_key = split_key(dropout_key, 4)
        visibility = _visibility(transformer, batch)
        x_BxLxD = transformer.embed(batch["decoder_input_tokens"], batch["decoder_positions"], dropout_key=embed_key)
        trunk_BxLxD, next_BxLxD = _around_last_layer(decoder, x_BxLxD, visibility, trunk_key)
        graphdef, layers = nnx.split(self.layers)

        def head(_, scanned):
            params, key = scanned
            return None, nnx.merge(graphdef, params)(trunk_BxLxD, visibility, dropout_key=key)[0]

        _, further_NxBxLxD = jax.lax.scan(
            rematerialized(self.config, head), None, (layers, _keys(heads_key, self.num_heads))
        )
        x_NxBxLxD = jnp.concatenate([next_BxLxD[None], further_NxBxLxD])
        if self.config.norm_position == "pre":
            x_NxBxLxD = dropout(decoder.final_norm(x_NxBxLxD), rate, final_key, shared_axis=2)
        return x_NxBxLxD


class SequentialHead(Layer):
    """One module of DeepSeek-V3's: a layer on a projection of the states before it beside one more token's embedding.

    Its final norm is its own, as in the released weights.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, cross_attention=False, rngs=rngs)
        self.hidden_norm = Norm(config, rngs=rngs)
        self.embedding_norm = Norm(config, rngs=rngs)
        self.projection = Linear(config, 2 * config.d_model, config.d_model, initializers.matrix(config), rngs=rngs)
        if config.norm_position == "pre":
            self.final_norm = Norm(config, rngs=rngs)

    def merge(self, hidden_BxLxD: Array, embedded_BxLxD: Array) -> Array:
        """[B, L, D]: the projection of both, normed, the states first (the released weights have them second)."""
        both = jnp.concatenate([self.hidden_norm(hidden_BxLxD), self.embedding_norm(embedded_BxLxD)], axis=-1)
        return self.projection(both.reshape(-1, both.shape[-1])).reshape(hidden_BxLxD.shape)

    def finish(self, x_BxLxD: Array, dropout_key: Array | None) -> Array:
        """[B, L, D]: what the output table and the next head read."""
        if self.config.norm_position == "post":
            return x_BxLxD
        return dropout(self.final_norm(x_BxLxD), self.config.dropout_rate, dropout_key, shared_axis=1)


class SequentialHeads(nnx.Module):
    """DeepSeek-V3, section 2.2: head k reads the states of head k - 1, the Transformer's for the first, and one token
    more than it. Positions that attention turns or biases by are those of the states."""

    def __init__(self, config: ModelConfig, num_heads: int, *, rngs: nnx.Rngs):
        self.num_heads = num_heads
        self.layers = _stacked(lambda rngs: SequentialHead(config, rngs=rngs), num_heads, rngs)

    def __call__(
        self,
        transformer: Transformer,
        batch: Batch,
        tokens_NxBxL: Array,
        positions_NxBxL: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Array:
        """[1 + N, B, L, D] in the compute dtype: the Transformer's own `hidden`, and that of each head.

        tokens, positions: int32, of what stands k places after each input token, for head k = 1, ..., N. A head's state
        depends on the input tokens up to its position, and on its own and earlier heads' tokens up to there.
        """
        first_key, heads_key = split_key(dropout_key, 2)
        visibility = _visibility(transformer, batch)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=first_key)
        graphdef, layers = nnx.split(self.layers)

        def head(hidden_BxLxD, scanned):
            params, tokens_BxL, positions_BxL, key = scanned
            layer, (embed_key, layer_key, final_key) = nnx.merge(graphdef, params), split_key(key, 3)
            embedded_BxLxD = transformer.embed(tokens_BxL, positions_BxL, dropout_key=embed_key)
            x_BxLxD, _ = layer(layer.merge(hidden_BxLxD, embedded_BxLxD), visibility, dropout_key=layer_key)
            x_BxLxD = layer.finish(x_BxLxD, final_key)
            return x_BxLxD, x_BxLxD

        scanned = layers, tokens_NxBxL, positions_NxBxL, _keys(heads_key, self.num_heads)
        _, further_NxBxLxD = jax.lax.scan(rematerialized(transformer.config, head), hidden_BxLxD, scanned)
        return jnp.concatenate([hidden_BxLxD[None], further_NxBxLxD])


_HEADS = {"independent": IndependentHeads, "sequential": SequentialHeads}
Heads = IndependentHeads | SequentialHeads


def init_heads(config: ModelConfig, kind: Kind, num_heads: int, key: Array) -> Params:
    """float32 parameters of `num_heads` heads, drawn from `key`, for a Transformer of `config`."""
    return nnx.to_pure_dict(nnx.state(_HEADS[kind](config, num_heads, rngs=nnx.Rngs(key)), nnx.Param))


def bind_heads(config: ModelConfig, kind: Kind, num_heads: int, params: Params) -> Heads:
    """The heads with `params` in them. Costs nothing inside jit."""
    return nnx.merge(_graphdef(config, kind, num_heads), params)


@functools.cache
def _graphdef(config: ModelConfig, kind: Kind, num_heads: int) -> nnx.GraphDef[Heads]:
    return nnx.graphdef(nnx.eval_shape(lambda: _HEADS[kind](config, num_heads, rngs=nnx.Rngs(0))))


def _stacked(make: Callable[[nnx.Rngs], Layer], num: int, rngs: nnx.Rngs) -> Layer:
    return nnx.split_rngs(splits=num)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def _keys(key: Array | None, num: int) -> Array | None:
    return None if key is None else jax.random.split(key, num)


def _visibility(transformer: Transformer, batch: Batch) -> Visibility:
    """Who sees whom in the Transformer, which is who sees whom in the heads."""
    segment_ids = batch["decoder_segment_ids"]
    return transformer.decoder.visibility(
        batch["decoder_positions"],
        segment_ids,
        segment_ids,
        bidirectional_mask_BxS=batch["decoder_bidirectional_mask"],
    )


def _around_last_layer(
    stack: Stack, x_BxLxD: Array, visibility: Visibility, dropout_key: Array | None
) -> tuple[Array, Array]:
    """What the stack's last layer reads and what it returns, both [B, L, D], before the final norm.

    All layers run in one scan: cutting the last one off the stacked parameters would copy all the others.
    """
    graphdef, layers = nnx.split(stack.layers)

    def body(carry, scanned):
        params, key = scanned
        return (carry[1], nnx.merge(graphdef, params)(carry[1], visibility, dropout_key=key)[0]), None

    body, keys = rematerialized(stack.config, body), _keys(dropout_key, stack.config.num_layers)
    return jax.lax.scan(body, (x_BxLxD, x_BxLxD), (layers, keys))[0]
