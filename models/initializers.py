"""Parameter initializers: T5 v1.1's scheme (T5X), or one normal distribution for all matrices and tables (BERT, GPT-2).

Each function returns a jax initializer for the shape of *one* layer. Layers are stacked by a vmap over their
constructor, so the layer axis is never counted in a fan. Biases are 0 and the scales of norms 1 in both schemes.
"""

from jax.nn import initializers

from models.config import ModelConfig

Initializer = initializers.Initializer


def matrix(config: ModelConfig) -> Initializer:
    """Dense kernels [fan_in, fan_out] outside attention: in T5, a truncated normal of variance 1 / fan_in."""
    return _t5_or_normal(config, initializers.variance_scaling(1.0, "fan_in", "truncated_normal"))


def query(config: ModelConfig) -> Initializer:
    """Query kernels: in T5, a normal of standard deviation (d_model * head_dim)^-0.5.

    T5 does not divide attention scores by sqrt(head_dim): this initializer contains the division. With
    `scale_attention` the forward pass divides instead, and the standard deviation is d_model^-0.5.
    """
    score_scale = 1 if config.scale_attention else config.head_dim
    return _t5_or_normal(config, initializers.normal((config.d_model * score_scale) ** -0.5))


def key_value(config: ModelConfig) -> Initializer:
    """Key and value kernels: in T5, a normal of standard deviation d_model^-0.5."""
    return _t5_or_normal(config, initializers.normal(config.d_model**-0.5))


def attention_output(config: ModelConfig) -> Initializer:
    """Attention's output kernels: in T5, a normal of standard deviation (num_heads * head_dim)^-0.5."""
    return _t5_or_normal(config, initializers.normal((config.num_heads * config.head_dim) ** -0.5))


def embedding(config: ModelConfig) -> Initializer:
    """Token, position and token type tables: in T5, a normal of standard deviation 1."""
    return _t5_or_normal(config, initializers.normal(1.0))


def relative_bias(config: ModelConfig) -> Initializer:
    """Table of relative position biases [H, buckets]: in T5X, uniform of variance 2 / (H + buckets)."""
    return _t5_or_normal(config, initializers.variance_scaling(1.0, "fan_avg", "uniform"))


def _t5_or_normal(config: ModelConfig, t5: Initializer) -> Initializer:
    """Returns `t5`, or for model.initializer="normal" a normal of standard deviation model.initializer_range."""
    return t5 if config.initializer == "t5" else initializers.normal(config.initializer_range)
