"""Splash attention, a fused kernel for TPUs from jax's Pallas library: it skips blocks in which all keys are masked."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from models.attention import KeysValues
from models.placement import OverDevices, first_position, position_parts

LARGEST_BLOCK = 512  # queries or keys that a core holds in its memory at a time
_TILE = 128  # a TPU's tile; blocks are multiples of it


def splash_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    causal: bool,
    has_keys_BxQ: Array,
    mask_BxLxL: Array | None,
    over_devices: OverDevices,
    scale: float,
    interpret: bool = False,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: float32 or bfloat16, no bias, no dropout.

    has_keys: bool, False for a query whose keys are all masked.
    mask: bool, the mask of self-attention, given if segments and `causal` do not determine the mask. The kernel then
    computes the blocks to skip for each row. None: all rows share one pattern of blocks.
    over_devices: see models/placement.py.
    interpret: run the kernel in Pallas's interpreter, slowly but on any platform, for tests.

    Within `models.placement.part_of_positions` the queries are a part of the row: of whole blocks, if `causal`.

    Rows are padded to whole blocks internally. The queries are multiplied by `scale` in their own dtype.
    """
    Q, S = query_BxHxQxK.shape[2], keys_values.keys.shape[2]
    (block_q, padded_Q), (block_s, padded_S) = _block_and_padded_length(Q), _block_and_padded_length(S)

    parts = position_parts() if causal else 1  # a mask that is not causal is the same for every part
    part = [jnp.asarray(first_position(Q)) // Q] if parts > 1 else []

    def attend_by_segments(query, keys, values, query_ids, key_ids, *part):
        head_mask = (masks.CausalMask if causal else masks.FullMask)((parts * padded_Q, padded_S))
        with jax.ensure_compile_time_eval():  # makes the pattern of blocks a constant instead of a traced computation
            kernel = _make_kernel(masks.MultiHeadMask([head_mask] * query.shape[1]), block_q, block_s, interpret, parts)
        if parts > 1:
            kernel = _of_part(kernel, *part, parts)
        return jax.vmap(kernel)(query, keys, values, splash.SegmentIds(query_ids, key_ids))

    def attend_by_masks(query, keys, values, mask):
        def attend_row(query, keys, values, mask_LxL):
            return _make_kernel(mask_LxL[None], block_q, block_s, interpret)(query, keys, values)

        return jax.vmap(attend_row)(query, keys, values, mask)

    query = _pad(query_BxHxQxK * scale, 2, padded_Q)
    keys, values = (_pad(x, 2, padded_S) for x in keys_values)
    if mask_BxLxL is None:
        query_ids, key_ids = _pad(query_segment_ids_BxQ, 1, padded_Q), _pad(key_segment_ids_BxS, 1, padded_S)
        attend = over_devices(attend_by_segments, ("BHQK", "BGSK", "BGSK", "BQ", "BS", *("" for _ in part)), "BHQK")
        output_BxHxQxK = attend(query, keys, values, query_ids, key_ids, *part)
    else:
        mask = _pad(_pad(mask_BxLxL, 1, padded_Q), 2, padded_S)
        # A query whose keys are all masked attends to itself, or its gradient would be NaN. Such outputs are discarded.
        mask = mask | (jnp.eye(padded_Q, dtype=bool) & ~mask.any(-1, keepdims=True))
        attend = over_devices(attend_by_masks, ("BHQK", "BGSK", "BGSK", "BQS"), "BHQK")
        output_BxHxQxK = attend(query, keys, values, mask)
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def _make_kernel(
    mask: masks.MultiHeadMask | Array, block_q: int, block_s: int, interpret: bool, parts: int = 1
) -> splash.SplashAttentionKernel:
    """Returns the kernel for one row. mask: a mask for each head, or bool [1, Q, S] for all heads.

    parts: into which the queries are divided; `_of_part` returns the kernel of one.
    """
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
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=parts, interpret=interpret)
    # Under jit, jax 0.10 to 0.12 turn this Python flag of the kernel into a traced array and then branch on it.
    kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=isinstance(mask, Array))
    return kernel


def _of_part(kernel: splash.SplashAttentionKernel, part: Array, parts: int) -> splash.SplashAttentionKernel:
    """Returns the kernel for the queries of one of `parts` parts. part: its index, int []."""

    def of_part(info):
        if info is None:
            return None

        def rows(array, axis):
            size = array.shape[axis] // parts
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(array), part * size, size, axis)

        blocks = {name: rows(getattr(info, name), 1) for name in ("data_next", "block_mask")}
        return info._replace(**blocks, q_sequence=rows(info.q_sequence, 0))

    infos = kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info
    return splash.SplashAttentionKernel(*map(of_part, infos), **kernel.kwargs)


def _block_and_padded_length(length: int) -> tuple[int, int]:
    """Returns the size of a block, at most LARGEST_BLOCK, and `length` rounded up to whole blocks.

    The number of blocks is the smallest possible; for this number, the size is the smallest multiple of _TILE.
    """
    num = -(-length // LARGEST_BLOCK)
    size = -(-length // (num * _TILE)) * _TILE
    return size, num * size


def _pad(x: Array, axis: int, length: int) -> Array:
    """Returns `x` with `axis` padded at its end to `length`."""
    return jnp.pad(x, [(0, length - size if i == axis else 0) for i, size in enumerate(x.shape)])
