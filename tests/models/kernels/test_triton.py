"""The kernel "triton": values and gradients, also with dropout; its dropout; its program for a GPU."""

import functools

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from models import attention
from models.attention import KeysValues, attention_mask
from models.kernels import choice
from models.kernels.triton import mask_and_bias_arrays, triton_attention
from models.placement import compiled_for, platform_of
from models.transformer import apply, init_params
from tests.models import tiny
from tests.models.kernels.test_choice import ENCODER, PACKED, PREFIX, check, inputs, on_one_device
from tests.models.kernels.test_dropout import keep_mask

RATE = 0.3


@pytest.mark.parametrize(("name", "with_bias"), [("causal", True), ("prefix", False), ("order", True), ("cross", True)])
def test_values_and_gradients(name, with_bias, monkeypatch):
    """Rows of 130 are three blocks, the last of them with two positions; heads of 8 are padded."""
    monkeypatch.setattr(choice, "triton_attention", functools.partial(triton_attention, interpret=True))
    monkeypatch.setattr(choice, "_unsupported", lambda *_: None)
    check(name, "triton", with_bias=with_bias)


@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_dropout_against_dot_product_attention_with_the_same_keep_mask(broadcast_positions):
    check_dropout(broadcast_positions, interpret=True)


@pytest.mark.skipif(platform_of(jax.devices()[0]) not in ("cuda", "hopper"), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_dropout_on_a_gpu(broadcast_positions):
    check_dropout(broadcast_positions, dtype="bfloat16", tolerance=5e-2)


def check_dropout(broadcast_positions, *, interpret=False, dtype="float32", tolerance=2e-5):
    """Asserts that values and gradients with dropout are those of XLA's attention that keeps the same entries."""
    query, key, value, bias, output_bar = map(jnp.asarray, inputs("cross", with_bias=True))
    query, key, value, output_bar = (x.astype(dtype) for x in (query, key, value, output_bar))
    (B, H, Q, K), (G, S) = query.shape, key.shape[1:3]
    queries, keys, dropout_key = jnp.asarray(PACKED), jnp.asarray(ENCODER), jax.random.key(3)
    mask = attention_mask(queries, keys, causal=False)

    def fused(query, key, value, bias):
        arrays = mask_and_bias_arrays(
            K, mask, queries, keys, bidirectional_mask_BxS=None, order_BxL=None, bias_1xHxQxS=bias
        )
        return triton_attention(
            query,
            KeysValues(key, value),
            mask_and_bias=arrays,
            causal=False,
            over_devices=on_one_device,
            scale=0.5,
            dropout_rate=RATE,
            dropout_broadcast_positions=broadcast_positions,
            dropout_key=dropout_key,
            interpret=interpret,
        )

    def plain(query, key, value, bias):
        keep = keep_mask(dropout_key, B, H, 1 if broadcast_positions else Q, S, RATE).reshape(B, G, H // G, -1, S)
        query, bias = query.reshape(B, G, H // G, Q, K), bias.reshape(1, G, H // G, Q, S)
        return attention._attend(0.5, RATE, query, key, value, bias, mask[:, None], keep).reshape(B, H, Q, K)

    def output_and_gradients(function):
        output, pull = jax.vjp(function, query, key, value, bias)
        return output, *pull(output_bar)

    actual, expected = (jax.jit(functools.partial(output_and_gradients, f))() for f in (fused, plain))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (ours, theirs)), rtol=tolerance, atol=tolerance)
    without = jax.jit(lambda *arrays: plain(*arrays[:-1], 0 * arrays[-1]))(query, key, value, bias)
    assert np.abs(np.asarray(expected[0] - without, np.float32)).max() > 0.1  # the bias matters


def calls_for_a_gpu(config, batch, *, vmap=False):
    """The results of the kernel's calls in the program of a model's loss and gradients for a GPU, and its text."""
    loss = lambda params, key: apply(config, params, batch, dropout_key=key).astype(jnp.float32).sum()  # noqa: E731
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    arguments, step = (shapes, jax.eval_shape(lambda: jax.random.key(0))), jax.grad(loss)
    if vmap:
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), arguments)
        step = jax.vmap(step)
    with compiled_for("hopper", on_one_device):
        text = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    return [line.rpartition("->")[2] for line in text.splitlines() if "@__gpu$xla.gpu.triton(" in line], text


@pytest.mark.skipif(
    jaxlib.version.__version_info__ > (0, 10, 2), reason="lowering compiles, which needs a GPU's plugin"
)
@pytest.mark.parametrize("vmap", [False, True])
def test_the_program_for_a_gpu_has_no_array_for_each_row_head_query_and_key(vmap):
    """Packed rows with a prefix, a bias and dropout. Sizes: 3 rows, 4 heads, 130 positions, which are three blocks."""
    config = tiny.config(
        architecture="decoder_only", attention="triton", dtype="bfloat16", dropout_rate=0.1, num_layers=1, head_dim=256
    )
    segments = np.stack([*PACKED, PACKED[0]])
    batch = tiny.rows("decoder", segments.tolist(), np.ones_like(segments))
    batch["decoder_bidirectional_mask"] = jnp.asarray(np.stack([*PREFIX, PREFIX[0]]))
    results, text = calls_for_a_gpu(config, batch, vmap=vmap)
    # The forward pass; the gradients of queries, of keys and values, and of the bias.
    runs = "2x" if vmap else ""
    assert len(results) == 4
    assert sum(f"tensor<{runs}4x160x160xf32>" in result for result in results) == 1
    for size in (130, 160):
        assert f"3x4x{size}x{size}x" not in text
