"""Losses on logits: pure functions that return sums and denominators, so that the one division comes last."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LossSums(NamedTuple):
    """Sums over scored tokens; float32. Add them over microbatches and devices, then divide."""

    objective: jax.Array  # [] what is minimised: cross-entropy with label smoothing, and z-loss
    weight: jax.Array  # [] the denominator: the sum of the loss weights
    nll: jax.Array  # [] negative log-likelihood, nats
    z_loss: jax.Array  # []
    correct: jax.Array  # [] tokens whose likeliest prediction is the target
    nll_by_source: jax.Array  # [sources]
    weight_by_source: jax.Array  # [sources]


def cross_entropy(
    logits_BxLxV: jax.Array,
    targets_BxL: jax.Array,
    weights_BxL: jax.Array,
    source_BxL: jax.Array,
    *,
    num_sources: int,
    z_loss: float,
    label_smoothing: float,
) -> LossSums:
    """Weighted cross-entropy over a batch, in float32.

    targets, source: int32 [B, L]; weights: float32 [B, L], 0 where a token is not scored. z_loss: coefficient of
    log(Z)^2 (T5: 1e-4). label_smoothing s: the target distribution is (1 - s) on the true token and s spread evenly
    over all V rows of the table, as in Mesh TensorFlow; T5X leaves the true token out of the spread and subtracts the
    constant entropy.
    """
    logits_BxLxV = logits_BxLxV.astype(jnp.float32)
    log_z_BxL = jax.nn.logsumexp(logits_BxLxV, axis=-1)
    target_logit_BxL = jnp.take_along_axis(logits_BxLxV, targets_BxL[..., None], axis=-1)[..., 0]
    nll_BxL = (log_z_BxL - target_logit_BxL) * weights_BxL
    z_BxL = z_loss * jnp.square(log_z_BxL) * weights_BxL
    objective_BxL = nll_BxL + z_BxL
    if label_smoothing:
        evenly_BxL = (log_z_BxL - logits_BxLxV.mean(axis=-1)) * weights_BxL
        objective_BxL = (1 - label_smoothing) * nll_BxL + label_smoothing * evenly_BxL + z_BxL
    correct_BxL = (jnp.argmax(logits_BxLxV, axis=-1) == targets_BxL) * weights_BxL

    def by_source(values_BxL):
        return jax.ops.segment_sum(values_BxL.reshape(-1), source_BxL.reshape(-1), num_segments=num_sources)

    return LossSums(
        objective=objective_BxL.sum(),
        weight=weights_BxL.sum(),
        nll=nll_BxL.sum(),
        z_loss=z_BxL.sum(),
        correct=correct_BxL.sum(),
        nll_by_source=by_source(nll_BxL),
        weight_by_source=by_source(weights_BxL),
    )


def batch_cross_entropy(logits_BxLxV: jax.Array, batch, *, num_sources: int, z_loss: float, label_smoothing: float):
    """`cross_entropy` on a batch of objectives/batch.py: of the decoder where there is one, else of the encoder."""
    side = "decoder" if "decoder_target_tokens" in batch else "encoder"
    return cross_entropy(
        logits_BxLxV,
        batch[f"{side}_target_tokens"],
        batch[f"{side}_loss_weights"],
        batch["example_source"],
        num_sources=num_sources,
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
