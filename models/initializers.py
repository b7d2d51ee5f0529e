"""Parameter initializers: T5 v1.1's (T5X), BERT's (one normal distribution for all matrices and tables) and GPT-2's.

GPT-2's scheme ("gpt2") is the normal distribution of BERT's, N(0, model.initializer_range), except for the kernels
whose outputs are added to the residual stream: there the standard deviation is divided by sqrt(2 num_layers), the
number of such additions in a stack without cross-attention (Radford et al. 2019, section 2.3). In an encoder-decoder
num_layers is that of the parameter's stack, and cross-attention's outputs are divided by the same number.

Deviations: google-research's code of BERT, ALBERT and ELECTRA truncates its normal distribution at two standard
deviations, which leaves 0.88 of the deviation, and ModernBERT's at three. Hugging Face's and fairseq's code does not.
OpenAI's GPT-2 draws learned positions with a standard deviation of 0.01, and Hugging Face's does not.

Each function returns a jax initializer for the shape of *one* layer. Layers are stacked by a vmap over their
constructor, so the layer axis is never counted in a fan. Biases are 0 and the scales of norms 1 in all schemes.
"""

from jax.nn import initializers

from models.config import ModelConfig

Initializer = initializers.Initializer


def width_ratio(config: ModelConfig) -> float:
    """Returns d_model by that of the base, 1 with another model.parameterization."""
    return config.d_model / config.base_d_model if config.parameterization == "complete_p" else 1.0


def depth_ratio(config: ModelConfig) -> float:
    """Returns the layers of a stack by those of the base, 1 with another model.parameterization."""
    return config.num_layers / config.base_num_layers if config.parameterization == "complete_p" else 1.0


def matrix(config: ModelConfig) -> Initializer:
    """Dense kernels [fan_in, fan_out] outside attention: in T5, a truncated normal of variance 1 / fan_in."""
    return _t5_or_normal(config, _truncated_normal())


def mlp_output(config: ModelConfig) -> Initializer:
    """Output kernels of the feed-forward block: as `matrix`, except in GPT-2 and by depth_ratio."""
    return _t5_or_normal(config, _truncated_normal(depth_ratio(config) ** -2), is_residual_output=True)


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
    t5 = initializers.normal((config.num_heads * config.head_dim) ** -0.5 / depth_ratio(config))
    return _t5_or_normal(config, t5, is_residual_output=True)


def embedding(config: ModelConfig) -> Initializer:
    """Token, position and token type tables: in T5, a normal of standard deviation 1."""
    return _t5_or_normal(config, initializers.normal(1.0))


def relative_bias(config: ModelConfig) -> Initializer:
    """Table of relative position biases [H, buckets]: in T5X, uniform of variance 2 / (H + buckets).

    H is that of the base in CompleteP, where the bias of one head is the same at all widths.
    """
    buckets, heads = config.relative_num_buckets, config.num_heads
    scale = (heads + buckets) / (heads / width_ratio(config) + buckets)
    return _t5_or_normal(config, initializers.variance_scaling(scale, "fan_avg", "uniform"))


def output_table(config: ModelConfig) -> Initializer:
    """The kernels of logits, of tokens, classes or replaced tokens: as `matrix`, and by width_ratio."""
    return _t5_or_normal(config, _truncated_normal(1 / width_ratio(config)))


def _truncated_normal(scale: float = 1.0) -> Initializer:
    return initializers.variance_scaling(scale, "fan_in", "truncated_normal")


def _t5_or_normal(config: ModelConfig, t5: Initializer, *, is_residual_output: bool = False) -> Initializer:
    """Returns `t5`, or a normal of standard deviation model.initializer_range, as model.initializer says.

    is_residual_output: whether the kernel's outputs are added to the residual stream; only "gpt2" distinguishes these.
    """
    if config.initializer == "t5":
        return t5
    is_scaled = is_residual_output and config.initializer == "gpt2"
    return initializers.normal(config.initializer_range * ((2 * config.num_layers) ** -0.5 if is_scaled else 1))
