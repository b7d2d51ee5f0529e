"""Relative position buckets and biases, and rotary embeddings."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.positions import RelativePositionBias, relative_position_bucket, rotate, rotation
from tests.models import tiny

# How many of the distances 0 to 300 are in each of T5's buckets, as computed by T5's own code with 32 buckets and a
# maximum distance of 128. Bidirectional: for keys at or before the query.
BIDIRECTIONAL = [1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 7, 9, 14, 18, 27, 210]
CAUSAL = [*([1] * 16), 3, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 10, 10, 12, 14, 188]


def buckets(relative_positions, *, bidirectional):
    return relative_position_bucket(
        jnp.asarray(relative_positions), bidirectional=bidirectional, num_buckets=32, max_distance=128
    )


def test_buckets_equal_t5s_for_all_distances_up_to_300():
    before = -np.arange(301)
    np.testing.assert_array_equal(buckets(before, bidirectional=True), np.repeat(np.arange(16), BIDIRECTIONAL))
    after = np.repeat(np.arange(16), BIDIRECTIONAL) + 16
    after[0] = 0  # the query's own position is in the first half
    np.testing.assert_array_equal(buckets(-before, bidirectional=True), after)
    np.testing.assert_array_equal(buckets(before, bidirectional=False), np.repeat(np.arange(32), CAUSAL))
    np.testing.assert_array_equal(buckets(-before, bidirectional=False), np.zeros(301))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_queries, num_keys, offset", [(5, 5, 0), (1, 7, 3), (3, 7, 2), (6, 2, 0)])
def test_the_bias_is_the_table_at_the_bucket_of_key_minus_query(bidirectional, num_queries, num_keys, offset):
    bias = RelativePositionBias(tiny.config(), bidirectional=bidirectional, rngs=nnx.Rngs(0))
    table = np.asarray(bias.embedding[...])
    relative = np.arange(num_keys)[None, :] - (np.arange(num_queries) + offset)[:, None]
    bucket = relative_position_bucket(
        jnp.asarray(relative), bidirectional=bidirectional, num_buckets=8, max_distance=12
    )
    np.testing.assert_array_equal(bias(num_queries, num_keys, offset), table[:, bucket][None])


def test_scores_with_rotary_embeddings_depend_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 1, 8), np.float32)
    query, key = np.tile(query, (1, 1, 20, 1)), np.tile(key, (1, 1, 20, 1))
    angles = rotation(tiny.config(head_dim=8, positions="rope"), jnp.arange(20)[None])
    scores = np.asarray(rotate(query, angles))[0, 0] @ np.asarray(rotate(key, angles))[0, 0].T
    for distance in range(-19, 20):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    assert np.abs(scores[0] - scores[0, 0]).max() > 0.1  # the scores are not all equal
    np.testing.assert_allclose(scores[3, 3], (query[0, 0, 0] * key[0, 0, 0]).sum(), rtol=1e-4)


def test_features_i_and_i_plus_half_rotate_by_position_times_frequency():
    # Two pairs and theta 100 give frequencies 1 and 0.1: at position 2, angles 2 and 0.2.
    x = jnp.asarray([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    rotated = rotate(x, rotation(tiny.config(head_dim=4, positions="rope"), jnp.asarray([[2]]))).ravel()
    np.testing.assert_allclose(rotated, [np.cos(2), -np.sin(0.2), np.sin(2), np.cos(0.2)], rtol=1e-6)


def test_frequencies_of_llama_3_1_by_hand():
    """Theta 100 and heads of 6 give wavelengths of 6.3, 29.2 and 135.4: below 40 / 4, between, and above 40."""
    config = tiny.config(head_dim=6, positions="rope", rope_scaling_factor=8.0, rope_original_length=40)
    short, between, long = (100 ** (-i / 3) for i in range(3))
    smooth = (40 * between / (2 * np.pi) - 1) / 3  # from 0 at a wavelength of 40 to 1 at one of 10
    expected = [short, (1 - smooth) * between / 8 + smooth * between, long / 8]
    _, sines = rotation(config, jnp.asarray([[1]]))
    np.testing.assert_allclose(np.ravel(sines), np.sin(expected), rtol=1e-6)
    assert 0.1 < smooth < 0.2
    local = rotation(dataclasses.replace(config, local_rope_theta=100.0), jnp.asarray([[1]]), is_local=True)
    np.testing.assert_allclose(np.ravel(local[1]), np.sin([short, between, long]), rtol=1e-6)
