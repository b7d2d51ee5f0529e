import jax.numpy as jnp
import numpy as np
import pytest

from objectives.losses.row_cross_entropy import Rows, class_cross_entropy, f1_counts, scored_rows

ROWS = Rows(jnp.ones(4), jnp.asarray([0, 1, 1, 0]))
LOGITS = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]]))


def test_rows_without_text_or_label_are_not_scored():
    batch = {
        "encoder_segment_ids": jnp.asarray([[1, 0], [0, 0], [1, 1], [1, 0]]),
        "example_source": jnp.asarray([[3, 0], [0, 0], [1, 1], [2, 0]]),
    }
    assert scored_rows(batch).weights_B.tolist() == [1.0, 0.0, 1.0, 1.0]
    rows = scored_rows(batch | {"sentence_labels": jnp.asarray([0, 0, -1, 1])})
    assert rows.weights_B.tolist() == [1.0, 0.0, 0.0, 1.0] and rows.group_ids_B.tolist() == [3, 0, 1, 2]


def test_class_cross_entropy_by_hand():
    sums = class_cross_entropy(LOGITS, jnp.asarray([0, 2, 0, 1]), ROWS, num_groups=2)
    # Probabilities of the labels: 1/2, 4/5, 1/5, 3/10.
    assert float(sums.loss_sum) == pytest.approx(-np.log(0.5 * 0.8 * 0.2 * 0.3), rel=1e-6)
    assert (float(sums.weight_sum), float(sums.correct_sum)) == (4.0, 2.0)
    reported = sums.reported()
    np.testing.assert_allclose(reported["loss_sum_by_group"], [-np.log(0.5 * 0.3), -np.log(0.8 * 0.2)], rtol=1e-6)
    assert reported["weight_sum_by_group"].tolist() == [2.0, 2.0]
    assert reported["correct_sum_by_group"].tolist() == [1.0, 1.0]


def test_rows_without_weight_are_not_scored():
    rows = Rows(jnp.asarray([1.0, 0.0, 1.0, 0.0]), jnp.zeros(4, jnp.int32))
    logits = LOGITS.at[1].set(-jnp.inf)  # such as a row of padding, whose values do not matter
    sums = class_cross_entropy(logits, jnp.asarray([0, 2, 0, -1]), rows, num_groups=1)
    assert float(sums.loss_sum) == pytest.approx(-np.log(0.5 * 0.2), rel=1e-6)
    assert (float(sums.weight_sum), float(sums.correct_sum)) == (2.0, 1.0)
    numerators, denominators = f1_counts(LOGITS, jnp.asarray([0, 2, 0, 1]), rows)
    assert numerators.tolist() == [2.0, 0.0, 0.0] and denominators.tolist() == [3.0, 1.0, 0.0]


def test_f1_by_hand():
    # Predictions 0, 2, 1, 0 and labels 0, 2, 0, 1: class 0 has TP 1, FP 1, FN 1; class 1 FP 1, FN 1; class 2 TP 1.
    numerators, denominators = f1_counts(LOGITS, jnp.asarray([0, 2, 0, 1]), ROWS)
    assert numerators.tolist() == [2.0, 0.0, 2.0] and denominators.tolist() == [4.0, 2.0, 2.0]
    # F1 is 1/2, 0, 1.
    assert (numerators / denominators).mean() == 0.5
