"""cuDNN's attention under a mask, without a gradient of the mask.

cuDNN takes a mask as a bias. Before JAX 0.11.1, `jax.nn.dot_product_attention` always computes the gradient of that
bias, an array [B, 1, Q, S] for each layer, which nothing reads where the mask is not learned. This file therefore calls
the function behind it, whose argument `variadic_args` says whether there is such a gradient. Where the installed JAX
has another signature (`has_known_arguments`), as from 0.12 on, the public function is called.
"""

import inspect

import jax
import jax.numpy as jnp
from jax import Array

try:
    from jax._src.cudnn import fused_attention_stablehlo as _of_jax
except ImportError:
    _of_jax = None  # type: ignore[assignment]

_ARRAYS = (
    "query",
    "key",
    "value",
    "bias",
    "q_seqlen",
    "kv_seqlen",
    "q_offsets",
    "kv_offsets",
    "page_table_k",
    "page_table_v",
)
_SETTINGS = (
    "scale",
    "seed",
    "dropout_rate",
    "variadic_args",
    "mask_type",
    "layout",
    "sliding_window_length",
    "cudnn_version",
    "return_residual",
)
_NAMES = ("_dot_product_attention", "check_cudnn_version", "AttentionLayout", "MaskType")


def has_known_arguments() -> bool:
    """Returns whether the installed JAX has the function with the arguments that are known here, as 0.9 to 0.11 do."""
    if any(not hasattr(_of_jax, name) for name in _NAMES):
        return False
    return tuple(inspect.signature(_of_jax._dot_product_attention).parameters) == _ARRAYS + _SETTINGS


def masked_attention(
    query_BxQxHxK: Array,
    keys_BxSxGxK: Array,
    values_BxSxGxK: Array,
    mask_Bx1xQxS: Array,
    *,
    mask_value: float,
    scale: float,
    causal: bool,
) -> Array:
    """Returns [B, Q, H, K], as jax.nn.dot_product_attention by cuDNN with this mask.

    mask_value: added to the score of a masked key. causal: every key after its query is masked.
    """
    if not has_known_arguments():
        return jax.nn.dot_product_attention(
            query_BxQxHxK,
            keys_BxSxGxK,
            values_BxSxGxK,
            mask=mask_Bx1xQxS,
            scale=scale,
            is_causal=causal,
            implementation="cudnn",
        )
    bias_Bx1xQxS = jnp.where(mask_Bx1xQxS, 0, mask_value).astype(query_BxQxHxK.dtype)
    unused = [jnp.zeros(0, query_BxQxHxK.dtype)] * (len(_ARRAYS) - 4)
    mask_type = _of_jax.MaskType.CAUSAL if causal else _of_jax.MaskType.NO_MASK
    settings = {
        "scale": scale,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (True, False),  # there is a bias, without a gradient
        "mask_type": mask_type,
        "layout": _of_jax.AttentionLayout.BTNH.value,
        "sliding_window_length": None,
        "cudnn_version": _of_jax.check_cudnn_version(),
        "return_residual": False,
    }
    return _of_jax._dot_product_attention(
        query_BxQxHxK,
        keys_BxSxGxK,
        values_BxSxGxK,
        bias_Bx1xQxS,
        *unused,
        *(settings[name] for name in _SETTINGS),
    )
