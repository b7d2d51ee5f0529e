"""Fused attention kernels of libraries: cuDNN's through jax.nn, and splash and flash attention of jax's Pallas library.

The arrays of scores and probabilities are never in memory as a whole. Splash attention skips blocks in which all keys
are masked, and takes masks of segments and causality only. Flash attention takes a bias for each row, head, query and
key besides, in which any mask can be written. Both are for TPUs; Pallas has an interpreter for other platforms,
`jax.experimental.pallas.tpu.force_tpu_interpret_mode`, which tests use.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from models.attention import KeysValues
from models.placement import OverDevices

# Of padded lengths: cuDNN's bias gradient needs even lengths, and rows aligned to 16 bytes load faster.
_CUDNN_MULTIPLE = 8
# What jax.nn adds to a masked key's score for cuDNN.
_CUDNN_MASK_VALUE = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}

# The arguments of jax.nn.dot_product_attention that determine the mask and the bias, by name. All layers of a stack use
# the same arrays.
MaskAndBias = dict[str, Array]


def lengths_and_bias(
    query_segment_ids_BxQ: Array, key_segment_ids_BxS: Array, bias_1xHxQxS: Array | None, dtype: str
) -> MaskAndBias:
    """Returns the arguments for rows of one segment, followed by padding: two lengths of each row, and the bias.

    No array has an entry for each row, query and key, and the kernel sums the bias gradient over the rows. The bias is
    rounded to `dtype`.
    """

    def lengths(segment_ids: Array) -> Array:
        return jnp.maximum(jnp.sum(segment_ids > 0, axis=1, dtype=jnp.int32), 1)  # 0 keys would give NaN

    arguments = {
        "query_seq_lengths": lengths(query_segment_ids_BxQ),
        "key_value_seq_lengths": lengths(key_segment_ids_BxS),
    }
    if bias_1xHxQxS is not None:
        arguments["bias"] = _pad_for_cudnn(_pad_for_cudnn(bias_1xHxQxS.astype(dtype), 2), 3)
    return arguments


def mask_or_bias(mask_Bx1xQxS: Array, bias_1xHxQxS: Array | None, dtype: str) -> MaskAndBias:
    """Returns the argument for any mask: the mask, or a bias [B, H, Q, S] in `dtype` that is very low where masked.

    The kernel takes either a mask or a bias for each row, not both. The bias gradient is summed over the rows in
    float32. Before JAX 0.11.1, jax.nn computes a gradient of a mask too, [B, 1, Q, S] for each layer, which nothing
    reads.
    """
    if bias_1xHxQxS is None:
        return {"mask": _pad_for_cudnn(_pad_for_cudnn(mask_Bx1xQxS, 2), 3, False)}
    bias_BxHxQxS = jnp.where(mask_Bx1xQxS, bias_1xHxQxS, 0).astype(dtype)
    bias_BxHxQxS += jnp.where(mask_Bx1xQxS, 0, _CUDNN_MASK_VALUE[dtype]).astype(dtype)
    return {"bias": _pad_for_cudnn(_pad_for_cudnn(bias_BxHxQxS, 2), 3, _CUDNN_MASK_VALUE[dtype])}


def cudnn_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_and_bias: MaskAndBias,
    has_keys_BxQ: Array,
    causal: bool,
    over_devices: OverDevices,
    scale: float,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: bfloat16 or float16, softmax in float32, no dropout.

    mask_and_bias: from `lengths_and_bias` or `mask_or_bias`. Deviation from `dot_product_attention`: the bias is
      rounded to the queries' dtype.
    has_keys: bool, False for a query whose keys are all masked.
    causal: every key after its query is masked, so that the kernel may skip blocks of such keys. `mask_or_bias` masks
      these keys too; with `lengths_and_bias` the kernel masks them.
    over_devices: see models/placement.py.
    """
    Q = query_BxHxQxK.shape[2]
    query = _pad_for_cudnn(query_BxHxQxK, 2)
    keys, values = (_pad_for_cudnn(x, 2) for x in keys_values)
    has_lengths = "query_seq_lengths" in mask_and_bias
    dimensions = {"mask": "B1QS", "bias": "1HQS" if has_lengths else "BHQS"}
    names = list(mask_and_bias)

    def attend(query, keys, values, *arrays):
        output_BxQxHxK = jax.nn.dot_product_attention(
            query.swapaxes(1, 2),
            keys.swapaxes(1, 2),
            values.swapaxes(1, 2),
            scale=scale,
            is_causal=causal,
            implementation="cudnn",
            **dict(zip(names, arrays, strict=True)),
        )
        return output_BxQxHxK.swapaxes(1, 2)

    of_arrays = [dimensions.get(name, "B") for name in names]
    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", *of_arrays), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, *mask_and_bias.values())[:, :, :Q]
    # Where all keys are masked, all scores are equally low and the kernel returns the mean of all values.
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK, 0)


