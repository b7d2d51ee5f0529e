"""The losses of tokens ahead, against their definitions by loops over all positions and the whole vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.future_tokens import ORDER_WINDOW, future_bag_losses, token_order_losses, tokens_ahead

TARGETS = np.array([[5, 7, 5, 6, 7, 7, 3, 0], [2, 2, 2, 2, 9, 2, 9, 4]], np.int32)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1, 1]], np.int32)


def future_of(row, place, first, last):
    """The tokens `first` to `last` ahead of a place, with their distances, within its segment."""
    ends = [j for j in range(place, TARGETS.shape[1]) if SEGMENTS[row, j] == SEGMENTS[row, place]]
    return [(j - place + 1, int(TARGETS[row, j])) for j in ends if first <= j - place + 1 <= last]


@pytest.mark.parametrize(("first", "last"), [(1, 8), (2, 3), (2, 8)])
def test_new_tokens_ahead_are_the_first_occurrences_in_the_segment(first, last):
    ahead = tokens_ahead(TARGETS, SEGMENTS, first=first, last=last)
    for row, place in np.argwhere(SEGMENTS > 0):
        expected: dict[int, int] = {}
        for distance, token in future_of(row, place, first, last):
            expected.setdefault(token, distance)
        is_new = np.asarray(ahead.is_new_BxLxW)[row, place]
        found = {int(ahead.ids_BxLxW[row, place, d]): d + first for d in np.flatnonzero(is_new)}
        assert found == expected and is_new.sum() == len(expected)


def test_the_loss_of_the_order_is_the_one_of_a_softmax_over_the_vocabulary():
    """The target of a token is W - d for its next occurrence at distance d, and minus infinity without one."""
    logits = np.random.default_rng(0).normal(size=(2, 8, 12)).astype(np.float32) * 3
    losses = token_order_losses(jnp.asarray(logits), tokens_ahead(TARGETS, SEGMENTS, first=1, last=8))
    for row, place in np.argwhere(SEGMENTS > 0):
        scores = np.full(12, -np.inf)
        for distance, token in reversed(future_of(row, place, 1, 8)):
            scores[token] = 8 - distance
        target = np.exp(scores - scores.max())
        target /= target.sum()
        log_q = logits[row, place] - np.log(np.exp(logits[row, place].astype(np.float64)).sum())
        np.testing.assert_allclose(losses[row, place], -(target * log_q).sum(), rtol=1e-5)


def test_tokens_beyond_the_window_have_no_weight_in_float32():
    """Of a row in which every token ahead is new, so that the weights fall as slowly as they can."""
    targets, segments = jnp.arange(100)[None] + 3, jnp.ones((1, 100), jnp.int32)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 100, 128)), jnp.float32)
    losses = lambda last: token_order_losses(logits, tokens_ahead(targets, segments, first=1, last=last))  # noqa: E731
    all_of_row, window = jax.jit(lambda: (losses(100), losses(ORDER_WINDOW)))()
    np.testing.assert_allclose(all_of_row, window, rtol=3e-7)  # the rounding of a sum in another order


def test_the_loss_of_the_bag_is_binary_cross_entropy_over_the_vocabulary():
    logits = np.random.default_rng(1).normal(size=(2, 8, 12)).astype(np.float32)
    losses = future_bag_losses(jnp.asarray(logits), tokens_ahead(TARGETS, SEGMENTS, first=2, last=4))
    for row, place in np.argwhere(SEGMENTS > 0):
        bag = np.zeros(12)
        bag[[token for _, token in future_of(row, place, 2, 4)]] = 1
        q = 1 / (1 + np.exp(-logits[row, place].astype(np.float64)))
        expected = -(bag * np.log(q) + (1 - bag) * np.log(1 - q)).mean()
        np.testing.assert_allclose(losses[row, place], expected, rtol=1e-5)
