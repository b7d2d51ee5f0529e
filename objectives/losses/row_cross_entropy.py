"""Losses of what is said of a whole row, its class for one: pure functions that return sums."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RowSums(NamedTuple):
    """Sums over rows, float32 []. Add them over batches, then divide the others by weight_sum."""

    loss_sum: jax.Array  # nats
    weight_sum: jax.Array  # rows
    correct_sum: jax.Array  # rows whose likeliest answer is the right one

    def by_denoiser(self) -> dict[str, jax.Array]:
        """The sums and the same by source, [1]: an objective on rows is all that its run has."""
        sums = self._asdict()
        return sums | {f"{name}_by_denoiser": value[None] for name, value in sums.items()}


def class_cross_entropy(logits_BxC: jax.Array, labels_B: jax.Array) -> RowSums:
    """Cross-entropy of labels, int [B], in 0..C-1, in float32."""
    logits_BxC = logits_BxC.astype(jnp.float32)
    target_logit_B = jnp.take_along_axis(logits_BxC, labels_B[:, None], axis=1)[:, 0]
    return RowSums(
        loss_sum=(jax.nn.logsumexp(logits_BxC, axis=1) - target_logit_B).sum(),
        weight_sum=jnp.asarray(len(labels_B), jnp.float32),
        correct_sum=(logits_BxC.argmax(axis=1) == labels_B).sum(dtype=jnp.float32),
    )


def f1_counts(logits_BxC: jax.Array, labels_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each class 2 TP, and 2 TP + FP + FN, float32 [C] each: their ratio, of sums over all batches, is its F1.

    Macro F1 is the mean over the classes that are a label or a prediction somewhere, as scikit-learn's f1_score has it:
    those whose second count is not 0.
    """
    num_classes = logits_BxC.shape[1]
    predicted_BxC, true_BxC = (
        jax.nn.one_hot(classes_B, num_classes, dtype=jnp.float32) for classes_B in (logits_BxC.argmax(axis=1), labels_B)
    )
    hits_C = (predicted_BxC * true_BxC).sum(axis=0)
    return 2 * hits_C, predicted_BxC.sum(axis=0) + true_BxC.sum(axis=0)
