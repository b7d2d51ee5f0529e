"""Flash attention in Pallas's interpreter: values and gradients are those of XLA's attention, dropout included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import KeysValues, attention_mask, dot_product_attention
from models.kernels import flash as flash_kernel
from models.kernels.tpu_blocks import TILE
from tests.models.kernels.test_dropout import keep_mask

on_one_device = lambda function, *_: function  # noqa: E731
K = 8
# rows, query heads, key/value heads, queries, keys (None: self-attention), what the mask has, bias, dropout rate,
# whether queries share the dropout's draws
CASES = {
    "t5": (3, 2, 2, 70, None, "", True, 0.0, False),
    "t5 of several blocks": (2, 2, 2, 200, None, "causal", True, 0.0, False),
    "t5 1.0": (2, 2, 2, 90, None, "causal", True, 0.3, True),
    "cross": (2, 4, 2, 150, 70, "", False, 0.1, False),
    "prefix": (2, 4, 2, 300, None, "causal prefix", False, 0.0, False),
    "prefix with bias": (4, 4, 1, 130, None, "causal prefix", True, 0.2, False),
    "order": (3, 2, 2, 100, None, "order", False, 0.1, False),
    "causal order": (1, 2, 1, 257, None, "causal order", False, 0.0, False),
}


def packed(rng, rows, length):
    """Segment ids of rows with three segments of random lengths and padding, and of one row that is all padding."""
    ends = np.sort(rng.integers(1, length, (rows, 3)), axis=1)
    ids = 1 + (np.arange(length) >= ends[:, :2, None]).sum(1)
    ids = np.where(np.arange(length) < ends[:, 2:], ids, 0)
    ids[-1] *= rows == 1
    return jnp.asarray(ids)


def random_arrays(case):
    B, H, G, Q, S, parts, with_bias, *_ = CASES[case]
    rng = np.random.default_rng(list(CASES).index(case))
    segments = packed(rng, B, Q)
    keys = segments if S is None else packed(rng, B, S)
    S = keys.shape[1]
    options = {
        "causal": "causal" in parts,
        "bidirectional_mask_BxS": jnp.asarray(rng.random((B, S)) < 0.3) if "prefix" in parts else None,
        "order_BxL": jnp.asarray(rng.integers(0, 5, (B, S)), jnp.int32) if "order" in parts else None,
    }
    shapes = [(B, H, Q, K), (B, G, S, K), (B, G, S, K)] + [(1, H, Q, S)] * with_bias
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    return segments, keys, options, arrays, jnp.asarray(rng.standard_normal(shapes[0]), jnp.float32)


def value_and_gradients(attention, arrays, output_bar):
    def function(query, keys, values, bias=None):
        return attention(query, KeysValues(keys, values), bias_1xHxQxS=bias, scale=0.7)

    output, backward = jax.vjp(jax.jit(function), *arrays)
    return output, *backward(output_bar)


def attention_with_draws(query, keys_values, *, bias_1xHxQxS, scale, mask, keep, rate):
    """Attention by its definition, where `keep` is what dropout keeps."""
    keys, values = (x.repeat(query.shape[1] // x.shape[1], axis=1) for x in keys_values)
    scores = scale * jnp.einsum("BHQK,BHSK->BHQS", query, keys) + (0 if bias_1xHxQxS is None else bias_1xHxQxS)
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, scores, 0)), 0)
    total = weights.sum(-1, keepdims=True)
    probabilities = weights / jnp.where(total == 0, 1, total)
    return jnp.einsum("BHQS,BHSK->BHQK", probabilities * keep / (1 - rate), values)


@pytest.mark.parametrize("largest_block", [TILE, 4 * TILE])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_definition(case, largest_block, monkeypatch):
    *_, rate, broadcast = CASES[case]
    segments, keys, options, arrays, output_bar = random_arrays(case)
    if largest_block > TILE and max(segments.shape[1], keys.shape[1]) <= TILE:
        pytest.skip("rows of one block in either case")
    monkeypatch.setattr(flash_kernel, "LARGEST_BLOCK", largest_block)
    key = jax.random.key(3)
    flash = functools.partial(
        flash_kernel.flash_attention,
        mask=flash_kernel.flash_mask(segments, keys, **options),
        over_devices=on_one_device,
        interpret=True,
        dropout_rate=rate,
        dropout_broadcast_positions=broadcast,
        dropout_key=key,
    )
    (B, H, Q, _), S = arrays[0].shape, keys.shape[1]
    mask = attention_mask(segments, keys, **options)
    if rate:
        keep = keep_mask(key, B, H, 1 if broadcast else Q, S, rate)
        plain = functools.partial(attention_with_draws, mask=mask, keep=keep, rate=rate)
    else:
        plain = functools.partial(dot_product_attention, mask_Bx1xQxS=mask)
    ours, theirs = (value_and_gradients(attention, arrays, output_bar) for attention in (flash, plain))
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
    fully_masked = ~np.asarray(mask[:, 0].any(-1))
    assert fully_masked.any()
    for x in ours[:2]:  # the output and the gradient of the queries
        assert (np.asarray(x).swapaxes(1, 2)[fully_masked] == 0).all()
    unseen = ~np.asarray(mask[:, 0].any(1))
    for x in ours[2:4]:
        assert (np.asarray(x).swapaxes(1, 2)[unseen] == 0).all()


def test_blocks_without_visible_keys_are_known():
    """Causal rows of four blocks: two segments of two blocks each; one segment with a prefix in its third block."""
    segments = jnp.asarray(np.stack([np.repeat([1, 2], 1024), np.repeat([1, 0], [1600, 448])]))
    prefix = jnp.zeros(segments.shape, bool).at[1, 1100].set(True)
    mask = flash_kernel.flash_mask(segments, segments, causal=True, bidirectional_mask_BxS=prefix, order_BxL=None)
    np.testing.assert_array_equal(
        mask.visible_blocks,
        [
            [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
            [[1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        ],
    )


def test_vmap_over_stacked_runs():
    """As in training of several seeds side by side."""
    segments, keys, options, arrays, output_bar = random_arrays("t5 1.0")
    options |= {"mask": flash_kernel.flash_mask(segments, keys, **options)}
    flash = functools.partial(
        flash_kernel.flash_attention, mask=options["mask"], over_devices=on_one_device, interpret=True
    )
    stacked = [jnp.stack([x, 2 * x]) for x in arrays]
    run = functools.partial(value_and_gradients, flash, output_bar=output_bar)
    together = jax.vmap(lambda *arrays: run(arrays))(*stacked)
    for k in range(2):
        for x, y in zip(together, run([x[k] for x in stacked]), strict=True):
            np.testing.assert_allclose(x[k], y, rtol=1e-5, atol=1e-5)
