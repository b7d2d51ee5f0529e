"""The scored positions of rows, gathered into arrays of a static length: logits elsewhere would not be used."""

import jax
import jax.numpy as jnp

from objectives.losses.cross_entropy import ScoredTokens


def scored_positions(weights_BxL: jax.Array, num_positions: int) -> jax.Array:
    """Returns K = `num_positions` different positions of each row, int32 [B, K]: scored ones first, then unscored ones.

    weights: loss weights, float32 [B, L].
    """
    # A sort keeps sharded rows on their devices; jax.lax.top_k gathers them.
    return jnp.argsort(weights_BxL == 0, axis=1, stable=True)[:, :num_positions]


def at_positions(x_BxLx: jax.Array, positions_BxK: jax.Array) -> jax.Array:
    """Returns [B, K, ...], the entries of x [B, L, ...] at different positions of each row, int32 [B, K]."""

    def of_row(row: jax.Array, positions: jax.Array) -> jax.Array:
        return row.at[positions].get(unique_indices=True, mode="promise_in_bounds")

    return jax.vmap(of_row)(x_BxLx, positions_BxK)


def scored_at(scored: ScoredTokens, positions_BxK: jax.Array) -> ScoredTokens:
    """Returns `scored` at the positions, int32 [B, K], of `scored_positions`: [B, K] each.

    A row with more than K scored positions gets loss weights of NaN: a loss that ignored some of them would be another
    loss than the objective's.
    """
    at = ScoredTokens(*(at_positions(x, positions_BxK) for x in scored))
    has_all_Bx1 = jnp.sum(scored.weights_BxL != 0, axis=1, keepdims=True) <= positions_BxK.shape[1]
    return at._replace(weights_BxL=jnp.where(has_all_Bx1, at.weights_BxL, jnp.nan))
