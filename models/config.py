"""The configuration of a Transformer: T5, BERT, GPT-2 and Llama differ only in the values of its fields."""

import dataclasses
import math
from typing import Annotated, Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The fields of `config.model`, documented in configs/base.py, and four that the caller derives.

    A field that is added declares as its default the value with which the model is as it was without the field. Code
    that does not name the field, such as a class of Hugging Face's models, then has that model or refuses others.

    The range in an annotation is that of the config's field (contract/ranges.py), which the config checks.

    Raises ValueError for an invalid combination: one line that names the field, as in `model.num_kv_heads=3`.
    """

    architecture: Literal["encoder_decoder", "decoder_only", "encoder_only"]
    num_layers: Annotated[int, "[1, 10000]"]
    d_model: Annotated[int, "[1, 2**20]"]
    num_heads: Annotated[int, "[1, 2**16]"]
    num_kv_heads: Annotated[int, "[1, 2**16]"]
    head_dim: Annotated[int, "[1, 2**16]"]
    d_ff: Annotated[int, "[1, 2**22]"]
    embedding_size: Annotated[int, "[0, 2**20]"]
    mlp: Literal["relu", "gelu", "exact_gelu", "silu", "gated_gelu", "gated_exact_gelu", "gated_silu"]
    positions: Literal["relative", "rope", "learned", "none"]
    relative_num_buckets: Annotated[int, "[1, 2**16]"]
    relative_max_distance: Annotated[int, "[1, 2**31)"]
    rope_theta: Annotated[float, "(0, 1e30]"]
    norm: Literal["rms", "layer"]
    norm_position: Literal["pre", "post"]
    norm_epsilon: Annotated[float, "(0, 1]"]
    use_bias: bool
    tie_embeddings: bool
    share_stacks: bool  # one set of layers for encoder and decoder
    scale_logits: bool
    scale_attention: bool
    embedding_norm: bool
    prediction_head: Literal["linear", "bert"]
    num_token_types: Annotated[int, "[0, 2**16]"]  # rows of the token type table (BERT's A and B); 0: no table
    initializer: Literal["t5", "normal", "gpt2"]
    initializer_range: Annotated[float, "(0, inf)"]
    dropout_rate: Annotated[float, "[0, 1)"]
    dropout_broadcast_positions: bool
    remat: Literal["auto", "none", "dots", "full"]
    scan_unroll: Annotated[int, "[0, 10000]"]
    attention: Literal["auto", "xla", "cudnn", "splash", "flash"]

    num_decoder_layers: Annotated[int, "[0, 10000]"] = 0  # of an encoder-decoder; 0: num_layers
    target_positions: bool = False  # whether each position also has the position of its target (sigma-GPT)
    merged_attention: bool = False  # the decoder's self-attention also reads the encoder: no cross-attention
    continuous_positions: bool = False  # the decoder's positions follow the encoder's; cross-attention is rotary
    share_embeddings: bool = True  # one token table for encoder and decoder
    scale_embeddings: bool = False
    global_every: Annotated[int, "[1, 10000]"] = 1
    first_layer_global: bool = True
    local_distance: Annotated[int, "[0, 2**24]"] = 64
    local_rope_theta: Annotated[float, "(0, 1e30]"] = 10000.0
    partial_rotary_factor: Annotated[float, "(0, 1]"] = 1.0
    rope_scaling_factor: Annotated[float, "[1, 2**20]"] = 1.0
    rope_original_length: Annotated[int, "[1, 2**24]"] = 8192
    first_attention_norm: bool = True
    sandwich_norm: bool = False
    qk_norm: bool = False
    head_norms: Literal["none", "qkv", "qkvo"] = "none"
    qkv_bias: bool = False
    parallel_residual: bool = False
    attention_dropout: bool = True
    attention_softcap: Annotated[float, "[0, inf)"] = 0.0
    logits_softcap: Annotated[float, "[0, inf)"] = 0.0
    logits_bias: bool = False
    parameterization: Literal["standard", "complete_p"] = "standard"
    base_d_model: Annotated[int, "[1, 2**20]"] = 128
    base_num_layers: Annotated[int, "[1, 10000]"] = 2

    # In configs these two may be 0: the caller then derives them.
    vocab_size: Annotated[int, "[0, 2**26]"]  # rows of the token table, padding rows included
    max_length: Annotated[int, "[0, 2**24]"]  # rows of the table of learned positions; not read for other positions

    dtype: Literal["float32", "bfloat16", "float16"]  # of the computation; parameters are always float32
    has_prefix: bool = True  # False: a decoder-only model is causal and reads no `decoder_bidirectional_mask`
    one_segment: bool = False  # True: a row is one segment, then padding; cuDNN's attention then needs no mask array
    predicts_tokens: bool = True  # False: no prediction head and no output table; `Transformer.logits` raises

    def __post_init__(self) -> None:
        _check_combinations(self)

    @property
    def has_encoder(self) -> bool:
        """Whether there is an encoder stack."""
        return self.architecture != "decoder_only"

    @property
    def has_decoder(self) -> bool:
        """Whether there is a decoder stack."""
        return self.architecture != "encoder_only"

    @property
    def of_decoder(self) -> "ModelConfig":
        """This config for the decoder's stack: num_layers is its number of layers."""
        return dataclasses.replace(self, num_layers=self.num_decoder_layers or self.num_layers, num_decoder_layers=0)

    @property
    def layers_differ(self) -> bool:
        """Whether layers of a stack compute different things: local attention, or no norm in the first layer."""
        return self.global_every > 1 or not self.first_attention_norm

    @property
    def embeds_per_stack(self) -> bool:
        """Whether encoder and decoder have their own table of learned positions and embedding norm, as in BART."""
        return self.architecture == "encoder_decoder" and not self.share_stacks

    @property
    def rotary_features(self) -> int:
        """Features of a head that rotary positions rotate, the first ones."""
        return int(self.head_dim * self.partial_rotary_factor)

    def is_global(self, layer: Any) -> Any:
        """Returns whether `layer`, a number from 0 on or an array of numbers, attends to the whole text."""
        return (layer + (0 if self.first_layer_global else 1)) % self.global_every == 0

    @property
    def embedding_width(self) -> int:
        """Columns of the embedding tables: model.embedding_size, or model.d_model if embedding_size is 0."""
        return self.embedding_size or self.d_model


