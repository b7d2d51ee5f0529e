"""ELECTRA's discriminating head: for each token, whether it is the original. Plain functions of its parameters."""

import functools

from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Linear, gelu, recomputed
from models.transformer import Params


class DiscriminatorHead(nnx.Module):
    """Dense, GELU, and a product with one vector."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        init = initializers.matrix(config)
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
        B, L, D = hidden_BxLxD.shape
        x = recomputed(gelu)(self.dense(hidden_BxLxD.reshape(B * L, D)))
        return self.logits(x).reshape(B, L)


def init_head(config: ModelConfig, key: Array) -> Params:
    """float32 parameters drawn from `key`."""
    return nnx.to_pure_dict(nnx.state(DiscriminatorHead(config, rngs=nnx.Rngs(key)), nnx.Param))


@functools.cache
def _graphdef(config: ModelConfig) -> nnx.GraphDef[DiscriminatorHead]:
    return nnx.graphdef(nnx.eval_shape(lambda: DiscriminatorHead(config, rngs=nnx.Rngs(0))))


def discriminator_logits(config: ModelConfig, params: Params, hidden_BxLxD: Array) -> Array:
    """float32 [B, L]: above 0 where the token looks replaced. `params` are those of `init_head`."""
    return nnx.merge(_graphdef(config), params)(hidden_BxLxD)
