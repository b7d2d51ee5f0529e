import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.chunked_cross_entropy import chunked_cross_entropy
from objectives.losses.cross_entropy import LossOptions, scored_tokens

B, L, D, V = 2, 7, 5, 11
OPTIONS = LossOptions(num_groups=3, z_loss=1e-2, label_smoothing=0.1)


@functools.cache
def example():
    rng = np.random.default_rng(0)
    params = {
        "head": jnp.asarray(rng.standard_normal((D, D), np.float32)),
        "table": jnp.asarray(rng.standard_normal((V, D), np.float32)),
        "unused": jnp.ones(3),
    }
    batch = {
        "decoder_target_tokens": jnp.asarray(rng.integers(0, V, (B, L))),
        "decoder_loss_weights": jnp.asarray(rng.random((B, L), np.float32) * (rng.random((B, L)) < 0.7)),
        "example_source": jnp.asarray(rng.integers(0, 3, (B, L))),
    }
    return params, jnp.asarray(rng.standard_normal((B, L, D), np.float32)), batch


@functools.partial(jax.jit, static_argnames="chunk_size")
def loss(params, hidden, chunk_size, factor=1.0):
    """A loss that contains minimized_sum, scaled by `factor`, as one of two terms; and the sums."""

    def logits_of(params, hidden):
        return jnp.tanh(hidden @ params["head"]) @ params["table"].T

    sums = chunked_cross_entropy(logits_of, params, hidden, scored_tokens(example()[2]), OPTIONS, chunk_size=chunk_size)
    return factor * sums.minimized_sum / sums.weight_sum + jnp.square(hidden).sum(), sums


@functools.partial(jax.jit, static_argnames="chunk_size")
def gradients(params, hidden, chunk_size, factor):
    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, hidden, chunk_size, factor)


def assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), ours, theirs)


@pytest.mark.parametrize("chunk_size", [3, 100])  # 3 does not divide the length; 100 exceeds it
def test_sums_and_gradients_are_those_of_the_plain_loss(chunk_size):
    params, hidden, _ = example()
    assert_close(loss(params, hidden, chunk_size), loss(params, hidden, 0))
    ours, theirs = (gradients(params, hidden, size, 3.0) for size in (chunk_size, 0))
    assert_close(ours, theirs)
    assert np.abs(ours[0][0]["table"]).min() > 0 and (ours[0][0]["unused"] == 0).all()


def test_gradients_of_microbatches_add_up_in_a_scan_under_remat():
    params, hidden, _ = example()

    @jax.jit
    def accumulated(params, hidden):
        @jax.checkpoint
        def scaled_loss(factor):
            return loss(params, hidden, 3, factor)[0]

        return jax.lax.scan(lambda total, factor: (total + scaled_loss(factor), None), 0.0, jnp.asarray([1.0, 2.0]))[0]

    total = jax.grad(accumulated, argnums=(0, 1))(params, hidden)
    parts = [gradients(params, hidden, 0, factor)[0] for factor in (1.0, 2.0)]
    assert_close(total, jax.tree.map(jnp.add, *parts))


def array_sizes(jaxpr):
    """Yields the number of entries of each array that a jaxpr computes, those of its inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield from (np.prod(v.aval.shape, dtype=int) for v in equation.outvars if hasattr(v.aval, "shape"))
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            yield from array_sizes(inner) if hasattr(inner, "eqns") else ()


def test_no_array_has_an_entry_for_each_position_and_word():
    """In the jaxpr of the loss and its gradient; the plain loss has several such arrays."""
    params, hidden, _ = example()
    traced = jax.make_jaxpr(gradients, static_argnums=2)
    plain, chunked = (max(array_sizes(traced(params, hidden, size, 1.0).jaxpr)) for size in (0, 2))
    assert chunked <= max(V * D, B * 2 * V, B * (L + 1) * D) < plain == B * L * V


def test_gradients_have_the_dtypes_of_their_arrays_when_computing_in_bfloat16():
    params, hidden, _ = example()
    (ours, hidden_gradient), sums = gradients(params, hidden.astype(jnp.bfloat16), 3, 1.0)
    assert ours["table"].dtype == jnp.float32 and hidden_gradient.dtype == jnp.bfloat16
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(sums))
