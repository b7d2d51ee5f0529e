"""Chooses an attention kernel: XLA's operations, cuDNN's for NVIDIA GPUs, splash or flash for TPUs.

`choose_attention` chooses before anything is traced and gives the reason. `make_attention_fn` returns the function that
the layers of a stack call. Decoding with a cache always uses XLA's operations.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from models.attention import AttentionFn, attention_mask, dot_product_attention
from models.config import ModelConfig
from models.fused_attention import (
    LARGEST_BLOCK,
    TILE,
    bias_with_mask,
    cudnn_attention,
    flash_attention,
    lengths_and_bias,
    mask_or_bias,
    splash_attention,
)
from models.placement import placement, target_platform

# The kernels of each platform; "auto" chooses the first that can run.
_FUSED_KERNELS = {"cuda": ("cudnn",), "hopper": ("cudnn",), "tpu": ("splash", "flash")}
_DTYPES = {"cudnn": ("bfloat16", "float16"), "splash": ("bfloat16", "float32"), "flash": ("bfloat16", "float32")}


def choose_attention(
    config: ModelConfig, platform: str, *, length: int, per_row_masks: bool = False
) -> tuple[str, str]:
    """Returns the kernel for `config.attention` on `platform` (`platform_of`), and the reason.

    The kernel is "xla", "cudnn", "splash" or "flash".

    length: number of queries or keys, whichever is larger. per_row_masks: rows have a prefix or an attention order, so
    that segments and causality alone do not determine their masks.

    Raises ValueError if `config.attention` names a kernel that does not support the model or the platform.
    """
    if (given := config.attention) != "auto":
        if given != "xla" and (why := _unsupported(given, config, platform, per_row_masks) or _no_dropout(config)):
            raise ValueError(f"model.attention={given!r} must be 'auto' or 'xla': {given} {why}")
        return given, f"model.attention={given!r}"
    drawback = f"no fused kernel for {platform}"
    for i, kernel in enumerate(_FUSED_KERNELS.get(platform, ())):
        unsuited = _unsupported(kernel, config, platform, per_row_masks) or _slow(kernel, length)
        if not unsuited and (why := _no_dropout(config)):
            return "xla", f"{kernel} {why}"
        if not unsuited:
            return kernel, drawback if i else "supports this model"
        drawback = f"{kernel} {unsuited}"
    return "xla", drawback


def _unsupported(kernel: str, config: ModelConfig, platform: str, per_row_masks: bool) -> str | None:
    """Returns why `kernel` cannot run this model on `platform`, as a verb phrase after its name; None if it can."""
    is_for_tpu = kernel in _FUSED_KERNELS["tpu"]
    if platform not in (("tpu",) if is_for_tpu else ("cuda", "hopper")):
        machine = "a TPU" if is_for_tpu else "an NVIDIA GPU, Ampere or newer"
        return f"needs {machine}, not {'another GPU' if platform == 'gpu' else platform}"
    if config.dtype not in _DTYPES[kernel]:
        return f"needs precision={' or '.join(map(repr, _DTYPES[kernel]))}, not {config.dtype!r}"
    if config.global_every > 1:
        return f"has one mask for all layers, and model.global_every={config.global_every} gives some a local one"
    if config.attention_softcap and kernel != "splash":
        return f"has no soft-cap, and model.attention_softcap={config.attention_softcap}"
    if kernel == "splash" and config.positions == "relative":
        return "has no bias, and model.positions='relative' needs one"
    if kernel == "splash" and config.merged_attention:
        return "has no mask for keys of two texts, and model.merged_attention=True"
    if kernel == "splash" and per_row_masks:
        return "has no prefix and no attention order, which rows here have"
    if kernel == "cudnn":
        largest = 256 if platform == "hopper" else 128
        if config.head_dim % 8 or config.head_dim > largest:
            return f"needs a multiple of 8 up to {largest} for model.head_dim={config.head_dim}"
    return None


def _no_dropout(config: ModelConfig) -> str | None:
    """Returns why no fused kernel can drop probabilities, as a verb phrase after its name; None if none are dropped."""
    if config.dropout_rate and config.attention_dropout:
        rate = f"model.dropout_rate={config.dropout_rate}"
        return f"has no dropout, and {rate}: with model.attention_dropout=False attention probabilities have none"
    return None


def _slow(kernel: str, length: int) -> str | None:
    """Returns why `kernel` is slow for rows of `length`, as a verb phrase after its name; None if it is not."""
    if kernel == "splash" and length < LARGEST_BLOCK:
        return f"computes blocks of {LARGEST_BLOCK} positions, and rows have {length}"
    if kernel == "flash" and length <= TILE // 2:
        return f"computes blocks of {TILE} positions, and rows have {length}"
    return None


def make_attention_fn(
    config: ModelConfig,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask: Array | None = None,
    order_BxL: Array | None = None,
    query_offset: Array | None = None,
    bias_1xHxQxS: Array | None = None,
    encoder_segment_ids_BxE: Array | None = None,
) -> AttentionFn:
    """Returns the attention kernel with the bias and the mask (`attention_mask` of the other arguments) bound.

    encoder_segment_ids: for merged attention, where keys of the encoder follow those of the row. None: no such keys.
    query_offset: for decoding with a cache; None: no cache. Raises ValueError as `choose_attention` does.
    """
    mask_Bx1xQxS = attention_mask(
        query_segment_ids_BxQ,
        key_segment_ids_BxS,
        causal=causal,
        bidirectional_mask=bidirectional_mask,
        order_BxL=order_BxL,
        query_offset=0 if query_offset is None else query_offset,
    )
    if encoder_segment_ids_BxE is not None:
        mask_Bx1xQxS, bias_1xHxQxS = _merged(mask_Bx1xQxS, bias_1xHxQxS, query_segment_ids_BxQ, encoder_segment_ids_BxE)
    per_row_masks = any(x is not None for x in (bidirectional_mask, order_BxL, encoder_segment_ids_BxE))
    length = max(mask_Bx1xQxS.shape[2:])
    kernel = "xla"
    if query_offset is None:
        kernel, _ = choose_attention(config, target_platform(), length=length, per_row_masks=per_row_masks)
    if kernel == "xla":
        return functools.partial(
            dot_product_attention,
            mask_Bx1xQxS=mask_Bx1xQxS,
            bias_1xHxQxS=bias_1xHxQxS,
            scale=_scale(config),
            cap=config.attention_softcap,
            dropout_rate=config.dropout_rate,
            dropout_broadcast_positions=config.dropout_broadcast_positions,
        )
    segment_ids = (query_segment_ids_BxQ, key_segment_ids_BxS)
    return _fused(kernel, config, segment_ids, mask_Bx1xQxS, bias_1xHxQxS, causal=causal, per_row_masks=per_row_masks)


def _merged(
    mask_Bx1xQxS: Array, bias_1xHxQxS: Array | None, query_segment_ids_BxQ: Array, encoder_segment_ids_BxE: Array
) -> tuple[Array, Array | None]:
    """Returns the mask and the bias with E more keys, those of the encoder, whose bias is 0."""
    of_encoder = attention_mask(query_segment_ids_BxQ, encoder_segment_ids_BxE, causal=False)
    if bias_1xHxQxS is not None:
        bias_1xHxQxS = jnp.pad(bias_1xHxQxS, [(0, 0)] * 3 + [(0, of_encoder.shape[-1])])
    return jnp.concatenate([mask_Bx1xQxS, of_encoder], axis=-1), bias_1xHxQxS


def _scale(config: ModelConfig) -> float:
    return config.head_dim**-0.5 if config.scale_attention else 1.0


def _fused(
    kernel: str,
    config: ModelConfig,
    segment_ids: tuple[Array, Array],
    mask_Bx1xQxS: Array,
    bias_1xHxQxS: Array | None,
    *,
    causal: bool,
    per_row_masks: bool,
) -> AttentionFn:
    """Returns a fused kernel with the mask and the bias bound. segment_ids: of the queries and of the keys."""
    has_keys_BxQ, over_devices = mask_Bx1xQxS[:, 0].any(-1), placement().over_devices
    options: dict[str, Any] = {"has_keys_BxQ": has_keys_BxQ, "over_devices": over_devices, "scale": _scale(config)}
    if kernel == "cudnn":
        if config.one_segment and not per_row_masks:
            mask_and_bias = lengths_and_bias(*segment_ids, bias_1xHxQxS, config.dtype)
        else:
            mask_and_bias = mask_or_bias(mask_Bx1xQxS, bias_1xHxQxS, config.dtype)
        return functools.partial(
            cudnn_attention, mask_and_bias=mask_and_bias, causal=causal and not per_row_masks, **options
        )
    options |= dict(zip(("query_segment_ids_BxQ", "key_segment_ids_BxS"), segment_ids, strict=True), causal=causal)
    if kernel == "splash":
        return functools.partial(splash_attention, cap=config.attention_softcap, **options)
    bias_BxHxQxS = None
    if per_row_masks or bias_1xHxQxS is not None:
        bias_BxHxQxS = bias_with_mask(mask_Bx1xQxS, bias_1xHxQxS, config.num_heads, config.dtype)
    return functools.partial(flash_attention, bias_BxHxQxS=bias_BxHxQxS, **options)
