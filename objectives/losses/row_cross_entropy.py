"""Losses with one prediction per row, such as the row's class. Pure functions that return sums."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from objectives.losses.cross_entropy import target_side


class Rows(NamedTuple):
    """The rows of a batch that are scored."""

    weights_B: jax.Array  # float32: 1; 0 for a row without text, as the last batch of an evaluation may have, or label
    group_ids_B: jax.Array  # int32, in 0, ..., num_groups - 1: the group whose sums include the row


def scored_rows(batch: Mapping[str, jax.Array]) -> Rows:
    """Returns the rows of a batch (contract/batch.py), with `example_source` as groups."""
    is_scored_B = batch[f"{target_side(batch)}_segment_ids"][:, 0] > 0
    if "sentence_labels" in batch:
        is_scored_B &= batch["sentence_labels"] >= 0
    return Rows(is_scored_B.astype(jnp.float32), batch["example_source"][:, 0])


class RowSums(NamedTuple):
    """Sums over rows, float32. Add them over batches, then divide by weight_sum."""

    loss_sum: jax.Array  # [] nats
    weight_sum: jax.Array  # [] rows
    correct_sum: jax.Array  # [] rows whose most likely class is the label
    loss_sum_by_group: jax.Array  # [num_groups]
    weight_sum_by_group: jax.Array  # [num_groups]
    correct_sum_by_group: jax.Array  # [num_groups]

    def reported(self) -> dict[str, jax.Array]:
        """Returns the sums by name."""
        return self._asdict()


def class_cross_entropy(logits_BxC: jax.Array, labels_B: jax.Array, rows: Rows, *, num_groups: int) -> RowSums:
    """Returns the sums of the cross-entropy of labels, int [B] in 0, ..., C - 1, computed in float32.

    Rows without weight may have any label, such as -1. logits: float [B, C].
    """
    logits_BxC = logits_BxC.astype(jnp.float32)
    target_logit_B = jnp.take_along_axis(logits_BxC, jnp.maximum(labels_B, 0)[:, None], axis=1)[:, 0]
    nll_B = jnp.where(rows.weights_B > 0, jax.nn.logsumexp(logits_BxC, axis=1) - target_logit_B, 0) * rows.weights_B
    correct_B = (logits_BxC.argmax(axis=1) == labels_B) * rows.weights_B

    def by_group(values_B):
        return jax.ops.segment_sum(values_B, rows.group_ids_B, num_segments=num_groups)

    return RowSums(
        loss_sum=nll_B.sum(),
        weight_sum=rows.weights_B.sum(),
        correct_sum=correct_B.sum(),
        loss_sum_by_group=by_group(nll_B),
        weight_sum_by_group=by_group(rows.weights_B),
        correct_sum_by_group=by_group(correct_B),
    )


def f1_counts(logits_BxC: jax.Array, labels_B: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Returns 2 TP and 2 TP + FP + FN of each class (true and false positives and negatives), float32 [C] each.

    Summed over all batches, their ratio is the F1 of each class. Macro F1 is the mean of F1 over the classes whose
    second count is not 0: the classes that occur as a label or as a prediction, as in scikit-learn's f1_score.
    """
    num_classes = logits_BxC.shape[1]
    predicted_BxC, true_BxC = (
        jax.nn.one_hot(classes_B, num_classes, dtype=jnp.float32) * rows.weights_B[:, None]
        for classes_B in (logits_BxC.argmax(axis=1), labels_B)
    )
    true_positives_C = (predicted_BxC * true_BxC).sum(axis=0)
    return 2 * true_positives_C, predicted_BxC.sum(axis=0) + true_BxC.sum(axis=0)
