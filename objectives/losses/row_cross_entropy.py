"""Losses with one prediction per row, such as the row's class. Pure functions that return sums."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RowSums(NamedTuple):
    """Sums over rows, float32 []. Add them over batches, then divide by weight_sum."""

    loss_sum: jax.Array  # nats
    weight_sum: jax.Array  # rows that have a label
    correct_sum: jax.Array  # rows whose most likely class is the label

    def reported(self) -> dict[str, jax.Array]:
        """Returns the sums by name, and the same sums by denoiser, [1].

        An objective that is scored by rows is never a row of a mixture, so a run has one denoiser.
        """
        sums = self._asdict()
        return sums | {f"{name}_by_denoiser": value[None] for name, value in sums.items()}


def class_cross_entropy(logits_BxC: jax.Array, labels_B: jax.Array) -> RowSums:
    """Returns the sums of the cross-entropy of labels, int [B] in -1, ..., C - 1, computed in float32.

    Rows with the label -1 have no class, and no sum counts them. logits: float [B, C].
    """
    logits_BxC, has_label_B = logits_BxC.astype(jnp.float32), labels_B >= 0
    target_logit_B = jnp.take_along_axis(logits_BxC, jnp.maximum(labels_B, 0)[:, None], axis=1)[:, 0]
    loss_B = jax.nn.logsumexp(logits_BxC, axis=1) - target_logit_B
    return RowSums(
        loss_sum=jnp.where(has_label_B, loss_B, 0.0).sum(),
        weight_sum=has_label_B.sum(dtype=jnp.float32),
        correct_sum=(logits_BxC.argmax(axis=1) == labels_B).sum(dtype=jnp.float32),
    )


def f1_counts(logits_BxC: jax.Array, labels_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns 2 TP and 2 TP + FP + FN of each class (true and false positives and negatives), float32 [C] each.

    Summed over all batches, their ratio is the F1 of each class. Macro F1 is the mean of F1 over the classes whose
    second count is not 0: the classes that occur as a label or as a prediction, as in scikit-learn's f1_score.
    """
    num_classes = logits_BxC.shape[1]
    predicted_BxC, true_BxC = (
        jax.nn.one_hot(classes_B, num_classes, dtype=jnp.float32) for classes_B in (logits_BxC.argmax(axis=1), labels_B)
    )
    true_positives_C = (predicted_BxC * true_BxC).sum(axis=0)
    return 2 * true_positives_C, predicted_BxC.sum(axis=0) + true_BxC.sum(axis=0)
