"""The product of states and output table, whose backward pass multiplies in the compute dtype."""

import jax
import jax.numpy as jnp

Array = jax.Array


@jax.custom_vjp
def logits_product(states_NxC: Array, table_CxV: Array) -> Array:
    """Returns the logits, float32 [N, V]. Both products of the backward pass multiply in the dtype of the states.

    The gradient of the logits is float32. JAX's own rule would multiply it in float32, at half the rate of bfloat16 or
    less; here it is rounded to the dtype of the states first. Sums are float32, and so is the gradient of the table.

    Args:
      states_NxC: [N, C] in the compute dtype.
      table_CxV: float32 [C, V], rounded to the compute dtype.
    """
    return _product(states_NxC, table_CxV.astype(states_NxC.dtype))


def _forward(states_NxC: Array, table_CxV: Array) -> tuple[Array, tuple[Array, Array]]:
    return logits_product(states_NxC, table_CxV), (states_NxC, table_CxV)


def _backward(saved: tuple[Array, Array], logits_bar_NxV: Array) -> tuple[Array, Array]:
    states_NxC, table_CxV = saved
    dtype = states_NxC.dtype
    bar_NxV = logits_bar_NxV.astype(dtype)
    states_bar_NxC = _product(bar_NxV, table_CxV.astype(dtype).T)
    return states_bar_NxC.astype(dtype), _product(states_NxC.T, bar_NxV).astype(table_CxV.dtype)


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


logits_product.defvjp(_forward, _backward)
