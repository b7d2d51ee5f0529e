import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.cross_entropy import (
    LossOptions,
    ScoredTokens,
    at_positions,
    cross_entropy,
    scored_at,
    scored_positions,
)

jitted = jax.jit(cross_entropy, static_argnames="options")


def logits_of(probabilities, shift=0.0):
    return jnp.log(jnp.asarray([probabilities])) + shift


PROBABILITIES = [[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]
SCORED = ScoredTokens(
    targets_BxL=jnp.asarray([[0, 1, 2, 0]]),
    weights_BxL=jnp.asarray([[1.0, 1.0, 1.0, 0.0]]),
    group_ids_BxL=jnp.asarray([[0, 1, 1, 1]]),
)


def loss(shift=0.0, z_loss=0.0, label_smoothing=0.0):
    return jitted(logits_of(PROBABILITIES, shift), SCORED, LossOptions(3, z_loss, label_smoothing))


def test_by_hand():
    """Targets have probabilities .7, .9, .25: -(ln .7 + ln .9 + ln .25) / 3 = 0.61611. The fourth is not scored."""
    sums = loss()
    assert float(sums.weight_sum) == 3
    assert float(sums.loss_sum / sums.weight_sum) == pytest.approx(0.61611, abs=5e-6)
    assert float(sums.minimized_sum) == pytest.approx(float(sums.loss_sum))
    assert float(sums.correct_sum) == 2  # 0.25 is less than 0.5
    np.testing.assert_allclose(sums.loss_sum_by_group, [-math.log(0.7), -math.log(0.9 * 0.25), 0], rtol=1e-5)
    assert sums.weight_sum_by_group.tolist() == [1, 2, 0]
    assert sums.correct_sum_by_group.tolist() == [1, 1, 0]


def test_huge_and_half_precision_logits_stay_finite():
    logits = jnp.asarray([[[3e4, -3e4, 0.0]]], jnp.bfloat16)
    scored = ScoredTokens(jnp.asarray([[0]]), jnp.ones((1, 1)), jnp.zeros((1, 1), jnp.int32))
    sums = jitted(logits, scored, LossOptions(num_groups=1, z_loss=0.0, label_smoothing=0.0))
    assert sums.loss_sum.dtype == jnp.float32 and float(sums.loss_sum) == 0


def test_unscored_positions_have_no_gradient():
    def minimized(logits):
        return cross_entropy(logits, SCORED, LossOptions(3, z_loss=1e-2, label_smoothing=0.1)).minimized_sum

    grads = jax.jit(jax.grad(minimized))(logits_of(PROBABILITIES))
    assert (np.asarray(grads[0, 3]) == 0).all() and (np.abs(np.asarray(grads[0, :3])).sum(axis=1) > 0).all()


def random_example(dtype=np.float32):
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((2, 5, 7))).astype(dtype)
    scored = ScoredTokens(rng.integers(0, 7, (2, 5)), rng.random((2, 5)).astype(np.float32), rng.integers(0, 2, (2, 5)))
    return logits, scored


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (1e-2, 0.0), (0.0, 0.2), (1e-2, 0.2)])
@pytest.mark.parametrize("name", ["minimized_sum", "loss_sum"])
def test_values_and_gradients_against_float64(name, z_loss, smoothing):
    """The gradient is written by hand, for z-loss, label smoothing and weights, of both sums."""
    logits, scored = random_example()
    options = LossOptions(2, z_loss, smoothing)
    chosen = lambda logits: getattr(cross_entropy(logits, scored, options), name)  # noqa: E731
    value, found = jax.jit(jax.value_and_grad(chosen))(logits)

    x, weights = logits.astype(np.float64), scored.weights_BxL.astype(np.float64)
    log_z = np.log(np.exp(x).sum(-1))
    target = np.eye(7)[scored.targets_BxL]
    smoothing, z_loss = (smoothing, z_loss) if name == "minimized_sum" else (0.0, 0.0)
    wanted = (1 - smoothing) * target + smoothing / 7
    expected = (weights * (log_z - (wanted * x).sum(-1) + z_loss * log_z**2)).sum()
    gradient = (1 + 2 * z_loss * log_z)[..., None] * np.exp(x - log_z[..., None]) - wanted
    assert float(value) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(found, weights[..., None] * gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [1e4, -1e5])
def test_large_logits_keep_the_precision_of_values_and_gradients(offset):
    logits, scored = random_example()
    logits = np.round(64 * logits) / 64  # the sum with the offset is exact
    minimized = lambda logits: cross_entropy(logits, scored, LossOptions(2, 0.0, 0.1)).minimized_sum  # noqa: E731
    of = jax.jit(jax.value_and_grad(minimized))
    value, gradient = of(logits + np.float32(offset))
    expected, expected_gradient = of(logits)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_accuracy_counts_the_argmax_the_first_of_equal_logits_and_no_nan():
    logits, scored = random_example()
    logits = np.round(logits / 3)  # many rows have several largest entries
    logits[0, 0], logits[0, 1, 3] = 0, np.nan
    assert ((logits == logits.max(-1, keepdims=True)).sum(-1) > 1).sum() > 1
    for first in (scored.targets_BxL, logits.argmax(-1)):
        for shift in range(7):
            targets = (first + shift) % 7
            found = jitted(logits, scored._replace(targets_BxL=targets), LossOptions(2, 0.0, 0.0)).correct_sum
            is_correct = (logits.argmax(-1) == targets) & ~np.isnan(logits).any(-1)
            assert float(found) == pytest.approx(float((is_correct * scored.weights_BxL).sum()), abs=1e-6)


# The scored positions of rows

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
