"""cuDNN's fused attention through jax.nn: the arrays of scores and probabilities are never in memory as a whole."""

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues
from models.kernels.tpu import pad
from models.placement import OverDevices

_MULTIPLE = 8  # of padded lengths: cuDNN's bias gradient needs even lengths, and rows aligned to 16 bytes load faster
_MASK_VALUE = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}  # what jax.nn adds to a masked key's score for cuDNN

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
        arguments["bias"] = _pad(_pad(bias_1xHxQxS.astype(dtype), 2), 3)
    return arguments


def mask_or_bias(mask_Bx1xQxS: Array, bias_1xHxQxS: Array | None, dtype: str) -> MaskAndBias:
    """Returns the argument for any mask: the mask, or a bias [B, H, Q, S] in `dtype` that is very low where masked.

    The kernel takes either a mask or a bias for each row, not both. The bias gradient is summed over the rows in
    float32. Before JAX 0.11.1, jax.nn computes a gradient of a mask too, [B, 1, Q, S] for each layer, which nothing
    reads.
    """
    if bias_1xHxQxS is None:
        return {"mask": _pad(_pad(mask_Bx1xQxS, 2), 3, False)}
    bias_BxHxQxS = jnp.where(mask_Bx1xQxS, bias_1xHxQxS, 0).astype(dtype)
    bias_BxHxQxS += jnp.where(mask_Bx1xQxS, 0, _MASK_VALUE[dtype]).astype(dtype)
    return {"bias": _pad(_pad(bias_BxHxQxS, 2), 3, _MASK_VALUE[dtype])}


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
    query = _pad(query_BxHxQxK, 2)
    keys, values = (_pad(x, 2) for x in keys_values)
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


def _pad(x: Array, axis: int, value: float = 0) -> Array:
    return pad(x, axis, -(-x.shape[axis] // _MULTIPLE) * _MULTIPLE, value)
