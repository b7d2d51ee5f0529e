"""ELECTRA's discriminator head: for each token, the logit of having been replaced. Pure functions of its parameters."""

from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, activation, recomputed
from models.parameters import Params, bind_module, init_module


class DiscriminatorHead(nnx.Module):
    """A dense layer, the activation of model.mlp, and a dense layer with one output."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        init = initializers.matrix(config)
        self.activation = activation(config)
        self.dense = Linear(config, config.d_model, config.d_model, init, rngs=rngs)
        self.logits = nnx.Linear(
            config.d_model,
            1,
            use_bias=config.use_bias,
            dtype=config.dtype,
            preferred_element_type="float32",
            kernel_init=init,
            rngs=rngs,
        )

    def __call__(self, hidden_BxLxD: Array) -> Array:
        """Maps [B, L, D] to float32 [B, L]."""
        B, L, D = hidden_BxLxD.shape
        x = recomputed(self.activation)(self.dense(hidden_BxLxD.reshape(B * L, D)))
        return self.logits(x).reshape(B, L)


def init_head(config: ModelConfig, key: Array) -> Params:
    """Returns float32 parameters of the head for a Transformer of `config`, drawn from `key`."""
    return init_module(DiscriminatorHead, config, key=key)


def discriminator_logits(config: ModelConfig, params: Params, hidden_BxLxD: Array) -> Array:
    """Returns logits, float32 [B, L]: positive where the head predicts a replaced token.

    params: as from `init_head`. hidden: the Transformer's states, in the compute dtype.
    """
    return bind_module(DiscriminatorHead, config, params=params)(hidden_BxLxD)
