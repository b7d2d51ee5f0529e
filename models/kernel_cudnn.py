"""cuDNN's fused attention through jax.nn: the arrays of scores and probabilities are never in memory as a whole."""

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues
from models.placement import OverDevices

_MULTIPLE = 8  # of padded lengths: cuDNN's bias gradient needs even lengths, and rows aligned to 16 bytes load faster
_MASK_VALUE = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}  # what jax.nn adds to a masked key's score for cuDNN


def bias_and_mask(bias_1xHxQxS: Array, mask_Bx1xQxS: Array, dtype: str) -> Array:
    """Returns [B, H, Q, S] in `dtype`: the bias where the mask is True, a value far below any score elsewhere.

    The kernel takes either a mask or a bias for each row, not both. All layers of a stack use the same array.
    The bias gradient is summed over the rows in float32.
    """
    bias_BxHxQxS = jnp.where(mask_Bx1xQxS, bias_1xHxQxS, 0).astype(dtype)
    return bias_BxHxQxS + jnp.where(mask_Bx1xQxS, 0, _MASK_VALUE[dtype]).astype(dtype)


def cudnn_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    bias_BxHxQxS: Array | None,
    causal: bool,
    over_devices: OverDevices,
    scale: float,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: bfloat16 or float16, softmax in float32, no dropout.

    bias: from `bias_and_mask`, which includes the mask; None: the mask alone. Deviation from `dot_product_attention`:
    the bias is rounded to the queries' dtype.
    causal: the mask is False for every key after its query, so that the kernel may skip blocks of such keys.
    over_devices: see models/placement.py.
    """
    Q = query_BxHxQxK.shape[2]
    query = _pad(query_BxHxQxK, 2)
    keys, values = (_pad(x, 2) for x in keys_values)
    if bias_BxHxQxS is not None:
        mask_or_bias, dimensions = _pad(_pad(bias_BxHxQxS, 2), 3, _MASK_VALUE[query.dtype.name]), "BHQS"
    else:
        mask_or_bias, dimensions = _pad(_pad(mask_Bx1xQxS, 2), 3, False), "B1QS"

    def attend(query, keys, values, mask_or_bias):
        has_bias = bias_BxHxQxS is not None
        output_BxQxHxK = jax.nn.dot_product_attention(
            query.swapaxes(1, 2),
            keys.swapaxes(1, 2),
            values.swapaxes(1, 2),
            bias=mask_or_bias if has_bias else None,
            mask=None if has_bias else mask_or_bias,
            scale=scale,
            is_causal=causal,
            implementation="cudnn",
        )
        return output_BxQxHxK.swapaxes(1, 2)

    attend_over_devices = over_devices(attend, ("BHQK", "BGSK", "BGSK", dimensions), "BHQK")
    output_BxHxQxK = attend_over_devices(query, keys, values, mask_or_bias)[:, :, :Q]
    # Where all keys are masked, all scores are equally low and the kernel returns the mean of all values.
    return jnp.where(mask_Bx1xQxS.any(-1, keepdims=True), output_BxHxQxK, 0)


def _pad(x: Array, axis: int, value: float = 0) -> Array:
    """Returns `x` with `axis` padded at its end to a multiple of _MULTIPLE."""
    padding = -x.shape[axis] % _MULTIPLE
    return jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)], constant_values=value)