def _check_combinations(config: ModelConfig) -> None:
    """Raises ValueError for fields that contradict each other."""
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"model.num_kv_heads={config.num_kv_heads} must divide model.num_heads={config.num_heads}: "
            "every key/value head serves the same number of query heads"
        )
    if config.positions == "rope":
        _check_rope(config)
    if config.positions == "relative":
        buckets, distance = config.relative_num_buckets, config.relative_max_distance
        if buckets % 2 or buckets < 4:
            raise ValueError(f"model.relative_num_buckets={buckets} must be even and at least 4")
        if distance <= buckets // 2:
            raise ValueError(
                f"model.relative_max_distance={distance} must be above half of "
                f"model.relative_num_buckets={buckets}: shorter distances have one bucket each"
            )
    if config.scale_logits and not config.tie_embeddings:
        raise ValueError("model.scale_logits=True needs model.tie_embeddings=True: only a tied table has scaled logits")
    is_factorized, has_linear_head = config.embedding_width != config.d_model, config.prediction_head == "linear"
    if is_factorized and has_linear_head and config.tie_embeddings and config.predicts_tokens:
        raise ValueError(
            f"model.embedding_size={config.embedding_size} differs from model.d_model={config.d_model}: with "
            "model.tie_embeddings=True this needs model.prediction_head='bert', which projects states to the table's "
            "width"
        )
    has_more_norms = config.sandwich_norm or config.head_norms != "none"
    if config.layers_differ or config.logits_bias or config.parallel_residual or has_more_norms:
        _check_layers(config)
    if config.parameterization == "complete_p":
        _check_complete_p(config)
    has_rare_positions = config.target_positions or config.continuous_positions
    if config.architecture != "encoder_decoder" or has_rare_positions or config.num_decoder_layers:
        _check_stacks(config)


