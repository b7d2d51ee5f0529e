"""Rematerialization and unrolling: less memory for activations with the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.transformer import apply
from tests.models.tiny import config, params, rows

LENGTH = 12
BATCH = {
    **rows("encoder", [[1] * LENGTH] * 4, np.arange(4 * LENGTH).reshape(4, LENGTH) % 50),
    **rows("decoder", [[1] * LENGTH] * 4, np.arange(4 * LENGTH).reshape(4, LENGTH) % 47),
}


def gradients_of(remat, key=None, scan_unroll=1):
    model = config(num_layers=6, remat=remat, scan_unroll=scan_unroll, dropout_rate=0.0 if key is None else 0.3)

    def loss(params):
        return jnp.square(jax.nn.log_softmax(apply(model, params, BATCH, dropout_key=key))).mean()

    return jax.jit(jax.grad(loss))


def bytes_saved(remat):
    """The size of the arrays that the forward pass saves for the backward pass."""
    model = config(num_layers=6, remat=remat)
    shapes = jax.eval_shape(lambda: params(config(num_layers=6)))

    def saved(params):
        return jax.tree.leaves(jax.vjp(lambda p: apply(model, p, BATCH).sum(), params)[1])

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(saved, shapes))


@pytest.mark.parametrize("remat", ["dots", "full"])
@pytest.mark.parametrize("key", [None, 7])
def test_remat_does_not_change_gradients(remat, key):
    key = None if key is None else jax.random.key(key)
    initial = params(config(num_layers=6))
    expected, found = (gradients_of(policy, key)(initial) for policy in ("none", remat))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, expected)


def test_full_saves_less_than_dots_and_dots_less_than_none():
    none, dots, full = map(bytes_saved, ("none", "dots", "full"))
    assert full < dots < none and full < none / 2
