"""Multi-token prediction: heads on a decoder-only Transformer that predict tokens after the next one.

N is the number of heads. The heads' parameters, for example `layers/self_attention/query/kernel` [N, D, H * K], are
separate from the Transformer's; the embedding, the output table and the relative position biases are the Transformer's.
The Transformer itself is unchanged: without the heads it predicts the next token.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, Norm, scan_layers, split_key
from models.parameters import Params, bind_module, init_module
from models.stack import AttentionContext, FinalNorm, Layer, Stack, layer_keys, stack_layers
from models.transformer import Batch, Transformer

Kind = Literal["independent", "sequential"]


class IndependentHeads(nnx.Module):
    """One layer for each further token, on the input of the Transformer's last layer (Gloeckle et al. 2024).

    The Transformer's last layer thus acts as the head of the next token, and the layers below it as the shared trunk.
    In pre-norm models each head's layer is followed by the Transformer's final norm.
    """

    def __init__(self, config: ModelConfig, num_heads: int, *, rngs: nnx.Rngs):
        self.config = config
        self.num_heads = num_heads
        self.layers = stack_layers(lambda rngs: Layer(config, cross_attention=False, rngs=rngs), num_heads, rngs)

    def __call__(self, transformer: Transformer, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns the final states of the Transformer and of each head, [1 + N, B, L, D] in the compute dtype.

        A head's state at a position depends on the input tokens up to that position. No dropout if `dropout_key` is
        None.
        """
        decoder = transformer.decoder
        embed_key, trunk_key, heads_key, final_key = split_key(dropout_key, 4)
        context = transformer.decoder_attention(batch)
        x_BxLxD = transformer.embed(
            batch["decoder_input_tokens"], batch["decoder_positions"], stack="decoder", dropout_key=embed_key
        )
        trunk_BxLxD, next_BxLxD = _last_layer_input_and_output(decoder, x_BxLxD, context, trunk_key)
        graphdef, layers = nnx.split(self.layers)

        def head(_, scanned):
            params, key = scanned
            return None, nnx.merge(graphdef, params)(trunk_BxLxD, context, dropout_key=key)[0]

        scanned = layers, layer_keys(heads_key, self.num_heads)
        _, further_NxBxLxD = scan_layers(self.config, head, None, scanned)
        x_NxBxLxD = jnp.concatenate([next_BxLxD[None], further_NxBxLxD])
        if self.config.norm_position == "pre":
            keys = layer_keys(final_key, 1 + self.num_heads)
            x_NxBxLxD = jax.vmap(lambda x, key: decoder.final_norm(x, dropout_key=key))(x_NxBxLxD, keys)
        return x_NxBxLxD


class SequentialHead(Layer):
    """One MTP module of DeepSeek-V3: a layer on a projection of the previous head's states and one token's embedding.

    In pre-norm models each head has its own final norm, as in the released weights.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, cross_attention=False, rngs=rngs)
        self.hidden_norm = Norm(config, rngs=rngs)
        self.embedding_norm = Norm(config, rngs=rngs)
        self.projection = Linear(config, 2 * config.d_model, config.d_model, initializers.matrix(config), rngs=rngs)
        if config.norm_position == "pre":
            self.final_norm = FinalNorm(config, rngs=rngs)

    def merge(self, hidden_BxLxD: Array, embedded_BxLxD: Array) -> Array:
        """Returns the projection, [B, L, D], of the normed states and embeddings, concatenated in this order.

        The order is that of the paper. The released weights have the embeddings first.
        """
        concatenated = jnp.concatenate([self.hidden_norm(hidden_BxLxD), self.embedding_norm(embedded_BxLxD)], axis=-1)
        return self.projection(concatenated.reshape(-1, concatenated.shape[-1])).reshape(hidden_BxLxD.shape)


class SequentialHeads(nnx.Module):
    """A chain of heads (DeepSeek-V3, section 2.2): head k reads the states of head k - 1 and one more token.

    Head 1 reads the Transformer's states. Attention uses the positions of the states, not those of the added tokens.
    """

    def __init__(self, config: ModelConfig, num_heads: int, *, rngs: nnx.Rngs):
        self.num_heads = num_heads
        self.layers = stack_layers(lambda rngs: SequentialHead(config, rngs=rngs), num_heads, rngs)

    def __call__(
        self,
        transformer: Transformer,
        batch: Batch,
        tokens_NxBxL: Array,
        positions_NxBxL: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Array:
        """Returns the final states of the Transformer and of each head, [1 + N, B, L, D] in the compute dtype.

        tokens, positions: int32, for head k = 1, ..., N the token k places after each input token, and its position. A
        head's state at a position depends on the input tokens up to that position, and on its own and earlier heads'
        tokens up to that position. No dropout if `dropout_key` is None.
        """
        first_key, heads_key = split_key(dropout_key, 2)
        context = transformer.decoder_attention(batch)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=first_key)
        graphdef, layers = nnx.split(self.layers)

        def head(hidden_BxLxD, scanned):
            params, tokens_BxL, positions_BxL, key = scanned
            layer, (embed_key, layer_key, final_key) = nnx.merge(graphdef, params), split_key(key, 3)
            embedded_BxLxD = transformer.embed(tokens_BxL, positions_BxL, stack="decoder", dropout_key=embed_key)
            x_BxLxD, _ = layer(layer.merge(hidden_BxLxD, embedded_BxLxD), context, dropout_key=layer_key)
            if transformer.config.norm_position == "pre":
                x_BxLxD = layer.final_norm(x_BxLxD, dropout_key=final_key)
            return x_BxLxD, x_BxLxD

        scanned = layers, tokens_NxBxL, positions_NxBxL, layer_keys(heads_key, self.num_heads)
        _, further_NxBxLxD = scan_layers(transformer.config, head, hidden_BxLxD, scanned)
        return jnp.concatenate([hidden_BxLxD[None], further_NxBxLxD])


Heads = IndependentHeads | SequentialHeads
_HEADS: dict[Kind, Callable[..., Heads]] = {"independent": IndependentHeads, "sequential": SequentialHeads}


def init_heads(config: ModelConfig, kind: Kind, num_heads: int, key: Array) -> Params:
    """Returns float32 parameters of `num_heads` heads, drawn from `key`, for a Transformer of `config`."""
    return init_module(_HEADS[kind], config, num_heads, key=key)


def bind_heads(config: ModelConfig, kind: Kind, num_heads: int, params: Params) -> Heads:
    """Returns the heads with `params` as their parameters. Free inside jit."""
    return bind_module(_HEADS[kind], config, num_heads, params=params)


def _last_layer_input_and_output(
    stack: Stack, x_BxLxD: Array, context: AttentionContext, dropout_key: Array | None
) -> tuple[Array, Array]:
    """Returns the input and the output of the stack's last layer, both [B, L, D], before the final norm.

    All layers run in one scan, because slicing the last layer off the stacked parameters would copy the others.
    """
    graphdef, layers = nnx.split(stack.layers)

    def body(carry, scanned):
        params, key, number = scanned
        _, x = carry
        own = context if number is None else context.of_layer(stack.config, number)
        return (x, nnx.merge(graphdef, params)(x, own, dropout_key=key)[0]), None

    scanned = layers, layer_keys(dropout_key, stack.config.num_layers), stack.layer_numbers
    return scan_layers(stack.config, body, (x_BxLxD, x_BxLxD), scanned)[0]
