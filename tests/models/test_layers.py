"""Dropout, norms, embeddings and linear maps, by hand-computed values and references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.layers import Embedding, Linear, Norm, activation, affine, dropout, linear_maps
from models.placement import placed
from tests.models import tiny


@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_dropout_rescales_kept_entries_and_may_share_its_draw_between_positions(broadcast_positions):
    x = jnp.ones((200, 3, 50))
    y = np.asarray(dropout(x, 0.25, jax.random.key(0), broadcast_positions=broadcast_positions))
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert len({row.tobytes() for row in y[:, 0]}) == 200  # rows never share a draw
    assert len({position.tobytes() for position in y.reshape(-1, 50)}) == (200 if broadcast_positions else 600)
    num_draws = 200 * 50 * (1 if broadcast_positions else 3)
    assert y.mean() == pytest.approx(1, abs=4 * np.sqrt(0.25 / 0.75 / num_draws))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_of_one_vector(dtype):
    # (1, 7) has mean square 25. Minus its mean, 4, it is (-3, 3).
    x = jnp.asarray([[1.0, 7.0]], dtype)
    rms = Norm(tiny.config(d_model=2), rngs=nnx.Rngs(0))(x)
    centered = Norm(tiny.config(d_model=2, norm="layer"), rngs=nnx.Rngs(0))(x)
    assert rms.dtype == centered.dtype == x.dtype
    np.testing.assert_allclose(np.float32(rms), [[0.2, 1.4]], rtol=1e-2 if dtype == "bfloat16" else 1e-5)
    np.testing.assert_allclose(np.float32(centered), [[-1, 1]], rtol=1e-5)


@pytest.mark.parametrize(("norm", "platform"), [("rms", "cpu"), ("layer", "cpu"), ("layer", "hopper")])
def test_the_epsilon_of_the_config_is_added_to_the_mean_square(norm, platform):
    # (3/4)^2 + 7/16 is 1. LayerNorm subtracts the mean of (0, 3/2) before.
    x = jnp.asarray({"rms": [[0.75, 0.75]], "layer": [[0.0, 1.5]]}[norm])
    with placed(platform=platform):
        y = Norm(tiny.config(d_model=2, norm=norm, norm_epsilon=7 / 16), rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(np.abs(y), [[0.75, 0.75]], rtol=1e-6)


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_layer_norm_of_gpus_has_the_same_values_and_gradients(use_bias):
    x, weights = (jax.random.normal(jax.random.key(seed), (3, 5, 8)) for seed in (0, 1))
    structure, params = nnx.split(Norm(tiny.config(d_model=8, norm="layer", use_bias=use_bias), rngs=nnx.Rngs(0)))
    params = jax.tree.map(lambda leaf: leaf + jax.random.normal(jax.random.key(2), leaf.shape), params)

    def loss(params, x):
        return (nnx.merge(structure, params)(x) * weights).sum()

    expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, 3 * x + 2)
    with placed(platform="hopper"):
        found = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, 3 * x + 2)
        assert "custom_vjp" in str(jax.make_jaxpr(loss)(params, x))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def test_on_gpus_the_gradient_of_a_bias_is_summed_from_an_array_in_memory():
    x, kernel, bias, y_bar = jnp.ones((5, 3)), jnp.ones((3, 4)), jnp.ones(4), jnp.ones((5, 4))
    with placed(platform="hopper"):
        program = jax.make_jaxpr(lambda y_bar: jax.vjp(affine, x, kernel, bias)[1](y_bar))(y_bar)
    assert "optimization_barrier" in str(program)


def test_only_layer_norms_of_models_with_biases_have_a_bias():
    assert Norm(tiny.config(norm="layer", use_bias=True), rngs=nnx.Rngs(0)).bias is not None
    assert Norm(tiny.config(norm="layer", use_bias=False), rngs=nnx.Rngs(0)).bias is None
    assert Norm(tiny.config(norm="rms", use_bias=True), rngs=nnx.Rngs(0)).bias is None


@pytest.mark.parametrize(
    ("mlp", "expected"),
    [
        ("relu", [0, 0, 1]),
        ("exact_gelu", [-2 * 0.02275013, 0, 0.84134475]),  # x times the normal distribution function
        (
            "gelu",
            [-2 * 0.02270115, 0, 0.84119199],
        ),  # its approximation by (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2
        ("gated_gelu", [-2 * 0.02270115, 0, 0.84119199]),
        ("gated_silu", [-2 / (1 + np.exp(2)), 0, 1 / (1 + np.exp(-1))]),
    ],
)
def test_activations_at_minus_two_zero_and_one(mlp, expected):
    result = activation(tiny.config(mlp=mlp))(jnp.array([-2.0, 0.0, 1.0]))
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_an_id_beyond_the_table_gives_nan():
    embedding = Embedding(tiny.config(), 4, rngs=nnx.Rngs(0))
    vectors = embedding(jnp.asarray([3, 4]))
    assert np.isfinite(vectors[0]).all() and np.isnan(vectors[1]).all()


@pytest.mark.parametrize("inputs, outputs", [(3, 5), (5, 3), (4, 4)])  # on CPU the narrower array is on the left
def test_gradients_of_a_linear_map(inputs, outputs):
    rng = np.random.default_rng(0)
    x, kernel, bias, y_bar = (
        rng.standard_normal(shape) for shape in ((7, inputs), (inputs, outputs), outputs, (7, outputs))
    )
    y, back = jax.vjp(affine, *map(jnp.float32, (x, kernel, bias)))
    np.testing.assert_allclose(y, x @ kernel + bias, atol=1e-5)
    expected = y_bar @ kernel.T, x.T @ y_bar, y_bar.sum(0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), back(jnp.float32(y_bar)), expected)


@pytest.mark.parametrize("use_bias", [True, False])
def test_linear_maps_computed_by_one_product_equal_separate_ones(use_bias):
    config, rngs, rng = tiny.config(use_bias=use_bias), nnx.Rngs(0), np.random.default_rng(0)
    maps = [Linear(config, 6, outputs, nnx.initializers.normal(), rngs=rngs) for outputs in (4, 2, 2)]
    for linear in maps if use_bias else []:
        linear.bias[...] = jnp.float32(rng.standard_normal(linear.bias.shape))
    graphdef, parameters = nnx.split(maps)
    x, *ys_bar = (jnp.float32(rng.standard_normal((5, columns))) for columns in (6, 4, 2, 2))

    def value_and_gradients(apply):
        def of(*arguments):
            ys, back = jax.vjp(lambda x, parameters: apply(x, *nnx.merge(graphdef, parameters)), *arguments)
            return ys, back(ys_bar)

        return jax.jit(of)(x, parameters)

    expected = value_and_gradients(lambda x, *maps: [linear(x) for linear in maps])
    for platform, splits_kernels in (("cpu", False), ("cuda", False), ("tpu", True)):
        with placed(platform=platform, splits_kernels=splits_kernels):
            found = value_and_gradients(linear_maps)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


def test_the_gradient_of_a_bias_is_summed_in_float32_and_rounded_once():
    """Autodiff would sum these 8,192 rows in bfloat16, with an error of 1 to 2%."""
    x, kernel, bias = (jnp.zeros(shape, jnp.bfloat16) for shape in ((8192, 1), (1, 64), 64))
    y_bar = jnp.asarray(1 + np.random.default_rng(0).standard_normal((8192, 64)), jnp.bfloat16)
    found = jax.jit(lambda y_bar: jax.vjp(affine, x, kernel, bias)[1](y_bar)[2])(y_bar)
    np.testing.assert_allclose(np.float64(found), np.float64(y_bar).sum(0), rtol=2**-8)
