"""Attention: the mask by its definition, the product and its gradients by references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.attention import KeysValues, attention_mask, dot_product_attention
from models.layers import dropout
from tests.models import tiny


def mask(queries, keys=None, **options):
    queries = jnp.asarray([queries])
    return attention_mask(queries, queries if keys is None else jnp.asarray([keys]), **options)[0, 0].astype(int)


def test_all_of_a_segment_attends_to_its_prefix_and_other_segments_do_not():
    prefix = jnp.asarray([[True, True, False, False, True, True, False, False]])
    assert mask([1, 1, 1, 1, 2, 2, 2, 0], causal=True, bidirectional_mask=prefix).tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]


def test_a_query_with_an_offset_attends_to_the_cached_keys_before_it():
    assert mask([1, 1], [1, 1, 1, 1, 1, 0], causal=True, query_offset=jnp.asarray(2)).tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
    ]


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(-2, 2)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_mask_by_its_definition(row, causal, ordered):
    segments, prefix, order = zip(*row, strict=True)
    order_BxL = jnp.asarray([order]) if ordered else None
    found = mask(segments, causal=causal, bidirectional_mask=jnp.asarray([prefix]), order_BxL=order_BxL)
    for q in range(len(row)):
        for k in range(len(row)):
            visible = segments[q] == segments[k] != 0 and (not causal or k <= q or prefix[k])
            seen = range(order[q] + 1) if order[q] >= 0 else (*range(-order[q]), order[q])
            assert found[q, k] == (visible and (not ordered or order[k] in seen))


def attention_inputs(num_heads=4, num_kv_heads=2):
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.standard_normal((2, num_heads, 3, 6), np.float32))
    keys, values = jnp.asarray(rng.standard_normal((2, 2, num_kv_heads, 5, 6), np.float32))
    visible = jnp.asarray(rng.random((2, 1, 3, 5)) < 0.6).at[:, :, :, 0].set(True).at[0, 0, 1].set(False)
    bias = jnp.asarray(rng.standard_normal((1, num_heads, 3, 5), np.float32))
    return query, KeysValues(keys, values), visible, bias


def attend(query, keys_values, visible, bias, **options):
    options = {"scale": 0.5, **options}
    return dot_product_attention(query, keys_values, mask_Bx1xQxS=visible, bias_1xHxQxS=bias, **options)


def test_fully_masked_queries_give_zero_and_masked_keys_have_zero_gradients():
    query, keys_values, visible, bias = attention_inputs()
    assert (attend(query, keys_values, visible, bias)[0, :, 1] == 0).all()
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(query.shape, np.float32))
    loss = lambda q, kv, b: (weight * attend(q, kv, visible.at[0, 0, :, 3].set(False), b)).sum()  # noqa: E731
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(query, keys_values, bias)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert (gradients[0][0, :, 1] == 0).all()
    assert (gradients[1].keys[0, :, 3] == 0).all() and (gradients[1].values[0, :, 3] == 0).all()


@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_gradients_with_dropout_equal_those_of_a_plain_softmax_with_the_same_mask(broadcast_positions):
    query, keys_values, visible, bias = attention_inputs(num_kv_heads=4)
    key, rate = jax.random.key(3), 0.4

    def reference(query, keys_values, bias):
        scores = 0.5 * jnp.einsum("BHQK,BHSK->BHQS", query, keys_values.keys) + bias
        probabilities = jnp.where(visible, jax.nn.softmax(jnp.where(visible, scores, -1e10)), 0)[:, :, None]
        kept = dropout(probabilities, rate, key, broadcast_positions=broadcast_positions)[:, :, 0]
        return jnp.einsum("BHQS,BHSK->BHQK", kept, keys_values.values)

    total = lambda f: lambda *args: jnp.square(f(*args)).sum()  # noqa: E731
    options = dict(dropout_rate=rate, dropout_broadcast_positions=broadcast_positions, dropout_key=key)
    ours = total(lambda q, kv, b: attend(q, kv, visible, b, **options))
    gradients_of = lambda f: jax.jit(jax.grad(f, argnums=(0, 1, 2)))  # noqa: E731
    found, expected = (gradients_of(f)(query, keys_values, bias) for f in (ours, total(reference)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    assert np.abs(expected[0]).max() > 0.1


@pytest.mark.parametrize("positions", ["relative", "rope"])
def test_grouped_query_attention_is_multi_head_attention_with_repeated_kernels(positions):
    grouped = tiny.config(architecture="encoder_only", num_kv_heads=2, positions=positions)
    full = tiny.config(architecture="encoder_only", num_kv_heads=4, positions=positions)
    params = tiny.params(grouped)
    attention = params["encoder"]["layers"]["self_attention"]
    repeated = {
        name: {"kernel": attention[name]["kernel"].reshape(2, 16, 2, 6).repeat(2, axis=2).reshape(2, 16, 24)}
        for name in ("key", "value")
    }
    layers = {**params["encoder"]["layers"], "self_attention": {**attention, **repeated}}
    full_params = {**params, "encoder": {**params["encoder"], "layers": layers}}
    batch = tiny.rows("encoder", [[1, 1, 1, 1, 0]], [[3, 4, 5, 6, 0]])
    np.testing.assert_allclose(
        tiny.run(grouped, params, batch), tiny.run(full, full_params, batch), atol=1e-5, rtol=1e-5
    )
