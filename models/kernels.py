"""Which attention runs: XLA's own, cuDNN's fused kernel on NVIDIA GPUs, or the splash kernel on TPUs.

`choose_attention` decides from what is known before anything is traced, and says why; `attend_by` builds what the
layers of a stack call. Decoding with a cache is always XLA's.
"""

import functools

from jax import Array

from models.attention import Attend, attention_mask, dot_product_attention
from models.config import ModelConfig
from models.kernel_cudnn import bias_and_mask, cudnn_attention
from models.kernel_splash import LARGEST_BLOCK, splash_attention
from models.placement import over_devices, target_platform

_FUSED = {"cuda": "cudnn", "tpu": "splash"}  # platform -> its kernel


def choose_attention(
    config: ModelConfig, platform: str, *, length: int, masks_of_rows: bool = False
) -> tuple[str, str]:
    """The kernel that `config.attention` comes to on `platform` (see `platform_of`), and why, in a few words.

    length: of the longer of queries and keys. masks_of_rows: rows have a prefix or an attention order, so that who sees
    whom is more than segments and causality. Raises ValueError where the kernel asked for cannot run.
    """
    if config.attention == "xla":
        return "xla", "asked for"
    if config.attention != "auto":
        obstacle = _obstacle(config.attention, config, platform)
        if obstacle:
            raise ValueError(
                f"model.attention={config.attention!r} must be 'auto' or 'xla' here: {config.attention} {obstacle}"
            )
        return config.attention, "asked for"
    if platform not in _FUSED:
        return "xla", f"there is no other on {platform}"
    kernel = _FUSED[platform]
    against = _obstacle(kernel, config, platform)
    if not against and kernel == "splash" and length < LARGEST_BLOCK:
        against = f"has blocks of {LARGEST_BLOCK}, and rows are {length} long"
    if not against and kernel == "splash" and masks_of_rows:
        against = "runs row by row where every row has a mask of its own"
    return ("xla", f"{kernel} {against}") if against else (kernel, "nothing in this model is against it")


def _obstacle(kernel: str, config: ModelConfig, platform: str) -> str | None:
    """Why `kernel` cannot compute this model's attention on `platform`, as its predicate; None where it can."""
    needed = next(name for name, fused in _FUSED.items() if fused == kernel)
    dtypes = {"cudnn": ("bfloat16", "float16"), "splash": ("bfloat16", "float32")}[kernel]
    if platform != needed:
        machine = "an NVIDIA GPU, Ampere or newer" if needed == "cuda" else "a TPU"
        return f"needs {machine}, and this is {'another GPU' if platform == 'gpu' else platform}"
    if config.dtype not in dtypes:
        return f"computes in {' or '.join(dtypes)}, and precision is {config.dtype}"
    if config.dropout_rate:
        return f"drops no probabilities, and model.dropout_rate={config.dropout_rate}"
    if kernel == "splash" and config.positions == "relative":
        return "takes no bias, and model.positions='relative'"
    if kernel == "cudnn" and (config.head_dim % 8 or config.head_dim > 128):
        return f"takes multiples of 8 up to 128, and model.head_dim={config.head_dim}"
    return None


def attend_by(
    config: ModelConfig,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask_BxS: Array | None = None,
    order_BxL: Array | None = None,
    query_offset: Array | None = None,
    bias_1xHxQxS: Array | None = None,
) -> Attend:
    """Attention under `attention_mask`'s arguments, with a bias on its scores; `query_offset` not None: with a cache.

    Raises ValueError as `choose_attention` does.
    """
    masks_of_rows = bidirectional_mask_BxS is not None or order_BxL is not None
    length = max(query_segment_ids_BxQ.shape[1], key_segment_ids_BxS.shape[1])
    kernel = "xla"
    if query_offset is None:
        kernel, _ = choose_attention(config, target_platform(), length=length, masks_of_rows=masks_of_rows)
    mask_Bx1xQxS = attention_mask(
        query_segment_ids_BxQ,
        key_segment_ids_BxS,
        causal=causal,
        bidirectional_mask_BxS=bidirectional_mask_BxS,
        order_BxL=order_BxL,
        query_offset=0 if query_offset is None else query_offset,
    )
    if kernel == "splash":
        return functools.partial(
            splash_attention,
            query_segment_ids_BxQ=query_segment_ids_BxQ,
            key_segment_ids_BxS=key_segment_ids_BxS,
            causal=causal,
            seen_BxQ=mask_Bx1xQxS[:, 0].any(-1),
            mask_BxLxL=mask_Bx1xQxS[:, 0] if masks_of_rows else None,
            over_devices=over_devices(),
        )
    if kernel == "cudnn":
        bias = bias_1xHxQxS
        return functools.partial(
            cudnn_attention,
            mask_Bx1xQxS=mask_Bx1xQxS,
            bias_BxHxQxS=None if bias is None else bias_and_mask(bias, mask_Bx1xQxS, config.dtype),
            causal=causal and not masks_of_rows,
            over_devices=over_devices(),
        )
    return functools.partial(dot_product_attention, mask_Bx1xQxS=mask_Bx1xQxS, bias_1xHxQxS=bias_1xHxQxS)
