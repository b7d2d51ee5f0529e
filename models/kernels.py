"""Chooses an attention kernel: XLA's operations, cuDNN's fused kernel for NVIDIA GPUs, or splash for TPUs.

`choose_attention` chooses before anything is traced and gives the reason. `make_attention_fn` returns the function that
the layers of a stack call. Decoding with a cache always uses XLA's operations.
"""

import functools

from jax import Array

from models.attention import AttentionFn, attention_mask, dot_product_attention
from models.config import ModelConfig
from models.kernel_cudnn import cudnn_attention, lengths_and_bias, mask_or_bias
from models.kernel_splash import LARGEST_BLOCK, splash_attention
from models.placement import first_position, over_devices, position_parts, target_platform

_FUSED_KERNELS = {"cuda": "cudnn", "tpu": "splash"}  # by platform


def choose_attention(
    config: ModelConfig, platform: str, *, length: int, per_row_masks: bool = False, parts: int = 1
) -> tuple[str, str]:
    """Returns the kernel, "xla", "cudnn" or "splash", for `config.attention` on `platform` (`platform_of`); the reason.

    length: number of queries or keys, whichever is larger. per_row_masks: rows have a prefix or an attention order, so
    that segments and causality alone do not determine their masks. parts: devices that share the positions of a row.

    Raises ValueError if `config.attention` names a kernel that does not support the model or the platform.
    """
    if config.attention == "xla":
        return "xla", "model.attention='xla'"
    if config.attention != "auto":
        unsupported = _unsupported(config.attention, config, platform) or _of_parts(
            config.attention, length, per_row_masks, parts
        )
        if unsupported:
            raise ValueError(
                f"model.attention={config.attention!r} must be 'auto' or 'xla': {config.attention} {unsupported}"
            )
        return config.attention, f"model.attention={config.attention!r}"
    if platform not in _FUSED_KERNELS:
        return "xla", f"no fused kernel for {platform}"
    kernel = _FUSED_KERNELS[platform]
    drawback = _unsupported(kernel, config, platform)
    if not drawback and kernel == "splash" and length < LARGEST_BLOCK:
        drawback = f"computes blocks of {LARGEST_BLOCK} positions, and rows have {length}"
    if not drawback and kernel == "splash" and per_row_masks:
        drawback = "computes one row at a time if masks differ between rows"
    drawback = drawback or _of_parts(kernel, length, per_row_masks, parts)
    return ("xla", f"{kernel} {drawback}") if drawback else (kernel, "supports this model")


def _unsupported(kernel: str, config: ModelConfig, platform: str) -> str | None:
    """Returns why `kernel` cannot run this model on `platform`, as a verb phrase after its name; None if it can."""
    kernel_platform = next(name for name, fused in _FUSED_KERNELS.items() if fused == kernel)
    dtypes = {"cudnn": ("bfloat16", "float16"), "splash": ("bfloat16", "float32")}[kernel]
    if platform != kernel_platform:
        machine = "an NVIDIA GPU, Ampere or newer" if kernel_platform == "cuda" else "a TPU"
        return f"needs {machine}, not {'another GPU' if platform == 'gpu' else platform}"
    if config.dtype not in dtypes:
        return f"needs precision={' or '.join(map(repr, dtypes))}, not {config.dtype!r}"
    if config.dropout_rate:
        return f"has no dropout, and model.dropout_rate={config.dropout_rate}"
    if kernel == "splash" and config.positions == "relative":
        return "has no bias, and model.positions='relative' needs one"
    if kernel == "cudnn" and (config.head_dim % 8 or config.head_dim > 128):
        return f"needs a multiple of 8 up to 128 for model.head_dim={config.head_dim}"
    return None


def _of_parts(kernel: str, length: int, per_row_masks: bool, parts: int) -> str | None:
    """Returns why `kernel` cannot run where `parts` devices share the positions of a row; None if it can."""
    if kernel == "splash" and parts > 1 and per_row_masks:
        return "needs whole rows if masks differ between rows"
    if kernel == "splash" and length % (parts * LARGEST_BLOCK) and parts > 1:
        return f"needs parts of a multiple of {LARGEST_BLOCK} positions, and {parts} devices share rows of {length}"
    return None


def make_attention_fn(
    config: ModelConfig,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask_BxS: Array | None = None,
    order_BxL: Array | None = None,
    query_offset: Array | None = None,
    bias_1xHxQxS: Array | None = None,
) -> AttentionFn:
    """Returns the attention kernel with the bias and the mask (`attention_mask` of the other arguments) bound.

    query_offset: for decoding with a cache; None: no cache. Within `models.placement.part_of_positions` the queries are
    a part of the row, and the keys are all of it. Raises ValueError as `choose_attention` does.
    """
    per_row_masks = bidirectional_mask_BxS is not None or order_BxL is not None
    length = max(query_segment_ids_BxQ.shape[1], key_segment_ids_BxS.shape[1])
    kernel = "xla"
    if query_offset is None:
        kernel, _ = choose_attention(
            config, target_platform(), length=length, per_row_masks=per_row_masks, parts=position_parts()
        )
        query_offset = first_position(query_segment_ids_BxQ.shape[1])
    mask_Bx1xQxS = attention_mask(
        query_segment_ids_BxQ,
        key_segment_ids_BxS,
        causal=causal,
        bidirectional_mask_BxS=bidirectional_mask_BxS,
        order_BxL=order_BxL,
        query_offset=query_offset,
    )
    has_keys_BxQ = mask_Bx1xQxS[:, 0].any(-1)
    if kernel == "splash":
        return functools.partial(
            splash_attention,
            query_segment_ids_BxQ=query_segment_ids_BxQ,
            key_segment_ids_BxS=key_segment_ids_BxS,
            causal=causal,
            has_keys_BxQ=has_keys_BxQ,
            mask_BxLxL=mask_Bx1xQxS[:, 0] if per_row_masks else None,
            over_devices=over_devices(),
        )
    if kernel == "cudnn":
        needs_mask = per_row_masks or (causal and position_parts() > 1)  # the kernel's queries begin with the first key
        if config.one_segment and not needs_mask:
            mask_and_bias = lengths_and_bias(query_segment_ids_BxQ, key_segment_ids_BxS, bias_1xHxQxS, config.dtype)
        else:
            mask_and_bias = mask_or_bias(mask_Bx1xQxS, bias_1xHxQxS, config.dtype)
        return functools.partial(
            cudnn_attention,
            mask_and_bias=mask_and_bias,
            has_keys_BxQ=has_keys_BxQ,
            causal=causal and not needs_mask,
            over_devices=over_devices(),
        )
    return functools.partial(dot_product_attention, mask_Bx1xQxS=mask_Bx1xQxS, bias_1xHxQxS=bias_1xHxQxS)