def _check_stacks(config: ModelConfig) -> None:
    """Raises ValueError for fields that need an encoder, two stacks, or a kind of positions."""
    if config.target_positions and config.positions not in ("learned", "rope"):
        raise ValueError(f"model.positions={config.positions!r} must be 'learned' or 'rope' for target_positions=True")
    pairs = dict(share_stacks=True, merged_attention=True, continuous_positions=True, share_embeddings=False)
    for field, value in (pairs | {"num_decoder_layers": config.num_decoder_layers or None}).items():
        if getattr(config, field) == value and config.architecture != "encoder_decoder":
            raise ValueError(
                f"model.{field}={value} needs model.architecture='encoder_decoder', not {config.architecture!r}"
            )
    if config.share_stacks and config.num_decoder_layers not in (0, config.num_layers):
        raise ValueError(
            f"model.num_decoder_layers={config.num_decoder_layers} must be 0 for model.share_stacks=True, or "
            f"model.num_layers={config.num_layers}: the stacks have the same layers"
        )
    if config.continuous_positions and (config.positions != "rope" or config.global_every > 1):
        raise ValueError(
            f"model.continuous_positions=True needs model.positions='rope', not {config.positions!r}, and "
            f"model.global_every=1, not {config.global_every}: all layers rotate the encoder's keys alike"
        )
    if config.num_token_types and not config.has_encoder:
        raise ValueError(
            f"model.num_token_types={config.num_token_types} needs an encoder: set it to 0 for "
            f"model.architecture={config.architecture!r}"
        )


def _check_rope(config: ModelConfig) -> None:
    """Raises ValueError if rotary positions cannot rotate the features of a head in pairs."""
    if config.rotary_features % 2 or not config.rotary_features:
        part = f" times model.partial_rotary_factor={config.partial_rotary_factor}" * (config.partial_rotary_factor < 1)
        raise ValueError(f"model.head_dim={config.head_dim}{part} must be even for model.positions='rope'")


def _check_layers(config: ModelConfig) -> None:
    """Raises ValueError for fields of layers of ModernBERT, GPT-NeoX, RedLLM and Gemma that contradict others."""
    has_cross_attention = config.architecture == "encoder_decoder" and not config.merged_attention
    if config.parallel_residual and (has_cross_attention or config.norm_position == "post"):
        raise ValueError(
            "model.parallel_residual=True needs model.norm_position='pre' and a model without cross-attention (an "
            "encoder-decoder has none with model.merged_attention=True): both blocks of a layer read its input"
        )
    if config.qk_norm and config.head_norms != "none":
        raise ValueError(
            f"model.head_norms={config.head_norms!r} has norms of queries and keys: set model.qk_norm=True to False"
        )
    if config.global_every > 1 and config.target_positions:
        raise ValueError(
            f"model.global_every={config.global_every} must be 1 for model.target_positions=True: a text in another "
            "order has no neighbourhood of positions in a row"
        )
    if not config.first_attention_norm and config.norm_position != "pre":
        raise ValueError(
            f"model.first_attention_norm=False needs model.norm_position='pre', not {config.norm_position!r}: only a "
            "pre-norm layer has a norm before its attention"
        )
    if config.sandwich_norm and config.norm_position != "pre":
        raise ValueError(
            f"model.sandwich_norm=True needs model.norm_position='pre', not {config.norm_position!r}: a post-norm "
            "layer has a norm after each block already"
        )
    if config.logits_bias and config.prediction_head != "bert":
        raise ValueError(
            f"model.logits_bias=True needs model.prediction_head='bert', not {config.prediction_head!r}: the bias is "
            "a part of that head"
        )


def _check_complete_p(config: ModelConfig) -> None:
    """Raises ValueError for a model to which the rules of models/complete_p.py do not apply."""
    needed = dict(initializer="t5", norm_position="pre", tie_embeddings=False, share_stacks=False)
    needed |= dict(sandwich_norm=False, scale_embeddings=False)
    for field, value in needed.items():
        if (found := getattr(config, field)) != value:
            raise ValueError(f"model.parameterization='complete_p' needs model.{field}={value!r}, not {found!r}")
    if config.embedding_width != config.d_model:
        raise ValueError(
            f"model.parameterization='complete_p' needs model.embedding_size=0, not {config.embedding_size}: its "
            "tables have the width of the layers"
        )
    multiple = config.d_model // math.gcd(config.d_model, config.base_d_model)
    if config.num_heads % multiple:
        raise ValueError(
            f"model.num_heads={config.num_heads} must be a multiple of {multiple} for "
            f"model.parameterization='complete_p' with model.d_model={config.d_model} and "
            f"model.base_d_model={config.base_d_model}: a wider model has more heads (and as much more d_ff), with the "
            "head_dim of the base"
        )
