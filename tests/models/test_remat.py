"""Rematerialization and unrolling: less memory for activations with the same gradients."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.placement import placed
from models.transformer import apply
from tests.models.tiny import config, params, rows

LENGTH = 12
BATCH = rows("decoder", [[1] * LENGTH] * 4, np.arange(4 * LENGTH).reshape(4, LENGTH) % 47)
BATCH |= {"decoder_bidirectional_mask": jnp.zeros((4, LENGTH), bool)}
SIZES = {"architecture": "decoder_only", "num_layers": 6}


@functools.cache
def gradients_of(remat):
    model = config(**SIZES, remat=remat, dropout_rate=0.3)

    def loss(params):
        return jnp.square(jax.nn.log_softmax(apply(model, params, BATCH, dropout_key=jax.random.key(7)))).mean()

    return jax.jit(jax.grad(loss))


def bytes_saved(remat):
    """The size of the arrays that the forward pass saves for the backward pass."""
    model = config(**SIZES, remat=remat)
    shapes = jax.eval_shape(lambda: params(config(**SIZES)))

    def saved(params):
        return jax.tree.leaves(jax.vjp(lambda p: apply(model, p, BATCH).sum(), params)[1])

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(saved, shapes))


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_remat_does_not_change_gradients(remat):
    initial = params(config(**SIZES))
    expected, found = (gradients_of(policy)(initial) for policy in ("none", remat))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, expected)


def test_layers_that_are_no_loop_are_computed_twice_too():
    """XLA merges the two computations of a layer where nothing keeps them apart."""
    two = SIZES | {"num_layers": 2, "scan_unroll": 2}
    shapes = jax.eval_shape(lambda: params(config(**two)))

    def products(remat):
        model = config(**two, remat=remat)
        gradient = jax.grad(lambda params: apply(model, params, BATCH).sum())
        return jax.jit(gradient).lower(shapes).compile().as_text().count(" dot(")

    assert products("full") >= products("none") + 2 * 5  # of two layers, all but the last


@pytest.mark.parametrize(
    ("placement", "fields", "expected"),
    [
        ({"platform": "hopper", "splits_kernels": False}, {}, SIZES["num_layers"]),
        ({"platform": "hopper", "splits_kernels": True}, {}, 1),
        ({"platform": "hopper", "splits_kernels": False}, {"remat": "full"}, 1),
        ({"platform": "hopper", "splits_kernels": False}, {"scan_unroll": 1}, 1),
        ({"platform": "tpu", "splits_kernels": False}, {}, 1),
        ({}, {}, 1),
    ],
)
def test_on_gpus_there_is_no_loop_where_kernels_are_whole_and_nothing_is_rematerialized(placement, fields, expected):
    model = config(**SIZES, **({"scan_unroll": 0, "attention": "xla"} | fields))
    with placed(**placement):
        traced = jax.make_jaxpr(lambda params: apply(model, params, BATCH))(params(config(**SIZES)))
    assert re.findall(r"unroll=(\d+)", str(traced)) == [str(expected)]
    # Of norms and activations, which XLA would merge with their recomputation where there is no loop.
    assert ("prevent_cse=True" in str(traced)) == (placement.get("platform") == "hopper")


def test_full_saves_less_than_dots_and_dots_less_than_none():
    none, dots, full = map(bytes_saved, ("none", "dots", "full"))
    assert full < dots < none and full < none / 2
