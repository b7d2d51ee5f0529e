"""How parameters start: T5 v1.1's scheme, and the plain normal of BERT and GPT-2.

Each function returns a jax initializer for the *unstacked* shape: layers are stacked by a vmap over their
constructor, so the layer axis never enters a fan.
"""

from jax.nn import initializers

from models.config import ModelConfig

Initializer = initializers.Initializer


def matrix(config: ModelConfig) -> Initializer:
    """Dense kernels [fan_in, fan_out] outside attention: T5X's truncated normal of variance 1 / fan_in."""
    if config.initializer == "normal":
        return initializers.normal(config.initializer_range)
    return initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def query(config: ModelConfig) -> Initializer:
    """T5 does not divide attention scores by sqrt(head_dim): the query kernel starts that much narrower instead.

    With `scale_attention` the division happens in the forward pass, and is not done twice.
    """
    if config.initializer == "normal":
        return initializers.normal(config.initializer_range)
    folded = 1 if config.scale_attention else config.head_dim
    return initializers.normal((config.d_model * folded) ** -0.5)


def key_value(config: ModelConfig) -> Initializer:
    """Standard deviation d_model^-0.5 (T5)."""
    if config.initializer == "normal":
        return initializers.normal(config.initializer_range)
    return initializers.normal(config.d_model**-0.5)


def attention_output(config: ModelConfig) -> Initializer:
    """Standard deviation (num_heads * head_dim)^-0.5 (T5): its fan is the heads' width, which need not be d_model."""
    if config.initializer == "normal":
        return initializers.normal(config.initializer_range)
    return initializers.normal((config.num_heads * config.head_dim) ** -0.5)


def embedding(config: ModelConfig) -> Initializer:
    """Rows of the token, position and token type tables: N(0, 1) in T5."""
    return initializers.normal(1.0 if config.initializer == "t5" else config.initializer_range)


def relative_bias(config: ModelConfig) -> Initializer:
    """The table of relative position biases [H, buckets] (T5X)."""
    if config.initializer == "normal":
        return initializers.normal(config.initializer_range)
    return initializers.variance_scaling(1.0, "fan_avg", "uniform")
