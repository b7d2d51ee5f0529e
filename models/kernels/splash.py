"""Splash attention, a fused kernel for TPUs from jax's Pallas library: it skips blocks in which all keys are masked."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from models.attention import KeysValues
from models.kernels.padding import pad
from models.kernels.tpu_blocks import block_and_padded_length
from models.placement import OverDevices

LARGEST_BLOCK = 512  # queries or keys that a core holds in its memory at a time


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
    interpret: bool = False,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: float32 or bfloat16, no bias, no dropout.

    has_keys: bool, False for a query whose keys are all masked.
    over_devices: see models/placement.py.
    interpret: run the kernel in Pallas's interpreter, slowly but on any platform, for tests.

    Rows are padded to whole blocks internally. The queries are multiplied by `scale` in their own dtype.
    """
    Q, S = query_BxHxQxK.shape[2], keys_values.keys.shape[2]
    block_q, padded_Q = block_and_padded_length(Q, LARGEST_BLOCK)
    block_s, padded_S = block_and_padded_length(S, LARGEST_BLOCK)

    def attend(query, keys, values, query_ids, key_ids):
        mask = (masks.CausalMask if causal else masks.FullMask)((padded_Q, padded_S))
        with jax.ensure_compile_time_eval():  # makes the pattern of blocks a constant instead of a traced computation
            kernel = _make_kernel(masks.MultiHeadMask([mask] * query.shape[1]), block_q, block_s, interpret)
        return jax.vmap(kernel)(query, keys, values, splash.SegmentIds(query_ids, key_ids))

    query = pad(query_BxHxQxK * scale, 2, padded_Q)
    keys, values = (pad(x, 2, padded_S) for x in keys_values)
    query_ids, key_ids = pad(query_segment_ids_BxQ, 1, padded_Q), pad(key_segment_ids_BxS, 1, padded_S)
    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", "BQ", "BS"), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, query_ids, key_ids)
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def _make_kernel(
    mask: masks.MultiHeadMask, block_q: int, block_s: int, interpret: bool
) -> splash.SplashAttentionKernel:
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
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
    # Under jit, jax 0.10 to 0.12 turn this Python flag of the kernel into a traced array and then branch on it.
    kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=False)
    return kernel
