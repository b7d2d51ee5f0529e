"""cuDNN's fused attention, through jax.nn: scores and probabilities are never in memory whole."""

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues

_MULTIPLE = 8  # cuDNN's gradient with a bias needs even lengths; rows of a bias that start at 16 bytes load faster


def cudnn_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_Bx1xQxS: Array,
    causal: bool,
    bias_1xHxQxS: Array | None,
    scale: float,
) -> Array:
    """What `dot_product_attention` gives, [B, H, Q, K]; bfloat16 or float16. No dropout.

    causal: `mask` hides every key after its query, so those blocks need not be looked at.

    The mask reaches the kernel as a bias, in the queries' dtype like the bias itself: T5's relative bias is rounded to
    it, which `dot_product_attention` does not do.
    """
    Q, S = query_BxHxQxK.shape[2], keys_values.keys.shape[2]
    to_Q, to_S = -Q % _MULTIPLE, -S % _MULTIPLE
    query = jnp.pad(query_BxHxQxK, ((0, 0), (0, 0), (0, to_Q), (0, 0))).swapaxes(1, 2)
    keys, values = (jnp.pad(x, ((0, 0), (0, 0), (0, to_S), (0, 0))).swapaxes(1, 2) for x in keys_values)
    around = ((0, 0), (0, 0), (0, to_Q), (0, to_S))
    mixed_BxQxHxK = jax.nn.dot_product_attention(
        query,
        keys,
        values,
        None if bias_1xHxQxS is None else jnp.pad(bias_1xHxQxS, around).astype(query.dtype),
        jnp.pad(mask_Bx1xQxS, around),
        scale=scale,
        is_causal=causal,
        implementation="cudnn",
    )
    mixed_BxHxQxK = mixed_BxQxHxK.swapaxes(1, 2)[:, :, :Q]
    # A query that sees nothing would see everything alike, the scores being all as low.
    return jnp.where(mask_Bx1xQxS.any(-1, keepdims=True), mixed_BxHxQxK, 0)
