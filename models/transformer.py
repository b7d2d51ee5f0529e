"""The Transformer, and pure functions that run it on a nested dict of parameters.

Batches have the fields of contract/batch.py. A parameter is named by its path, for example
`decoder/layers/self_attention/query/kernel` [N, D, H * K]; it has a leading layer axis if the path contains `/layers/`.
"""

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers, layers
from models.config import ModelConfig
from models.layers import Embedding, Linear, Norm, PredictionHead, logits_product, model_dropout, softcap, split_key
from models.parameters import Params, bind_module, init_module
from models.placement import constrain_activations
from models.positions import TargetPositions
from models.stack import AttentionContext, Stack

Batch = Mapping[str, Array]  # see contract/batch.py


class Transformer(nnx.Module):
    """An encoder-decoder, decoder-only or encoder-only model (`config.architecture`). Stacks share the token table.

    Without `config.share_embeddings` the encoder has a token table of its own, `encoder_token_embedder`.

    With `config.embeds_per_stack`, the encoder and the decoder have their own table of learned positions and their own
    embedding norm, whose names begin with the stack's: `decoder_position_embedder`.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.token_embedder = Embedding(config, config.vocab_size, rngs=rngs)
        if not config.share_embeddings:
            self.encoder_token_embedder = Embedding(config, config.vocab_size, rngs=rngs)
        for prefix in ("encoder_", "decoder_") if config.embeds_per_stack else ("",):
            if config.positions == "learned":
                setattr(self, f"{prefix}position_embedder", Embedding(config, config.max_length, rngs=rngs))
            if config.embedding_norm:
                setattr(self, f"{prefix}embedding_norm", Norm(config, features=config.embedding_width, rngs=rngs))
        if config.num_token_types:
            self.token_type_embedder = Embedding(config, config.num_token_types, rngs=rngs)
        if config.target_positions:
            self.target_positions = TargetPositions(config, rngs=rngs)
        if config.embedding_width != config.d_model:
            # Not named after the embeddings: the default of `optimizer.no_decay` would then exempt its kernel.
            self.input_projection = Linear(
                config, config.embedding_width, config.d_model, initializers.matrix(config), rngs=rngs
            )
        if config.has_encoder and not config.share_stacks:
            self.encoder = Stack(config, causal=False, cross_attention=False, rngs=rngs)
        if config.has_decoder:
            reads_encoder = config.has_encoder and not config.merged_attention
            self.decoder = Stack(config.of_decoder, causal=True, cross_attention=reads_encoder, rngs=rngs)
        if config.share_stacks:  # the encoder skips cross-attention
            self.encoder = Stack(config, causal=False, layers=self.decoder.layers, rngs=rngs)
        if config.predicts_tokens and config.prediction_head == "bert":
            self.prediction_head = PredictionHead(config, rngs=rngs)
        if config.predicts_tokens and not config.tie_embeddings:
            width = config.embedding_width if config.prediction_head == "bert" else config.d_model
            self.logits_dense = layers.output_layer(config, width, config.vocab_size, use_bias=False, rngs=rngs)

    def __call__(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns logits, float32 [B, L, V], at the decoder's positions, or at the encoder's if there is no decoder.

        No dropout if `dropout_key` is None. Raises ValueError as `embed` and `logits` do.
        """
        return self.logits(self.hidden(batch, dropout_key=dropout_key))

    def hidden(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns the final states, [B, L, D] in the compute dtype, from which `logits` computes the logits.

        No dropout if `dropout_key` is None. Raises ValueError as `embed` does.
        """
        encoder_key, decoder_key = split_key(dropout_key, 2)
        if not self.config.has_decoder:
            return self.encode(batch, dropout_key=encoder_key)
        encoded_BxExD = self.encode(batch, dropout_key=encoder_key) if self.config.has_encoder else None
        embed_key, stack_key = split_key(decoder_key, 2)
        tokens, positions = batch["decoder_input_tokens"], batch["decoder_positions"]
        targets = batch.get("decoder_target_positions")
        x = self.embed(tokens, positions, target_positions_BxL=targets, stack="decoder", dropout_key=embed_key)
        x_BxLxD, _ = self.decoder(x, self.decoder_attention(batch), encoded_BxExD=encoded_BxExD, dropout_key=stack_key)
        return x_BxLxD

    def decoder_attention(self, batch: Batch) -> AttentionContext:
        """Returns the decoder's masks, biases and rotary angles for `batch`.

        `decoder_bidirectional_mask` is read for a decoder-only model with `has_prefix`, and may be missing otherwise.
        """
        segment_ids, has_encoder = batch["decoder_segment_ids"], self.config.has_encoder
        return self.decoder.attention_context(
            batch["decoder_positions"],
            segment_ids,
            segment_ids,
            bidirectional_mask=open_prefix(batch) if self.config.has_prefix and not has_encoder else None,
            order_BxL=batch.get("decoder_attention_order"),
            encoder_segment_ids_BxE=batch["encoder_segment_ids"] if has_encoder else None,
            encoder_positions_BxE=batch["encoder_positions"] if has_encoder else None,
        )

    def encode(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns the encoder's final states, [B, E, D] in the compute dtype.

        Token types are 0 if the batch has no `encoder_token_types`. No dropout if `dropout_key` is None. Raises
        ValueError as `embed` does.
        """
        embed_key, stack_key = split_key(dropout_key, 2)
        segment_ids, positions = batch["encoder_segment_ids"], batch["encoder_positions"]
        token_types = None
        if self.config.num_token_types:
            token_types = batch.get("encoder_token_types", jnp.zeros_like(segment_ids))
        order = batch.get("encoder_attention_order")
        x = self.embed(batch["encoder_input_tokens"], positions, token_types, stack="encoder", dropout_key=embed_key)
        context = self.encoder.attention_context(positions, segment_ids, segment_ids, order_BxL=order)
        x_BxExD, _ = self.encoder(x, context, dropout_key=stack_key)
        return x_BxExD

    def embed(
        self,
        tokens_BxL: Array,
        positions_BxL: Array,
        token_types_BxL: Array | None = None,
        *,
        target_positions_BxL: Array | None = None,
        stack: Literal["encoder", "decoder"],
        dropout_key: Array | None = None,
    ) -> Array:
        """Returns the sum of token, position and type embeddings, projected to d_model: [B, L, D] in the compute dtype.

        tokens, positions, token types, target positions: int32. target_positions: read with `config.target_positions`;
        None: `positions`. stack: the stack that reads the result. Raises ValueError if rows are longer than the table
        of learned positions.
        """
        config, has_own = self.config, stack == "encoder" and not self.config.share_embeddings
        x_BxLxD = (self.encoder_token_embedder if has_own else self.token_embedder)(tokens_BxL)
        if config.scale_embeddings:
            x_BxLxD *= config.embedding_width**0.5
        prefix = f"{stack}_" if config.embeds_per_stack else ""
        if config.positions == "learned":
            x_BxLxD += self._embed_positions(positions_BxL, prefix)
        if token_types_BxL is not None:
            x_BxLxD += self.token_type_embedder(token_types_BxL)
        if config.target_positions:
            x_BxLxD += self.target_positions(positions_BxL, target_positions_BxL)
        if config.embedding_norm:
            x_BxLxD = getattr(self, f"{prefix}embedding_norm")(x_BxLxD)
        x_BxLxD = model_dropout(config, x_BxLxD, dropout_key)
        if config.embedding_width != config.d_model:
            x = self.input_projection(x_BxLxD.reshape(-1, config.embedding_width))
            x_BxLxD = x.reshape(*tokens_BxL.shape, config.d_model)
        return constrain_activations(x_BxLxD)

    def _embed_positions(self, positions_BxL: Array, prefix: str) -> Array:
        length = positions_BxL.shape[1]
        if length > self.config.max_length:
            raise ValueError(
                f"a row of {length} tokens is longer than the table of learned positions: shorten the "
                f"row to {self.config.max_length} tokens, or train with a larger model.max_length"
            )
        return getattr(self, f"{prefix}position_embedder")(positions_BxL)

    def logits(self, hidden: Array) -> Array:
        """Maps states [..., D] to logits, float32 [..., V]. A chunked loss passes some of the positions at a time.

        Raises ValueError for a model with `predicts_tokens=False`.
        """
        config, x = self.config, hidden.reshape(-1, self.config.d_model)
        if not config.predicts_tokens:
            raise ValueError("a model with predicts_tokens=False has no logits")
        bias = None
        if config.prediction_head == "bert":
            x, bias = self.prediction_head(x), self.prediction_head.bias
        if config.scale_logits:
            x = x * config.embedding_width**-0.5
        if config.tie_embeddings:
            logits = self.token_embedder.attend(x)
        else:
            logits = logits_product(x.astype(config.dtype), self.logits_dense.kernel[...])
        if bias is not None:
            logits = logits + bias[...]
        if config.logits_softcap:
            logits = softcap(logits, config.logits_softcap)
        return constrain_activations(logits.reshape(*hidden.shape[:-1], -1))


def open_prefix(batch: Batch) -> Array:
    """Returns the prefixes of a batch, bool [B, L], or [B, L, L] where only some of their edges are open."""
    prefix = batch["decoder_bidirectional_mask"]
    if "decoder_annealing_share" in batch:  # one matrix for all rows and layers
        key, share = jax.random.key(batch["decoder_annealing_key"][0]), batch["decoder_annealing_share"][0]
        prefix = prefix[:, None] & (jax.random.uniform(key, (prefix.shape[1],) * 2) < share)
    return prefix


def init_params(config: ModelConfig, key: Array) -> Params:
    """Returns float32 parameters drawn from `key`. Under `jax.eval_shape` (config bound), only shapes, at no cost."""
    return init_module(Transformer, config, key=key)


def bind(config: ModelConfig, params: Params) -> Transformer:
    """Returns the model with the parameters `params`, as in `bind(config, params).hidden(batch)`. Free inside jit."""
    return bind_module(Transformer, config, params=params)


def logits_parameters(config: ModelConfig) -> tuple[str, ...]:
    """Returns the names of the entries of the parameters that `Transformer.logits` reads."""
    head = ("prediction_head",) if config.prediction_head == "bert" else ()
    return (*head, "token_embedder" if config.tie_embeddings else "logits_dense")


def apply(config: ModelConfig, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
    """Returns logits, float32 [B, L, V] (`Transformer.__call__`). Pure: can be jitted with `config` static or bound."""
    return bind(config, params)(batch, dropout_key=dropout_key)
