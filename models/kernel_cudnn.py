"""cuDNN's fused attention, through jax.nn: scores and probabilities are never in memory whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues

_MULTIPLE = 8  # cuDNN's gradient with a bias needs even lengths; rows of a bias that start at 16 bytes load faster
_HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}  # what jax.nn adds for this kernel to a hidden key's score


def bias_and_mask(bias_1xHxQxS: Array, mask_Bx1xQxS: Array, dtype: str) -> Array:
    """[B, H, Q, S] of `dtype`: the bias, and far below any score where the mask is False.

    The kernel has no other place for a mask, and knows one bias for each row. Made once for all layers of a stack, and
    with a gradient that is summed over the rows in float32.
    """
    whole_BxHxQxS = jnp.where(mask_Bx1xQxS, bias_1xHxQxS, 0).astype(dtype)
    return whole_BxHxQxS + jnp.where(mask_Bx1xQxS, 0, _HIDDEN[dtype]).astype(dtype)


def cudnn_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    bias_BxHxQxS: Array | None,
    causal: bool,
    over_devices: Callable[..., Callable[..., Array]],
    scale: float,
) -> Array:
    """What `dot_product_attention` gives, [B, H, Q, K]; bfloat16 or float16, softmax in float32. No dropout.

    bias: from `bias_and_mask`, the mask in it; T5's relative bias is rounded to the queries' dtype there, which
    `dot_product_attention` does not do. None: the mask is all there is.
    causal: `mask` hides every key after its query, so those blocks need not be looked at.
    over_devices: see models/placement.py.
    """
    Q, has_bias = query_BxHxQxK.shape[2], bias_BxHxQxS is not None

    def of_rows(query, keys, values, visible):
        mixed_BxQxHxK = jax.nn.dot_product_attention(
            query.swapaxes(1, 2),
            keys.swapaxes(1, 2),
            values.swapaxes(1, 2),
            visible if has_bias else None,
            None if has_bias else visible,
            scale=scale,
            is_causal=causal,
            implementation="cudnn",
        )
        return mixed_BxQxHxK.swapaxes(1, 2)

    query = _pad(query_BxHxQxK, 2)
    keys, values = (_pad(x, 2) for x in keys_values)
    if has_bias:
        visible = _pad(_pad(bias_BxHxQxS, 2), 3, _HIDDEN[query.dtype.name])
    else:
        visible = _pad(_pad(mask_Bx1xQxS, 2), 3, False)
    dimensions = "BHQS" if has_bias else "B1QS"
    attend = over_devices(of_rows, ("BHQK", "BGSK", "BGSK", dimensions), "BHQK")
    mixed_BxHxQxK = attend(query, keys, values, visible)[:, :, :Q]
    # A query that sees nothing would see everything alike, the scores being all as low.
    return jnp.where(mask_Bx1xQxS.any(-1, keepdims=True), mixed_BxHxQxK, 0)


def _pad(x: Array, axis: int, value: float = 0) -> Array:
    to_whole = -x.shape[axis] % _MULTIPLE
    return jnp.pad(x, [(0, to_whole if i == axis else 0) for i in range(x.ndim)], constant_values=value)
