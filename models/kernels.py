"""Chooses an attention kernel: XLA's operations, cuDNN's or our own for NVIDIA GPUs, or splash for TPUs.

`choose_attention` chooses before anything is traced and gives the reason. `make_attention_fn` returns the function that
the layers of a stack call. Decoding with a cache always uses XLA's operations.
"""

import functools

from jax import Array

from models.attention import AttentionFn, attention_mask, dot_product_attention
from models.config import ModelConfig
from models.kernel_cudnn import cudnn_attention, lengths_and_bias, mask_or_bias
from models.kernel_splash import LARGEST_BLOCK, splash_attention
from models.kernel_triton import LARGEST_HEAD_DIM, mask_and_bias_arrays, triton_attention
from models.placement import over_devices, target_platform

_FUSED_KERNELS = {"cuda": "cudnn", "hopper": "cudnn", "tpu": "splash"}  # those of "auto", by platform
_PLATFORMS = {"cudnn": ("cuda", "hopper"), "triton": ("cuda", "hopper"), "splash": ("tpu",)}
_DTYPES = {
    "cudnn": ("bfloat16", "float16"),
    "triton": ("bfloat16", "float16"),
    "splash": ("bfloat16", "float32"),
}


def choose_attention(
    config: ModelConfig, platform: str, *, length: int, per_row_masks: bool = False
) -> tuple[str, str]:
    """Returns the kernel, "xla", "cudnn", "triton" or "splash", for `config.attention` on `platform`; the reason.

    platform: from `platform_of`. "auto" never chooses "triton", which has not yet run on a GPU.
    length: number of queries or keys, whichever is larger. per_row_masks: rows have a prefix or an attention order, so
    that segments and causality alone do not determine their masks.

    Raises ValueError if `config.attention` names a kernel that does not support the model or the platform.
    """
    if config.attention == "xla":
        return "xla", "model.attention='xla'"
    if config.attention != "auto":
        unsupported = _unsupported(config.attention, config, platform)
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
    return ("xla", f"{kernel} {drawback}") if drawback else (kernel, "supports this model")


def _unsupported(kernel: str, config: ModelConfig, platform: str) -> str | None:
    """Returns why `kernel` cannot run this model on `platform`, as a verb phrase after its name; None if it can."""
    if platform not in _PLATFORMS[kernel]:
        machine = "a TPU" if kernel == "splash" else "an NVIDIA GPU, Ampere or newer"
        return f"needs {machine}, not {'another GPU' if platform == 'gpu' else platform}"
    if config.dtype not in _DTYPES[kernel]:
        return f"needs precision={' or '.join(map(repr, _DTYPES[kernel]))}, not {config.dtype!r}"
    if config.dropout_rate and kernel != "triton":
        return f"has no dropout, and model.dropout_rate={config.dropout_rate}"
    if kernel == "splash" and config.positions == "relative":
        return "has no bias, and model.positions='relative' needs one"
    if kernel == "cudnn":
        largest = 256 if platform == "hopper" else 128
        if config.head_dim % 8 or config.head_dim > largest:
            return f"needs a multiple of 8 up to {largest} for model.head_dim={config.head_dim}"
    if kernel == "triton" and config.head_dim > LARGEST_HEAD_DIM:
        return f"needs at most {LARGEST_HEAD_DIM} for model.head_dim={config.head_dim}"
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

    query_offset: for decoding with a cache; None: no cache. Raises ValueError as `choose_attention` does.
    """
    per_row_masks = bidirectional_mask_BxS is not None or order_BxL is not None
    length = max(query_segment_ids_BxQ.shape[1], key_segment_ids_BxS.shape[1])
    kernel = "xla"
    if query_offset is None:
        kernel, _ = choose_attention(config, target_platform(), length=length, per_row_masks=per_row_masks)
    mask_Bx1xQxS = attention_mask(
        query_segment_ids_BxQ,
        key_segment_ids_BxS,
        causal=causal,
        bidirectional_mask_BxS=bidirectional_mask_BxS,
        order_BxL=order_BxL,
        query_offset=0 if query_offset is None else query_offset,
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
        if config.one_segment and not per_row_masks:
            mask_and_bias = lengths_and_bias(query_segment_ids_BxQ, key_segment_ids_BxS, bias_1xHxQxS, config.dtype)
        else:
            mask_and_bias = mask_or_bias(mask_Bx1xQxS, bias_1xHxQxS, config.dtype)
        return functools.partial(
            cudnn_attention,
            mask_and_bias=mask_and_bias,
            has_keys_BxQ=has_keys_BxQ,
            causal=causal and not per_row_masks,
            over_devices=over_devices(),
        )
    if kernel == "triton":
        mask_and_bias = mask_and_bias_arrays(
            config.head_dim,
            mask_Bx1xQxS,
            query_segment_ids_BxQ,
            key_segment_ids_BxS,
            bidirectional_mask_BxS=bidirectional_mask_BxS if causal else None,
            order_BxL=order_BxL,
            bias_1xHxQxS=bias_1xHxQxS,
        )
        return functools.partial(
            triton_attention, mask_and_bias=mask_and_bias, causal=causal, over_devices=over_devices()
        )
    return functools.partial(dot_product_attention, mask_Bx1xQxS=mask_Bx1xQxS, bias_1xHxQxS=bias_1xHxQxS)
