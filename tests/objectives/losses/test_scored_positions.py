"""The scored positions of rows: which they are, and what becomes of those that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np

from objectives.losses.cross_entropy import ScoredTokens, at_positions, scored_at, scored_positions

WEIGHTS = jnp.asarray([[0, 1, 0, 0, 1.0], [0, 0, 0.5, 0, 0], [0, 0, 0, 0, 0]])


def test_positions_are_distinct_and_begin_with_the_scored_ones():
    positions = np.asarray(scored_positions(WEIGHTS, 3))
    assert positions[0, :2].tolist() == [1, 4] and positions[1, 0] == 2
    assert [len(set(row)) for row in positions.tolist()] == [3, 3, 3]
    assert np.take_along_axis(np.asarray(WEIGHTS), positions, 1).sum(axis=1).tolist() == [2, 0.5, 0]


def test_entries_and_their_gradient():
    x = jnp.arange(3 * 5 * 2.0).reshape(3, 5, 2)
    positions = scored_positions(WEIGHTS, 2)
    found, backward = jax.vjp(lambda x: at_positions(x, positions), x)
    np.testing.assert_array_equal(found, np.take_along_axis(np.asarray(x), np.asarray(positions)[..., None], 1))
    (x_bar,) = backward(jnp.ones_like(found))
    expected = np.zeros((3, 5, 2))
    np.put_along_axis(expected, np.asarray(positions)[..., None], 1, axis=1)
    np.testing.assert_array_equal(x_bar, expected)


def test_a_row_with_more_scored_positions_has_weights_of_nan_and_other_rows_keep_theirs():
    scored = ScoredTokens(jnp.arange(15).reshape(3, 5), WEIGHTS, jnp.zeros((3, 5), int))
    weights = scored_at(scored, scored_positions(WEIGHTS, 1)).weights_BxL
    assert jnp.isnan(weights[0]).all() and weights[1:].tolist() == [[0.5], [0.0]]
    fitting = scored_at(scored, scored_positions(WEIGHTS, 2))
    assert fitting.weights_BxL.tolist() == [[1, 1], [0.5, 0], [0, 0]]
    assert fitting.targets_BxL[0].tolist() == [1, 4]
