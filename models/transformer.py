"""The Transformer, and plain functions that run it on a nested dict of parameters.

The batch is the one of contract/batch.py; fields are read by name. Parameters are named by their path, for example
`decoder/layers/self_attention/query/kernel` [N, D, H * K]: a leading layer axis where the path has `/layers/`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Embedding, Linear, Norm, PredictionHead, dropout, split_key
from models.placement import placed
from models.stack import Stack

Params = dict[str, Any]  # nested dict of arrays
Batch = Mapping[str, Array]


class Transformer(nnx.Module):
    """Encoder-decoder, decoder-only or encoder-only, as `config.architecture` says; one token table for all stacks."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.token_embedder = Embedding(config, config.vocab_size, rngs=rngs)
        if config.positions == "learned":
            self.position_embedder = Embedding(config, config.max_length, rngs=rngs)
        if config.num_token_types:
            self.token_type_embedder = Embedding(config, config.num_token_types, rngs=rngs)
        if config.embedding_norm:
            self.embedding_norm = Norm(config, features=config.embedding_width, rngs=rngs)
        if config.embedding_width != config.d_model:
            # Not named after the embeddings, whose parameters `optimizer.no_decay` knows by their name.
            self.input_projection = Linear(
                config, config.embedding_width, config.d_model, initializers.matrix(config), rngs=rngs
            )
        if config.has_encoder:
            self.encoder = Stack(config, causal=False, cross_attention=False, rngs=rngs)
        if config.has_decoder:
            self.decoder = Stack(config, causal=True, cross_attention=config.has_encoder, rngs=rngs)
        if config.predicts_tokens and config.prediction_head == "bert":
            self.prediction_head = PredictionHead(config, rngs=rngs)
        if config.predicts_tokens and not config.tie_embeddings:
            self.logits_dense = nnx.Linear(
                config.embedding_width if config.prediction_head == "bert" else config.d_model,
                config.vocab_size,
                use_bias=False,
                dtype=config.dtype,
                preferred_element_type="float32",
                kernel_init=initializers.matrix(config),
                rngs=rngs,
            )

    def __call__(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Logits float32 [B, L, V] of the decoder's positions, or the encoder's where there is no decoder.

        No dropout where `dropout_key` is None. Raises ValueError for rows longer than the table of learned positions.
        """
        return self.logits(self.hidden(batch, dropout_key=dropout_key))

    def hidden(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """[B, L, D] in the compute dtype: what `logits` turns into logits."""
        encoder_key, decoder_key = split_key(dropout_key, 2)
        encoded_BxExD = self.encode(batch, dropout_key=encoder_key) if self.config.has_encoder else None
        if not self.config.has_decoder:
            return encoded_BxExD
        embed_key, stack_key = split_key(decoder_key, 2)
        segment_ids, positions = batch["decoder_segment_ids"], batch["decoder_positions"]
        x_BxLxD, _ = self.decoder(
            self.embed(batch["decoder_input_tokens"], positions, dropout_key=embed_key),
            self.decoder.visibility(
                positions,
                segment_ids,
                segment_ids,
                bidirectional_mask_BxS=None if self.config.has_encoder else batch["decoder_bidirectional_mask"],
                encoder_segment_ids_BxE=batch["encoder_segment_ids"] if self.config.has_encoder else None,
            ),
            encoded_BxExD=encoded_BxExD,
            dropout_key=stack_key,
        )
        return x_BxLxD

    def encode(self, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """[B, E, D]: the encoder's final states."""
        embed_key, stack_key = split_key(dropout_key, 2)
        segment_ids, positions = batch["encoder_segment_ids"], batch["encoder_positions"]
        token_types = None
        if self.config.num_token_types:  # a text that is no pair is all of its first type
            token_types = batch.get("encoder_token_types", jnp.zeros_like(segment_ids))
        x_BxExD, _ = self.encoder(
            self.embed(batch["encoder_input_tokens"], positions, token_types, dropout_key=embed_key),
            self.encoder.visibility(
                positions, segment_ids, segment_ids, order_BxL=batch.get("encoder_attention_order")
            ),
            dropout_key=stack_key,
        )
        return x_BxExD

    def embed(
        self,
        tokens_BxL: Array,
        positions_BxL: Array,
        token_types_BxL: Array | None = None,
        *,
        dropout_key: Array | None = None,
    ) -> Array:
        """[B, L, D]: the sum of the tables' rows, normed if the model does so, and brought to d_model."""
        config, x_BxLxD = self.config, self.token_embedder(tokens_BxL)
        if config.positions == "learned":
            if tokens_BxL.shape[1] > config.max_length:
                raise ValueError(
                    f"a row of {tokens_BxL.shape[1]} tokens is longer than model.max_length={config.max_length}, "
                    "the table of learned positions"
                )
            x_BxLxD += self.position_embedder(positions_BxL)
        if token_types_BxL is not None:
            x_BxLxD += self.token_type_embedder(token_types_BxL)
        if config.embedding_norm:
            x_BxLxD = self.embedding_norm(x_BxLxD)
        x_BxLxD = dropout(x_BxLxD, config.dropout_rate, dropout_key, shared_axis=1)
        if config.embedding_width != config.d_model:
            x = self.input_projection(x_BxLxD.reshape(-1, config.embedding_width))
            x_BxLxD = x.reshape(*tokens_BxL.shape, config.d_model)
        return placed(x_BxLxD)

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., V]; any number of positions at a time, as a chunked loss needs.

        Raises ValueError for a model that predicts no tokens.
        """
        config, x = self.config, hidden.reshape(-1, self.config.d_model)
        if not config.predicts_tokens:
            raise ValueError("a model built with predicts_tokens=False has no logits")
        if config.prediction_head == "bert":
            x = self.prediction_head(x)
        if config.scale_logits:
            x = x * config.embedding_width**-0.5
        logits = self.token_embedder.attend(x) if config.tie_embeddings else self.logits_dense(x)
        if config.prediction_head == "bert" and config.use_bias:
            logits = logits + self.prediction_head.bias[...]
        return placed(logits.reshape(*hidden.shape[:-1], -1))


def init_params(config: ModelConfig, key: Array) -> Params:
    """float32 parameters drawn from `key`. Under `jax.eval_shape` (config bound) only their shapes, at any size."""
    return nnx.to_pure_dict(nnx.state(Transformer(config, rngs=nnx.Rngs(key)), nnx.Param))


@functools.cache
def graphdef(config: ModelConfig) -> nnx.GraphDef[Transformer]:
    """The model without its parameters. Allocates nothing."""
    return nnx.graphdef(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))


def bind(config: ModelConfig, params: Params) -> Transformer:
    """The model with `params` in it: `bind(config, params).hidden(batch)`. Costs nothing inside jit."""
    return nnx.merge(graphdef(config), params)


def apply(config: ModelConfig, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
    """Logits float32 [B, L, V]; see Transformer.__call__. Pure: jit it with `config` static or bound."""
    return bind(config, params)(batch, dropout_key=dropout_key)
