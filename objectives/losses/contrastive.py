"""Contrastive learning: SimCSE (Gao et al. 2021; princeton-nlp/SimCSE), and InfoNCE and CLIP's loss as functions."""

import jax
import jax.numpy as jnp

from objectives.losses.row_cross_entropy import RowSums, class_cross_entropy

MAX_LOGIT_SCALE = 100.0  # CLIP's: similarities are never multiplied by more


def info_nce(
    queries_BxD: jax.Array,
    keys_BxD: jax.Array,
    *,
    temperature: float,
    hard_negatives_BxD: jax.Array | None = None,
    hard_negative_weight: float = 0.0,
) -> RowSums:
    """InfoNCE (van den Oord et al. 2018): each query's key among all keys, by cosine over temperature, in float32.

    keys: key i is the one of query i; every other is a negative. hard_negatives: further negatives of every query; its
    own, number i of query i, counts as exp(hard_negative_weight) of them. As in SimCSE it goes in one direction: keys
    are not asked for their queries.
    """
    queries_BxD, keys_KxD = _unit(queries_BxD), _unit(keys_BxD)
    labels_B = jnp.arange(len(queries_BxD))
    if hard_negatives_BxD is not None:
        keys_KxD = jnp.concatenate([keys_KxD, _unit(hard_negatives_BxD)])
    logits_BxK = _products(queries_BxD, keys_KxD) / temperature
    if hard_negatives_BxD is not None:
        logits_BxK = logits_BxK.at[labels_B, labels_B + len(queries_BxD)].add(hard_negative_weight)
    return class_cross_entropy(logits_BxK, labels_B)


def clip_loss(a_BxD: jax.Array, b_BxD: jax.Array, log_scale: jax.Array) -> RowSums:
    """CLIP's loss of two towers (Radford et al. 2021), in float32: the mean of both directions' cross-entropies.

    a, b: row i of the one belongs with row i of the other. log_scale: float [], learnt, from log(1 / 0.07); cosines are
    multiplied by exp of it, by 100 at most. correct_sum is the mean of both directions' too.
    """
    a_BxD, b_BxD = _unit(a_BxD), _unit(b_BxD)
    logits_BxB = _products(a_BxD, b_BxD) * jnp.minimum(jnp.exp(log_scale), MAX_LOGIT_SCALE)
    labels_B = jnp.arange(len(a_BxD))
    both = class_cross_entropy(logits_BxB, labels_B), class_cross_entropy(logits_BxB.T, labels_B)
    return RowSums(*((there + back) / 2 for there, back in zip(*both, strict=True)))


def alignment(a_BxD: jax.Array, b_BxD: jax.Array) -> jax.Array:
    """Wang & Isola 2020, float32 []: the squared distances on the sphere of a and b, summed over rows."""
    return jnp.square(_unit(a_BxD) - _unit(b_BxD)).sum()


def uniformity(x_BxD: jax.Array) -> jax.Array:
    """Wang & Isola 2020, float32 []: log of the mean, over all pairs of different rows, of exp(-2 squared distance), on
    the sphere. Low, down to -4, is spread out; 0 is all in one place. Of two rows at least."""
    x_BxD, rows = _unit(x_BxD), len(x_BxD)
    squared_distances_BxB = 2 - 2 * _products(x_BxD, x_BxD)
    apart_BxB = jnp.where(jnp.eye(rows, dtype=bool), -jnp.inf, -2 * squared_distances_BxB)
    return jax.nn.logsumexp(apart_BxB) - jnp.log(float(rows * (rows - 1)))


def _unit(x_BxD: jax.Array) -> jax.Array:
    """Rows of length 1, in float32; a row of 0 stays 0."""
    x_BxD = x_BxD.astype(jnp.float32)
    return x_BxD * jax.lax.rsqrt(jnp.maximum(jnp.square(x_BxD).sum(axis=1, keepdims=True), 1e-12))


def _products(a_BxD: jax.Array, b_KxD: jax.Array) -> jax.Array:
    """float32 [B, K], in full precision also where the device would multiply float32 in less."""
    return jnp.einsum("bd,kd->bk", a_BxD, b_KxD, precision=jax.lax.Precision.HIGHEST)
