import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.row_cross_entropy import class_cross_entropy, f1_counts

LOGITS = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]]))


def test_rows_with_label_minus_1_are_not_counted():
    few, all_rows = (class_cross_entropy(LOGITS[:n], jnp.asarray([0, 2, -1, -1][:n])) for n in (2, 4))
    assert few.reported() == all_rows.reported() and all_rows.weight_sum == 2


def test_class_cross_entropy_by_hand():
    sums = class_cross_entropy(LOGITS, jnp.asarray([0, 2, 0, 1]))
    # Probabilities of the labels: 1/2, 4/5, 1/5, 3/10.
    assert float(sums.loss_sum) == pytest.approx(-np.log(0.5 * 0.8 * 0.2 * 0.3), rel=1e-6)
    assert (float(sums.weight_sum), float(sums.correct_sum)) == (4.0, 2.0)
    reported = sums.reported()
    for name in ("loss_sum", "weight_sum", "correct_sum"):
        assert reported[f"{name}_by_denoiser"].tolist() == [reported[name]]


def test_f1_by_hand():
    # Predictions 0, 2, 1, 0 and labels 0, 2, 0, 1: class 0 has TP 1, FP 1, FN 1; class 1 FP 1, FN 1; class 2 TP 1.
    numerators, denominators = f1_counts(LOGITS, jnp.asarray([0, 2, 0, 1]))
    assert numerators.tolist() == [2.0, 0.0, 2.0] and denominators.tolist() == [4.0, 2.0, 2.0]
    # F1 is 1/2, 0, 1.
    assert (numerators / denominators).mean() == 0.5


def test_a_class_that_is_never_a_label_or_a_prediction_has_no_counts():
    numerators, denominators = f1_counts(jnp.asarray([[2.0, 1.0, 0.0]]), jnp.asarray([0]))
    assert numerators.tolist() == [2.0, 0.0, 0.0] and denominators.tolist() == [2.0, 0.0, 0.0]
