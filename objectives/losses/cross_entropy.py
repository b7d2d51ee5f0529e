"""Losses on logits: pure functions that return sums and denominators, so that the one division comes last."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LossSums(NamedTuple):
    """Sums over scored tokens, float32. Add them over microbatches and devices, then divide by weight_sum."""

    objective_sum: jax.Array  # [] what is minimised: cross-entropy with label smoothing, and z-loss
    weight_sum: jax.Array  # [] the denominator: the sum of the loss weights
    loss_sum: jax.Array  # [] negative log-likelihood, nats
    correct_sum: jax.Array  # [] tokens whose likeliest prediction is the target
    loss_sum_by_denoiser: jax.Array  # [sources]
    weight_sum_by_denoiser: jax.Array  # [sources]
    correct_sum_by_denoiser: jax.Array  # [sources]


def cross_entropy(
    logits_BxLxV: jax.Array,
    targets_BxL: jax.Array,
    weights_BxL: jax.Array,
    denoiser_BxL: jax.Array,
    *,
    num_denoisers: int,
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
    objective_BxL = nll_BxL
    if label_smoothing:
        evenly_BxL = (log_z_BxL - logits_BxLxV.mean(axis=-1)) * weights_BxL
        objective_BxL = (1 - label_smoothing) * nll_BxL + label_smoothing * evenly_BxL
    if z_loss:
        objective_BxL += z_loss * jnp.square(log_z_BxL) * weights_BxL
    correct_BxL = (jnp.argmax(logits_BxLxV, axis=-1) == targets_BxL) * weights_BxL

    def by_denoiser(values_BxL):
        return jax.ops.segment_sum(values_BxL.reshape(-1), denoiser_BxL.reshape(-1), num_segments=num_denoisers)

    return LossSums(
        objective_sum=objective_BxL.sum(),
        weight_sum=weights_BxL.sum(),
        loss_sum=nll_BxL.sum(),
        correct_sum=correct_BxL.sum(),
        loss_sum_by_denoiser=by_denoiser(nll_BxL),
        weight_sum_by_denoiser=by_denoiser(weights_BxL),
        correct_sum_by_denoiser=by_denoiser(correct_BxL),
    )


def target_side(batch) -> str:
    """Which stack's positions are scored: "decoder" where there is one, else "encoder"."""
    return "decoder" if "decoder_target_tokens" in batch else "encoder"


def batch_cross_entropy(
    logits_BxLxV: jax.Array, batch, *, num_denoisers: int, z_loss: float, label_smoothing: float
) -> LossSums:
    """`cross_entropy` on a batch of contract/batch.py."""
    side = target_side(batch)
    return cross_entropy(
        logits_BxLxV,
        batch[f"{side}_target_tokens"],
        batch[f"{side}_loss_weights"],
        batch["example_source"],
        num_denoisers=num_denoisers,
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
