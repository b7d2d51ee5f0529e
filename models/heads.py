"""Heads on a Transformer's states: BERT's pooler, a classifier on it, and ELECTRA's discriminator.

The pooler is a representation of a row from the state at one position. The discriminator gives, for each token, the
logit of having been replaced.
"""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, activation, dropout, output_layer, recomputed


class Pooler(nnx.Module):
    """tanh of a dense layer, as in BERT. The layer has a bias even if model.use_bias=False."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.dense = nnx.Linear(
            config.d_model, config.d_model, dtype=config.dtype, kernel_init=initializers.matrix(config), rngs=rngs
        )

    def __call__(self, state_BxD: Array) -> Array:
        """Maps [B, D] to [B, D] in the compute dtype."""
        return jnp.tanh(self.dense(state_BxD))


class Classifier(nnx.Module):
    """A pooler, dropout, and a dense layer with a bias, as in BERT's run_classifier.py."""

    def __init__(self, config: ModelConfig, num_classes: int, *, rngs: nnx.Rngs):
        self.config = config
        self.pooler = Pooler(config, rngs=rngs)
        self.classes_dense = output_layer(config, config.d_model, num_classes, rngs=rngs)

    def __call__(self, state_BxD: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps [B, D] to logits, float32 [B, classes]. No dropout if `dropout_key` is None."""
        pooled_BxD = self.pooler(state_BxD)
        pooled_BxD = dropout(pooled_BxD, self.config.dropout_rate, dropout_key, broadcast_positions=False)
        return self.classes_dense(pooled_BxD).astype(jnp.float32)


def state_at(hidden_BxLxD: Array, positions_B: Array) -> Array:
    """Returns the state of each row at the row's position, [B, D]. positions: int [B]."""
    return jnp.take_along_axis(hidden_BxLxD, positions_B[:, None, None], axis=1)[:, 0]


def mean_state(hidden_BxLxD: Array, segment_ids_BxL: Array) -> Array:
    """Returns the mean state of each row, float32 [B, D], over its tokens, special tokens included, without padding.

    The mean pooling of Sentence-BERT (Reimers & Gurevych 2019). segment_ids: int32, 0 for padding.
    """
    is_token_BxL = (segment_ids_BxL > 0).astype(jnp.float32)
    total_BxD = jnp.einsum("bld,bl->bd", hidden_BxLxD.astype(jnp.float32), is_token_BxL)
    return total_BxD / jnp.maximum(is_token_BxL.sum(axis=1, keepdims=True), 1.0)


class DiscriminatorHead(nnx.Module):
    """A dense layer, the activation of model.mlp, and a dense layer with one output."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.activation = activation(config)
        self.dense = Linear(config, config.d_model, config.d_model, initializers.matrix(config), rngs=rngs)
        self.logits = output_layer(config, config.d_model, 1, use_bias=config.use_bias, rngs=rngs)

    def __call__(self, hidden_BxLxD: Array) -> Array:
        """Maps [B, L, D] to float32 [B, L]."""
        B, L, D = hidden_BxLxD.shape
        x = recomputed(self.activation)(self.dense(hidden_BxLxD.reshape(B * L, D)))
        return self.logits(x).reshape(B, L)
