"""InfoNCE, by hand and compared with an independent NumPy version; SimCSE's examples."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import simcse
from objectives import SimCSE
from objectives.losses import contrastive
from objectives.losses.row_cross_entropy import Rows
from tests.objectives.helpers import random_windows, sequence, vocab

# Jitted, because compiling their operations one by one takes seconds.
info_nce = jax.jit(contrastive.info_nce, static_argnames="temperature")
alignment, uniformity = map(jax.jit, (contrastive.alignment, contrastive.uniformity))
VOCAB = vocab()
EAST_NORTH = jnp.asarray([[1.0, 0.0], [0.0, 2.0]])  # lengths have no effect
E = math.e


def all_rows(n):
    return Rows(jnp.ones(n), jnp.zeros(n, jnp.int32))


def points(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_info_nce_by_hand():
    sums = info_nce(EAST_NORTH, EAST_NORTH, temperature=1.0, rows=all_rows(2))
    # Cosines 1 and 0 each: e / (e + 1).
    assert float(sums.loss_sum) == pytest.approx(2 * math.log((E + 1) / E), rel=1e-6)
    assert (float(sums.weight_sum), float(sums.correct_sum)) == (2.0, 2.0)
    half = info_nce(EAST_NORTH, EAST_NORTH, temperature=0.5, rows=all_rows(2))
    assert float(half.loss_sum) == pytest.approx(2 * math.log((E**2 + 1) / E**2), rel=1e-6)
    exchanged = info_nce(EAST_NORTH, EAST_NORTH[::-1], temperature=1.0, rows=all_rows(2))
    assert float(exchanged.loss_sum) == pytest.approx(2 * math.log(E + 1), rel=1e-6)
    assert float(exchanged.correct_sum) == 0.0


def nll(logits):
    """The negative log-likelihood of the diagonal, in float64."""
    logits = np.asarray(logits, np.float64)
    return sum(math.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits))


def test_against_numpy():
    a, b = points(2, 5, 4)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    sums = info_nce(a, b, temperature=0.2, rows=all_rows(5))
    assert float(sums.loss_sum) == pytest.approx(nll(unit[0] @ unit[1].T / 0.2), rel=1e-5)
    assert float(sums.correct_sum) == ((unit[0] @ unit[1].T).argmax(axis=1) == range(5)).sum()
    assert float(alignment(a, b, jnp.ones(5))) == pytest.approx(np.square(unit[0] - unit[1]).sum(), rel=1e-5)
    squared_distances = [np.square(unit[0][i] - unit[0][j]).sum() for i in range(5) for j in range(5) if i != j]
    expected = math.log(np.exp(-2 * np.asarray(squared_distances)).mean())
    assert float(uniformity(a, jnp.ones(5))) == pytest.approx(expected, rel=1e-5)


def test_rows_without_weight_are_neither_scored_nor_negatives():
    a, b = points(2, 5, 4)
    some = Rows(jnp.asarray([1.0, 1, 0, 1, 0]), jnp.zeros(5, jnp.int32))
    kept = [0, 1, 3]
    assert float(info_nce(a, b, temperature=0.2, rows=some).loss_sum) == pytest.approx(
        float(info_nce(a[kept,], b[kept,], temperature=0.2, rows=all_rows(3)).loss_sum), rel=1e-5
    )
    assert float(uniformity(a, some.weights_B)) == pytest.approx(float(uniformity(a[kept,], jnp.ones(3))), rel=1e-5)


def test_gradients_are_finite_for_equal_rows():
    def all_losses(x):
        ones = jnp.ones(len(x))
        nce = contrastive.info_nce(x, x, temperature=0.05, rows=all_rows(len(x)))
        return nce.loss_sum + contrastive.alignment(x, x, ones) + contrastive.uniformity(x, ones)

    assert jnp.isfinite(jax.jit(jax.grad(all_losses))(jnp.asarray([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))).all()


def examples(variant):
    objective = SimCSE(**{name: value for name, value in simcse.VARIANTS[variant].items() if name != "name"})
    windows = random_windows(np.random.default_rng(0), [5, 30, 1])
    return windows, objective.corrupt(windows.tokens, windows.lengths, windows.keys, VOCAB)


def test_without_mlm_nothing_is_masked_and_nothing_is_scored():
    windows, made = examples("simcse")
    for e, length in enumerate(windows.lengths):
        assert sequence(made.inputs, e) == [VOCAB.cls, *windows.tokens[e, :length].tolist(), VOCAB.sep]
    np.testing.assert_array_equal(made.inputs.tokens, made.targets)
    assert not made.selected.any()


def test_with_mlm_targets_are_the_whole_text():
    windows, made = examples("with_mlm")
    assert made.selected.any(axis=1).all() and (made.inputs.tokens != made.targets).any()
    for e, length in enumerate(windows.lengths):
        assert made.targets[e, 1 : length + 1].tolist() == windows.tokens[e, :length].tolist()