def _pad_for_cudnn(x: Array, axis: int, value: float = 0) -> Array:
    return pad(x, axis, -(-x.shape[axis] // _CUDNN_MULTIPLE) * _CUDNN_MULTIPLE, value)


TILE = 128  # a TPU's tile has this many lanes; blocks are multiples of it
LARGEST_BLOCK = 512  # queries or keys that a core holds in its memory at a time
_TPU_MASK_VALUE = -1e30  # added to a masked key's score


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
    cap: float = 0.0,
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
            kernel = _splash_kernel(masks.MultiHeadMask([mask] * query.shape[1]), block_q, block_s, cap)
        return jax.vmap(kernel)(query, keys, values, splash.SegmentIds(query_ids, key_ids))

    query = pad(query_BxHxQxK * scale, 2, padded_Q)
    keys, values = (pad(x, 2, padded_S) for x in keys_values)
    query_ids, key_ids = pad(query_segment_ids_BxQ, 1, padded_Q), pad(key_segment_ids_BxS, 1, padded_S)
    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", "BQ", "BS"), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, query_ids, key_ids)
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def _splash_kernel(mask: masks.MultiHeadMask, block_q: int, block_s: int, cap: float) -> splash.SplashAttentionKernel:
    """Returns the kernel for one row. mask: a mask for each head. cap: of a soft-cap; 0: none."""
    sizes = splash.BlockSizes(**_block_sizes(splash.BlockSizes, block_q, block_s))
    kernel = splash.make_splash_mha(
        mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=cap or None
    )
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
    has_keys, over_devices: as for `splash_attention`, whose note on padding and `scale` holds here too.
    """
    Q = query_BxHxQxK.shape[2]
    block_q, padded_Q = _block_and_padded_length(Q)
    block_s, padded_S = _block_and_padded_length(keys_values.keys.shape[2])
    blocks = flash.BlockSizes(**_block_sizes(flash.BlockSizes, block_q, block_s) | {"block_b": 1})
    has_bias = bias_BxHxQxS is not None
    query = pad(query_BxHxQxK * scale, 2, padded_Q)  # not `sm_scale`, by which the kernel multiplies the bias too
    keys, values = (pad(x, 2, padded_S) for x in keys_values)
    if bias_BxHxQxS is not None:
        arrays, dimensions = [pad(pad(bias_BxHxQxS, 2, padded_Q), 3, padded_S, _TPU_MASK_VALUE)], ["BHQS"]
    else:
        arrays = [pad(query_segment_ids_BxQ, 1, padded_Q), pad(key_segment_ids_BxS, 1, padded_S)]
        dimensions = ["BQ", "BS"]

    def attend(query, keys, values, *arrays):
        keys, values = (jnp.repeat(x, query.shape[1] // x.shape[1], 1) for x in (keys, values))
        mask = {"ab": arrays[0]} if has_bias else {"segment_ids": flash.SegmentIds(*arrays), "causal": causal}
        return flash.flash_attention(query, keys, values, block_sizes=blocks, **mask)

    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", *dimensions), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, *arrays)
    # Where all keys are masked, all scores are equally low and the kernel returns the mean of all values.
    return jnp.where(has_keys_BxQ[:, None, :, None], output_BxHxQxK[:, :, :Q], 0)


def bias_with_mask(mask_Bx1xQxS: Array, bias_1xHxQxS: Array | None, heads: int, dtype: str) -> Array:
    """Returns the bias, rounded to `dtype`, or a very low value where the key is masked: [B, H, Q, S].

    All layers share this array. The gradient of the bias is summed over the rows in float32.
    """
    bias_1xHxQxS = jnp.zeros((1, heads, 1, 1)) if bias_1xHxQxS is None else bias_1xHxQxS
    return jnp.where(mask_Bx1xQxS, bias_1xHxQxS, _TPU_MASK_VALUE).astype(dtype)


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


def _block_sizes(cls: type, block_q: int, block_s: int) -> dict[str, Any]:
    """Returns the fields of a kernel's BlockSizes: the same blocks in the forward and in both backward passes."""
    names = [field.name for field in dataclasses.fields(cls) if field.name.startswith("block_")]
    return {name: block_q if name.startswith("block_q") else block_s for name in names}
