"""The product of states and output table against float64, and the dtypes that the backward pass multiplies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import logits_product

N, C, V = 24, 16, 40


def arguments(dtype):
    rng = np.random.default_rng(0)
    states = jnp.asarray(rng.normal(size=(N, C)), dtype)
    return states, jnp.asarray(rng.normal(size=(C, V)), jnp.float32), jnp.asarray(rng.normal(size=(N, V)), jnp.float32)


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2**-24), ("bfloat16", 2**-9), ("float16", 2**-12)])
def test_values_and_gradients_against_float64(dtype, unit):
    states, table, bar = arguments(dtype)
    logits, backward = jax.vjp(logits_product, states, table)
    states_bar, table_bar = backward(bar)
    assert (logits.dtype, states_bar.dtype, table_bar.dtype) == (jnp.float32, states.dtype, jnp.float32)
    x, w, y = (np.asarray(array, np.float64) for array in (states, table, bar))
    for found, left, right in ((logits, x, w), (states_bar, y, w.T), (table_bar, x.T, y)):
        # Each factor is rounded once, and the result once more.
        bound = 3 * unit * (np.abs(left) @ np.abs(right)) + 1e-6
        assert (np.abs(np.asarray(found, np.float64) - left @ right) <= bound).all()
