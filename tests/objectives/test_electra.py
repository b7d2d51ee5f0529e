"""ELECTRA: which tokens are selected, how the generator's samples replace them, and the discriminator's loss."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.replaced_tokens import Texts, replace_tokens, replaced_token_loss, sample_tokens, sampling_keys


def test_samples_replace_the_original_tokens_and_equal_samples_are_not_replacements():
    tokens = jnp.asarray([[90, 11, 12, 13, 91, 0], [90, 21, 22, 91, 0, 0]])
    positions = jnp.asarray([[3, 1, 0], [2, 5, 4]])
    samples = jnp.asarray([[77, 11, 66], [55, 44, 33]])  # 66, 44 and 33 are for positions that are not scored
    inputs, replaced = replace_tokens(tokens, samples, positions, jnp.asarray([[1, 1, 0], [1, 0, 0]]) > 0)
    assert inputs.tolist() == [[90, 11, 12, 77, 91, 0], [90, 21, 55, 91, 0, 0]]
    assert replaced.tolist() == [[False, False, False, True, False, False], [False, False, True, False, False, False]]


def test_samples_follow_the_softmax_at_a_temperature_and_have_no_gradient():
    logits = jnp.log(jnp.asarray([0.5, 0.3, 0.2]))
    for temperature, expected in ((1.0, [0.5, 0.3, 0.2]), (0.5, [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38])):
        keys = jax.random.split(jax.random.key(0), (200, 100))
        samples = sample_tokens(jnp.broadcast_to(logits, (200, 100, 3)), keys, temperature)
        assert samples.dtype == jnp.int32
        np.testing.assert_allclose(np.bincount(samples.ravel(), minlength=3) / 20000, expected, atol=0.015)
    assert (sample_tokens(jnp.broadcast_to(logits, (200, 100, 3)), keys, 1e-3) == 0).all()

    def through_samples(logits):
        samples = sample_tokens(logits[None, None], keys[:1, :1], 1.0)
        return jnp.sum(jnp.asarray([1.0, 2.0, 3.0])[samples] * logits.sum() ** 0)

    assert not jax.grad(through_samples)(logits).any()


def random_texts(rows, length, seed=0):
    generator = np.random.default_rng(seed)
    tokens, inputs = jnp.asarray(generator.integers(3, 259, (2, rows, length)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    return Texts(tokens, inputs, jnp.ones_like(tokens), positions)


def key_data(texts, positions, key=0):
    return np.asarray(jax.random.key_data(sampling_keys(jax.random.key(key), texts, jnp.asarray(positions))))


def test_sampling_keys_depend_on_the_example_and_not_on_its_row_or_on_the_other_examples():
    texts, positions = random_texts(6, 8), np.tile([0, 3, 7], (6, 1))
    together = key_data(texts, positions)
    assert len(np.unique(together.reshape(18, -1), axis=0)) == 18  # different examples and positions: different keys
    moved = key_data(Texts(*(field[4:5] for field in texts)), positions[:1])
    np.testing.assert_array_equal(moved, together[4:5])
    assert (key_data(texts, positions, key=1) != together).any(axis=2).all()
    # Rows 0 and 1 in one row, after padding: segments 1 and 2.
    packed = Texts(*(jnp.concatenate([jnp.zeros((1, 2), jnp.int32), field[:1], field[1:2]], axis=1) for field in texts))
    packed = packed._replace(segment_ids=jnp.asarray([[0] * 2 + [1] * 8 + [2] * 8]))
    np.testing.assert_array_equal(
        key_data(packed, [[2, 5, 9, 10, 13, 17]])[0], np.concatenate([together[0], together[1]])
    )


@pytest.mark.parametrize("field", ["tokens", "inputs"])
def test_one_other_token_or_mask_changes_all_sampling_keys_of_an_example(field):
    texts, positions = random_texts(1, 8), [[0, 3, 7]]
    changed = texts._replace(**{field: getattr(texts, field).at[0, 5].add(1)})
    assert (key_data(changed, positions) != key_data(texts, positions)).any(axis=2).all()
    swapped = texts._replace(**{field: getattr(texts, field)[:, ::-1]})
    assert (key_data(swapped, positions) != key_data(texts, positions)).any(axis=2).all()


def test_replaced_token_loss_is_binary_cross_entropy_of_the_scored_positions():
    """Predicted probabilities of a replacement 3/4, 3/4, 1/4, 1/4, and 3/4 for padding; the first and third token are
    replaced."""
    log_odds = math.log(3)
    logits = jnp.asarray([[log_odds, log_odds, -log_odds, -log_odds, log_odds]])
    replaced = jnp.asarray([[True, False, True, False, True]])
    sums = replaced_token_loss(logits, replaced, jnp.asarray([[1.0, 1, 1, 1, 0]]))
    assert float(sums.loss_sum) == pytest.approx(-math.log(3 / 4 * 1 / 4 * 1 / 4 * 3 / 4), rel=1e-6)
    counts = sums._asdict()
    del counts["loss_sum"]
    assert {name: float(value) for name, value in counts.items()} == {
        "weight_sum": 4,
        "correct_sum": 2,  # the first and the fourth token
        "replaced_sum": 2,
        "predicted_sum": 2,  # the first two tokens
        "true_positive_sum": 1,
    }
