"""Attention kernels for TPUs from jax's Pallas library: splash attention, and flash attention with a bias.

Splash attention skips blocks in which all keys are masked, and takes masks of segments and causality only. Flash
attention takes a bias for each row, head, query and key besides, in which any mask can be written. Pallas has an
interpreter for other platforms, `jax.experimental.pallas.tpu.force_tpu_interpret_mode`, which tests use.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from models.attention import KeysValues
from models.placement import OverDevices

TILE = 128  # a TPU's tile has this many lanes; blocks are multiples of it
LARGEST_BLOCK = 512  # queries or keys that a core holds in its memory at a time
_MASK_VALUE = -1e30  # added to a masked key's score


def splash_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    causal: bool,
    has_keys_BxQ: Array,
    over_devices: OverDevices,
    scale: float,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: float32 or bfloat16, no bias, no dropout.

    has_keys: bool, False for a query whose keys are all masked.
    over_devices: see models/placement.py.

    Rows are padded to whole blocks internally. The queries are multiplied by `scale` in their own dtype.
    """
    Q, S = query_BxHxQxK.shape[2], keys_values.keys.shape[2]
    block_q, padded_Q = _block_and_padded_length(Q)
    block_s, padded_S = _block_and_padded_length(S)

    def attend(query, keys, values, query_ids, key_ids):
        mask = (masks.CausalMask if causal else masks.FullMask)((padded_Q, padded_S))
        with jax.ensure_compile_time_eval():  # makes the pattern of blocks a constant instead of a traced computation
            kernel = _splash_kernel(masks.MultiHeadMask([mask] * query.shape[1]), block_q, block_s)
        return jax.vmap(kernel)(query, keys, values, splash.SegmentIds(query_ids, key_ids))

    query = pad(query_BxHxQxK * scale, 2, padded_Q)
    keys, values = (pad(x, 2, padded_S) for x in keys_values)
    query_ids, key_ids = pad(query_segment_ids_BxQ, 1, padded_Q), pad(key_segment_ids_BxS, 1, padded_S)
    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", "BQ", "BS"), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, query_ids, key_ids)
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def _splash_kernel(mask: masks.MultiHeadMask, block_q: int, block_s: int) -> splash.SplashAttentionKernel:
    """Returns the kernel for one row. mask: a mask for each head."""
    sizes = splash.BlockSizes(
        block_q=block_q,
        block_kv=block_s,
        block_kv_compute=block_s,
        block_q_dkv=block_q,
        block_kv_dkv=block_s,
        block_kv_dkv_compute=block_s,
        block_q_dq=block_q,
        block_kv_dq=block_s,
    )
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    # Under jit, jax 0.10 to 0.12 turn this Python flag of the kernel into a traced array and then branch on it.
    kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=False)
    return kernel


def flash_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    causal: bool,
    bias_BxHxQxS: Array | None,
    has_keys_BxQ: Array,
    over_devices: OverDevices,
    scale: float,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: float32 or bfloat16, no dropout.

    bias: from `bias_with_mask`, which then has the whole mask; None: the mask follows from segments and `causal`.
    has_keys, over_devices: as for `splash_attention`.
    """
    Q = query_BxHxQxK.shape[2]
    block_q, padded_Q = _block_and_padded_length(Q)
    block_s, padded_S = _block_and_padded_length(keys_values.keys.shape[2])
    blocks = flash.BlockSizes(
        block_b=1,
        block_q=block_q,
        block_k_major=block_s,
        block_k=block_s,
        block_q_major_dkv=block_q,
        block_q_dkv=block_q,
        block_k_major_dkv=block_s,
        block_k_dkv=block_s,
        block_q_dq=block_q,
        block_k_major_dq=block_s,
        block_k_dq=block_s,
    )

    has_bias = bias_BxHxQxS is not None
    query = pad(query_BxHxQxK, 2, padded_Q)
    keys, values = (pad(x, 2, padded_S) for x in keys_values)
    if has_bias:
        arrays, dimensions = [pad(pad(bias_BxHxQxS, 2, padded_Q), 3, padded_S, _MASK_VALUE)], ["BHQS"]
    else:
        arrays = [pad(query_segment_ids_BxQ, 1, padded_Q), pad(key_segment_ids_BxS, 1, padded_S)]
        dimensions = ["BQ", "BS"]

    def attend(query, keys, values, *arrays):
        keys, values = (jnp.repeat(x, query.shape[1] // x.shape[1], 1) for x in (keys, values))
        mask = {"ab": arrays[0]} if has_bias else {"segment_ids": flash.SegmentIds(*arrays), "causal": causal}
        return flash.flash_attention(query, keys, values, sm_scale=scale, block_sizes=blocks, **mask)

    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", *dimensions), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, *arrays)
    # Where all keys are masked, all scores are equally low and the kernel returns the mean of all values.
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def bias_with_mask(mask_Bx1xQxS: Array, bias_1xHxQxS: Array | None, heads: int, dtype: str) -> Array:
    """Returns the bias, rounded to `dtype`, or a very low value where the key is masked: [B, H, Q, S].

    All layers share this array. The gradient of the bias is summed over the rows in float32.
    """
    bias_1xHxQxS = jnp.zeros((1, heads, 1, 1)) if bias_1xHxQxS is None else bias_1xHxQxS
    return jnp.where(mask_Bx1xQxS, bias_1xHxQxS, _MASK_VALUE).astype(dtype)


def pad(x: Array, axis: int, length: int, value: float = 0) -> Array:
    """Returns `x` with `axis` padded at its end to `length` by `value`."""
    widths = [(0, length - size if i == axis else 0) for i, size in enumerate(x.shape)]
    return jnp.pad(x, widths, constant_values=value)


def _block_and_padded_length(length: int) -> tuple[int, int]:
    """Returns the size of a block, at most LARGEST_BLOCK, and `length` rounded up to whole blocks.

    The number of blocks is the smallest possible; for this number, the size is the smallest multiple of TILE.
    """
    num = -(-length // LARGEST_BLOCK)
    size = -(-length // (num * TILE)) * TILE
    return size, num * size
