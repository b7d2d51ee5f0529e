"""The splash attention kernel of jax's Pallas library for TPUs: fused, and blocks that nobody sees are skipped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from models.attention import KeysValues

LARGEST_BLOCK = 512  # queries and keys that are in a core's memory at a time
_TILE = 128  # of a TPU; a block is a multiple of it


def splash_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    causal: bool,
    seen_BxQ: Array,
    mask_BxLxL: Array | None,
    over_devices: Callable[..., Callable[..., Array]],
    scale: float,
    interpret: bool = False,
) -> Array:
    """What `dot_product_attention` gives, [B, H, Q, K]; float32 or bfloat16. No bias, no dropout.

    seen: bool, False for a query that sees no key. mask: bool, who sees whom in self attention, where segments and
    `causal` do not say it all; each row's is then read, row after row. None: one pattern of blocks serves all rows.
    over_devices: see models/placement.py. interpret: runs anywhere, slowly, for tests.

    Rows are padded to whole blocks in here. `scale` is multiplied into the queries, in their dtype.
    """
    Q, S = query_BxHxQxK.shape[2], keys_values.keys.shape[2]
    (block_q, padded_Q), (block_s, padded_S) = _blocks(Q), _blocks(S)

    def by_segments(query, keys, values, query_ids, key_ids):
        one = (masks.CausalMask if causal else masks.FullMask)((padded_Q, padded_S))
        with jax.ensure_compile_time_eval():  # the pattern of blocks is a constant, not part of what is traced
            kernel = _kernel(masks.MultiHeadMask([one] * query.shape[1]), block_q, block_s, interpret)
        return jax.vmap(kernel)(query, keys, values, splash.SegmentIds(query_ids, key_ids))

    def by_masks(query, keys, values, mask):
        def of_row(query, keys, values, mask_LxL):
            return _kernel(mask_LxL[None], block_q, block_s, interpret)(query, keys, values)

        return jax.vmap(of_row)(query, keys, values, mask)

    query = _pad(query_BxHxQxK * scale, 2, padded_Q)
    keys, values = (_pad(x, 2, padded_S) for x in keys_values)
    if mask_BxLxL is None:
        of_rows, dimensions = by_segments, ("BQ", "BS")
        visible = _pad(query_segment_ids_BxQ, 1, padded_Q), _pad(key_segment_ids_BxS, 1, padded_S)
    else:
        of_rows, dimensions = by_masks, ("BQS",)
        mask = _pad(_pad(mask_BxLxL, 1, padded_Q), 2, padded_S)
        # Who sees nothing sees itself, or its gradient would be no number; what it finds is not used.
        visible = (mask | (jnp.eye(padded_Q, dtype=bool) & ~mask.any(-1, keepdims=True)),)
    attend = over_devices(of_rows, ("BHQK", "BGSK", "BGSK", *dimensions), "BHQK")
    return jnp.where(seen_BxQ[:, None, :, None], attend(query, keys, values, *visible)[:, :, :Q], 0)


def _kernel(
    mask: masks.MultiHeadMask | Array, block_q: int, block_s: int, interpret: bool
) -> splash.SplashAttentionKernel:
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
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
    # A kernel that is made under jit turns this flag into a traced array, and then branches on it (jax 0.10 to 0.12).
    kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=isinstance(mask, Array))
    return kernel


def _blocks(length: int) -> tuple[int, int]:
    """The size of a block and the length of a row of whole blocks: as few as can be, all of a size, a tile too long at
    most for each."""
    num = -(-length // LARGEST_BLOCK)
    size = -(-length // (num * _TILE)) * _TILE
    return size, num * size


def _pad(x: Array, axis: int, length: int) -> Array:
    return jnp.pad(x, [(0, length - size if i == axis else 0) for i, size in enumerate(x.shape)])
