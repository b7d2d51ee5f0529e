"""Dropout of whole models: which elements share a draw, at every place where a model drops elements."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import architectures
from configs.base import get_config
from models import attention, kernels, layers
from models.config import ModelConfig
from models.transformer import apply, bind
from tests.models import tiny

BATCH = tiny.rows("encoder", [[1, 1, 1, 1, 1]], [[3] * 5]) | tiny.rows("decoder", [[1, 1, 1, 1, 1]], [[3] * 5])
BATCH["decoder_bidirectional_mask"] = jnp.zeros((1, 5), bool)
SHAPES = {
    "T5 v1.1": (architectures.T5_V1_1["base"], False),
    "BERT": (architectures.BERT["base"], True),
    "BART": (architectures.BART["base"], True),
    "GPT-2": (architectures.GPT2["small"], True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_draws_of_a_published_model_are_per_element_except_in_t5(name, monkeypatch):
    """The dropout masks of attention are [B, G, R, Q or 1, S], all others [B, L or 1, features]."""
    shape, per_element = SHAPES[name]
    fields = get_config().model.to_dict() | shape
    fields |= {field: tiny.FIELDS[field] for field in ("num_layers", "d_model", "num_heads", "num_kv_heads", "d_ff")}
    sizes = dict(head_dim=6, embedding_size=0, dropout_rate=0.1, vocab_size=50, max_length=5)
    config = ModelConfig(**fields | sizes, dtype="float32")
    drawn, draw = [], layers.draw_mask
    for module in (layers, attention):
        monkeypatch.setattr(module, "draw_mask", lambda key, shape: drawn.append(shape) or draw(key, shape))
    jax.eval_shape(lambda key: apply(config, tiny.params(config), BATCH, dropout_key=key), jax.random.key(0))
    stacks = config.has_encoder + config.has_decoder
    # A stack's embeddings, attention's probabilities and output, both sides of the feed-forward block, the final norm.
    least = stacks * (5 + (config.norm_position == "pre"))
    assert len(drawn) >= least + 2 * (stacks == 2)
    assert {draw[-2] for draw in drawn} == ({5} if per_element else {1})


def test_without_attention_dropout_all_but_the_probabilities_are_dropped_with_the_same_draws(monkeypatch):
    """Of self-attention and cross-attention. The other model's attention does not get its key."""
    key = jax.random.key(0)
    with_it = tiny.config(dropout_rate=0.3, dropout_broadcast_positions=False)
    without = dataclasses.replace(with_it, attention_dropout=False)
    states = [bind(config, tiny.params(config)).hidden(BATCH, dropout_key=key) for config in (with_it, without)]
    attend = attention.dot_product_attention
    monkeypatch.setattr(
        kernels, "dot_product_attention", lambda *args, dropout_key, **options: attend(*args, **options)
    )
    expected = bind(with_it, tiny.params(with_it)).hidden(BATCH, dropout_key=key)
    np.testing.assert_array_equal(states[1], expected)
    assert np.abs(states[0] - expected).max() > 0.1


def random_words(jaxpr):
    """The words that a program draws, those of all iterations of its scans and of its inner programs."""
    total = 0
    for equation in jaxpr.eqns:
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
        words = [random_words(getattr(x, "jaxpr", x)) for x in inner if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
        words += [v.aval.size for v in equation.outvars if equation.primitive.name == "random_bits"]
        total += sum(words) * (equation.params["length"] if equation.primitive.name == "scan" else 1)
    return total


@pytest.mark.parametrize(("attention_dropout", "words"), [(True, 1104), (False, 904)])
def test_a_step_draws_a_word_for_each_line_and_column_of_a_mask(attention_dropout, words):
    """4 rows of 5 tokens. A word for each entry would be 4,320 words."""
    shape = dict(architecture="encoder_only", positions="none", dropout_broadcast_positions=False, dropout_rate=0.1)
    # 2 layers, 4 heads, 16 features, feed-forward blocks of 20
    config = tiny.config(**shape, attention_dropout=attention_dropout)
    batch = tiny.rows("encoder", [[1] * 5] * 4, [[3] * 5] * 4)
    loss = lambda params, key: bind(config, params).hidden(batch, dropout_key=key).sum()  # noqa: E731
    step = jax.make_jaxpr(jax.grad(loss))(tiny.params(config), jax.random.key(0))
    # Embeddings and final norm; probabilities, their output, both sides of the feed-forward block, of which the
    # backward pass computes one again.
    outside, layer = 2 * (5 + 16), attention_dropout * (4 * 5 + 5) + (5 + 16) + 2 * (5 + 20) + (5 + 16)
    assert random_words(step.jaxpr) == 4 * (outside + 2 * layer) == words


@pytest.fixture(scope="module")
def dropped():
    """Entries of masks, 1 if dropped, minus the rate of 0.1: float64 [24 keys, 4 rows, 128 lines, 128 columns]."""
    kept = jax.jit(lambda key: layers.draw_mask(key, (4, 128, 128)).kept(0.1))
    return ~np.stack([kept(key) for key in jax.random.split(jax.random.key(5), 24)]) - 0.1


def deviations(products, power):
    """The mean of products of `power` independent entries, divided by its standard deviation, which is 0 on average."""
    return products.mean() * np.sqrt(products.size) / 0.09 ** (power / 2)


def test_entries_of_masks_are_dropped_at_the_rate_and_independently(dropped):
    assert abs(deviations(dropped, 1)) < 4
    # Of keys, rows, lines and columns.
    for shift in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 5, 3), (0, 0, 64, 64)]:
        assert abs(deviations(dropped * np.roll(dropped, shift, range(4)), 2)) < 4, shift


def test_the_corners_of_a_rectangle_are_independent(dropped):
    """The words of the corners have an exclusive or of 0: without a hash, three nearly determine the fourth."""
    for size in (1, 2, 16, 64):
        sides = dropped * np.roll(dropped, size, 2)
        assert abs(deviations(sides * np.roll(sides, size, 3), 4)) < 4, size
    words = layers.draw_mask(jax.random.key(0), (4, 128, 128))
    tabulated = ((words.lines ^ words.columns) < 0.1 * 2**32) - 0.1
    sides = tabulated * np.roll(tabulated, 1, 1)
    assert deviations(sides * np.roll(sides, 1, 2), 4) > 10


@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_equal_tokens_get_equal_states_only_where_positions_share_a_draw(broadcast_positions):
    config = tiny.config(
        architecture="encoder_only", positions="none", dropout_rate=0.3, dropout_broadcast_positions=broadcast_positions
    )
    run = jax.jit(lambda key: bind(config, tiny.params(config)).hidden(BATCH, dropout_key=key))
    states = np.asarray(run(jax.random.key(0))[0])
    difference = np.abs(states[1:] - states[:1]).max(axis=1)
    assert (difference < 1e-5).all() if broadcast_positions else (difference > 0.1).all()
