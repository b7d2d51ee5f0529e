"""What a whole row is taken to be: BERT's pooler on one of its states, and a classifier on that."""

import functools

import jax.numpy as jnp
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import dropout
from models.transformer import Params


class Pooler(nnx.Module):
    """tanh of a dense layer, with a bias whatever the model has."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.dense = nnx.Linear(
            config.d_model, config.d_model, dtype=config.dtype, kernel_init=initializers.matrix(config), rngs=rngs
        )

    def __call__(self, state_BxD: Array) -> Array:
        """[B, D] -> [B, D] in the compute dtype."""
        return jnp.tanh(self.dense(state_BxD))


class Classifier(nnx.Module):
    """A pooler and, on it, dropout (as in BERT's run_classifier.py) and a dense layer with a bias."""

    def __init__(self, config: ModelConfig, num_classes: int, *, rngs: nnx.Rngs):
        self.config = config
        self.pooler = Pooler(config, rngs=rngs)
        self.classes_dense = nnx.Linear(
            config.d_model,
            num_classes,
            dtype=config.dtype,
            preferred_element_type="float32",
            kernel_init=initializers.matrix(config),
            rngs=rngs,
        )

    def __call__(self, state_BxD: Array, *, dropout_key: Array | None = None) -> Array:
        """[B, D] -> logits float32 [B, classes]. No dropout where `dropout_key` is None."""
        pooled_Bx1xD = self.pooler(state_BxD)[:, None]
        pooled_Bx1xD = dropout(pooled_Bx1xD, self.config.dropout_rate, dropout_key, shared_axis=1)
        return self.classes_dense(pooled_Bx1xD[:, 0]).astype(jnp.float32)


def state_at(hidden_BxLxD: Array, positions_B: Array) -> Array:
    """[B, D]: each row's state at its position; positions: int [B]."""
    return jnp.take_along_axis(hidden_BxLxD, positions_B[:, None, None], axis=1)[:, 0]


def init_pooler(config: ModelConfig, key: Array) -> Params:
    """float32 parameters of a pooler on the states of a Transformer of `config`, drawn from `key`."""
    return nnx.to_pure_dict(nnx.state(Pooler(config, rngs=nnx.Rngs(key)), nnx.Param))


def bind_pooler(config: ModelConfig, params: Params) -> Pooler:
    """The pooler with `params` in it. Costs nothing inside jit."""
    return nnx.merge(_pooler_graphdef(config), params)


def init_classifier(config: ModelConfig, num_classes: int, key: Array) -> Params:
    """float32 parameters of a classifier on the states of a Transformer of `config`, drawn from `key`."""
    return nnx.to_pure_dict(nnx.state(Classifier(config, num_classes, rngs=nnx.Rngs(key)), nnx.Param))


def bind_classifier(config: ModelConfig, num_classes: int, params: Params) -> Classifier:
    """The classifier with `params` in it. Costs nothing inside jit."""
    return nnx.merge(_classifier_graphdef(config, num_classes), params)


@functools.cache
def _pooler_graphdef(config: ModelConfig) -> nnx.GraphDef[Pooler]:
    return nnx.graphdef(nnx.eval_shape(lambda: Pooler(config, rngs=nnx.Rngs(0))))


@functools.cache
def _classifier_graphdef(config: ModelConfig, num_classes: int) -> nnx.GraphDef[Classifier]:
    return nnx.graphdef(nnx.eval_shape(lambda: Classifier(config, num_classes, rngs=nnx.Rngs(0))))
