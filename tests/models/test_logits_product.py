"""The product of states and output table against float64, and the dtypes that the backward pass multiplies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import logits_product
from models.transformer import apply, init_params
from tests.models import tiny

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


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_every_product_of_a_bfloat16_model_has_bfloat16_factors(tie_embeddings):
    config = tiny.config(
        architecture="decoder_only",
        dtype="bfloat16",
        tie_embeddings=tie_embeddings,
        scale_logits=False,
        has_prefix=False,
    )
    params, batch = init_params(config, jax.random.key(0)), tiny.rows("decoder", [[1, 1, 1, 2]], [[3, 4, 5, 6]])

    def loss(params):
        return jax.nn.logsumexp(apply(config, params, batch), axis=-1).sum()

    vocabulary_products = [
        tuple(str(factor.aval.dtype) for factor in equation.invars)
        for equation in _products(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)
        if any(config.vocab_size in value.aval.shape for value in (*equation.invars, *equation.outvars))
    ]
    assert len(vocabulary_products) == 3  # forward, and the gradients of states and table
    assert set(vocabulary_products) == {("bfloat16", "bfloat16")}


def _products(jaxpr):
    """Yields the dot_general equations of a jaxpr and of those within it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda value: hasattr(value, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _products(inner)
