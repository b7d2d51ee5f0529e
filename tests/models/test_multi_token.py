"""Multi-token heads: which tokens they depend on, which parameters they have, and that the Transformer is unchanged."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.multi_token import bind_heads, init_heads
from models.transformer import bind, init_params
from tests.models import tiny

NUM_HEADS = 2
SEGMENTS = [1, 1, 1, 1, 1, 2, 2, 2, 0]
L = len(SEGMENTS)
# Copies of one row. In copy j + 1, token j is changed.
ROW = np.asarray([0, 5, 6, 7, 8, 0, 9, 10, 0])
ROWS = np.stack([ROW, *np.where(np.eye(L, dtype=bool), ROW + 20, ROW)])
BATCH = tiny.rows("decoder", [SEGMENTS] * len(ROWS), ROWS)
BATCH |= {"decoder_bidirectional_mask": jnp.zeros((len(ROWS), L), bool)}

ROPE = tiny.config(architecture="decoder_only", positions="rope")
RELATIVE = tiny.config(architecture="decoder_only", positions="relative", num_layers=3)
POST_NORM = tiny.config(
    architecture="decoder_only", positions="learned", norm="layer", norm_position="post", use_bias=True
)
CASES = [
    pytest.param("independent", RELATIVE, id="independent, relative"),
    pytest.param("independent", POST_NORM, id="independent, learned, post-norm"),
    pytest.param("sequential", ROPE, id="sequential, rope"),
    pytest.param("sequential", POST_NORM, id="sequential, learned, post-norm"),
]


def head_shapes(config, kind):
    return jax.eval_shape(lambda: init_heads(config, kind, NUM_HEADS, jax.random.key(0)))


def draw(shapes, seed):
    """Random parameters, none of which is 0 or 1, so that each affects the result."""
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        noise = rng.normal(size=shape.shape).astype(np.float32)
        return 1 + 0.1 * noise if "norm" in jax.tree_util.keystr(path) else 0.3 * noise

    return jax.tree_util.tree_map_with_path(leaf, shapes)


@functools.cache
def transformer_params(config):
    return draw(jax.eval_shape(lambda: init_params(config, jax.random.key(0))), 0)


@functools.cache
def head_params(config, kind):
    return draw(head_shapes(config, kind), 1)


def last_layer_as_heads(config):
    last = jax.tree.map(lambda x: x[-1:], transformer_params(config)["decoder"]["layers"])
    return {"layers": jax.tree.map(lambda x: np.repeat(x, NUM_HEADS, axis=0), last)}


def ahead(name, by):
    """The decoder field `name`, `by` positions later in the same segment; 0 beyond the end of the segment."""
    field = np.asarray(BATCH[f"decoder_{name}"])
    shifted = np.zeros_like(field)
    for t in range(L - by):
        if SEGMENTS[t + by] == SEGMENTS[t]:
            shifted[:, t] = field[:, t + by]
    return shifted


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(config, kind, params, heads, tokens, positions, dropout_key):
    bound, transformer = bind_heads(config, kind, NUM_HEADS, heads), bind(config, params)
    further = (tokens, positions) if kind == "sequential" else ()
    states = bound(transformer, BATCH, *further, dropout_key=dropout_key)
    return states, transformer.hidden(BATCH)


def hidden(config, kind, heads=None, dropout_key=None):
    """The states [1 + heads, rows, L, D], and those of the Transformer without heads [rows, L, D]."""
    tokens, positions = (
        np.stack([ahead(name, by) for by in range(1, NUM_HEADS + 1)]) for name in ("input_tokens", "positions")
    )
    heads = head_params(config, kind) if heads is None else heads
    states = run(config, kind, transformer_params(config), heads, tokens, positions, dropout_key)
    return jax.tree.map(np.asarray, states)


@pytest.mark.parametrize(("kind", "config"), CASES)
def test_a_heads_states_depend_on_exactly_the_right_tokens(kind, config):
    """Independent heads: tokens up to the position. Sequential head k: k more. All: of the same segment only."""
    states, plain = hidden(config, kind)
    np.testing.assert_allclose(states[0], plain, rtol=1e-5, atol=1e-6)
    depends = (states[:, 1:] != states[:, :1]).any(-1).swapaxes(1, 2)  # [1 + heads, position, changed token]
    (t, j), segments = np.indices((L, L)), np.asarray(SEGMENTS)
    for k in range(NUM_HEADS + 1):
        expected = (segments[t] == segments[j]) & (j <= t + (k if kind == "sequential" else 0))
        expected = np.where(segments[t] == 0, t == j, expected)  # padding depends on itself alone
        np.testing.assert_array_equal(depends[k], expected, err_msg=f"head {k}")


@pytest.mark.parametrize("kind", ["independent", "sequential"])
def test_scan_unroll_is_of_the_heads_too(kind):
    config = dataclasses.replace(ROPE, scan_unroll=3)
    tokens = jax.ShapeDtypeStruct((NUM_HEADS, *BATCH["decoder_positions"].shape), jnp.int32)
    shapes = transformer_params(ROPE), head_shapes(config, kind), tokens, tokens, None
    loops = re.findall(r"unroll=(\d+)", str(run.trace(config, kind, *shapes).jaxpr))
    assert set(loops) == {"3"}


@pytest.mark.parametrize("config", [RELATIVE, POST_NORM], ids=["relative", "learned, post-norm"])
def test_independent_heads_with_the_last_layers_parameters_equal_the_transformer(config):
    states, _ = hidden(config, "independent", last_layer_as_heads(config))
    np.testing.assert_allclose(states[1], states[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(states[2], states[1])


@pytest.mark.parametrize(("kind", "config"), [("independent", RELATIVE), ("sequential", ROPE)])
def test_changing_one_heads_parameters_changes_only_its_states(kind, config):
    states, _ = hidden(config, kind)
    params = jax.tree.map(np.array, head_params(config, kind))
    for leaf in jax.tree.leaves(params):
        leaf[1] *= 1.5
    changed, _ = hidden(config, kind, params)
    np.testing.assert_array_equal(changed[:2], states[:2])
    assert (changed[2] != states[2]).any()


def test_a_sequential_head_projects_the_states_before_the_embedding():
    """A projection of [I, 2 I] gives norm(h) + 2 norm(e). The root mean square of (6, 8, 14 zeros) is 2.5."""
    heads = bind_heads(ROPE, "sequential", NUM_HEADS, head_params(ROPE, "sequential"))
    head = jax.tree.map(lambda x: x[0], heads.layers)
    for norm in (head.hidden_norm, head.embedding_norm):
        norm.scale[...] = jnp.ones(16)
    head.projection.kernel[...] = jnp.concatenate([jnp.eye(16), 2 * jnp.eye(16)])
    states, embedded = jnp.zeros(16).at[:2].set(jnp.asarray([6.0, 8.0])), jnp.full(16, -7.0)
    merged = head.merge(states[None, None], embedded[None, None])
    np.testing.assert_allclose(merged[0, 0], [0.4, 1.2, *[-2.0] * 14], rtol=1e-5)


@pytest.mark.parametrize("kind", ["independent", "sequential"])
def test_each_head_draws_its_own_dropout(kind):
    config = dataclasses.replace(ROPE, dropout_rate=0.3)
    heads = last_layer_as_heads(config) if kind == "independent" else head_params(config, kind)
    first, again, other = (hidden(config, kind, heads, jax.random.key(seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert all((a != b).any() for a, b in zip(first, other, strict=True))
    if kind == "independent":  # without dropout all three are equal
        assert (first[1] != first[2]).any() and (first[0] != first[1]).any()
