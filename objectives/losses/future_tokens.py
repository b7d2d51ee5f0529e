"""Losses of what comes after the next token: the order of the tokens ahead, and which they are; shifts of rows."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

ORDER_WINDOW = 32  # tokens; those further ahead have at most e^-32 of the first one's weight, which float32 rounds away


class Ahead(NamedTuple):
    """The tokens ahead of each position: entry d is the token `first` + d tokens after the last token that is read."""

    ids_BxLxW: jax.Array  # int32
    is_new_BxLxW: jax.Array  # bool: within the segment, and not equal to an entry before it


def tokens_ahead(targets_BxL: jax.Array, segment_ids_BxL: jax.Array, *, first: int, last: int) -> Ahead:
    """Returns the tokens `first`, ..., `last` ahead, of which the target of a position is the first ahead (1).

    targets, segment ids: int32, of a decoder (contract/batch.py).
    """
    length = targets_BxL.shape[1]
    distances_W = jnp.arange(first - 1, last)
    places_LxW = jnp.arange(length)[:, None] + distances_W
    inside_LxW, places_LxW = places_LxW < length, jnp.minimum(places_LxW, length - 1)
    same_segment_BxLxW = segment_ids_BxL[:, places_LxW] == segment_ids_BxL[:, :, None]
    # A token is new if the token equal to it before it is not among the entries.
    previous_BxLxW = _previous_place(targets_BxL)[:, places_LxW]
    is_new_BxLxW = previous_BxLxW < jnp.arange(length)[:, None] + first - 1
    exists_BxLxW = inside_LxW & same_segment_BxLxW & (segment_ids_BxL[:, :, None] > 0)
    return Ahead(targets_BxL[:, places_LxW], is_new_BxLxW & exists_BxLxW)


def shifted(x_BxLx: jax.Array, segment_ids_BxL: jax.Array, by: jax.Array | int) -> jax.Array:
    """Returns x, [B, L, ...], shifted left by `by` positions within each segment; 0 after the segment's end."""
    length = x_BxLx.shape[1]
    same_segment_BxL = (jnp.roll(segment_ids_BxL, -by, axis=1) == segment_ids_BxL) & (jnp.arange(length) < length - by)
    inside_BxLx = same_segment_BxL.reshape(same_segment_BxL.shape + (1,) * (x_BxLx.ndim - 2))
    return jnp.where(inside_BxLx, jnp.roll(x_BxLx, -by, axis=1), 0)


def in_chunks(losses: Callable[..., jax.Array], rows: tuple, chunk_size: int) -> jax.Array:
    """Returns losses(*rows), float32 [B, L], of at most `chunk_size` positions at a time; 0: of all at once.

    Each chunk is computed once more in the backward pass, so only one chunk's intermediate results are in memory.

    losses: position by position. rows: trees of arrays [B, L, ...].
    """
    length = jax.tree.leaves(rows)[0].shape[1]
    if not chunk_size or chunk_size >= length:
        return losses(*rows)

    def chunk(start: int) -> jax.Array:
        return jax.checkpoint(losses)(*jax.tree.map(lambda x: x[:, start : start + chunk_size], rows))

    return jnp.concatenate([chunk(start) for start in range(0, length, chunk_size)], axis=1)


def _previous_place(tokens_BxL: jax.Array) -> jax.Array:
    """Returns int32 [B, L]: the place of the last equal token before each token of the row; -1 without one."""

    def of_row(tokens_L):
        order_L = jnp.argsort(tokens_L, stable=True)
        is_equal_L = jnp.concatenate([jnp.zeros(1, bool), jnp.diff(tokens_L[order_L]) == 0])
        return jnp.zeros_like(order_L).at[order_L].set(jnp.where(is_equal_L, jnp.roll(order_L, 1), -1))

    return jax.vmap(of_row)(tokens_BxL)


def token_order_losses(logits_BxLxV: jax.Array, ahead: Ahead) -> jax.Array:
    """Returns the cross-entropy of the order of the tokens ahead, float32 [B, L], in nats.

    Token order prediction (Zuhri et al. 2025, arXiv 2508.19228): the target distribution over the vocabulary is the
    softmax of minus the distance to a token's next occurrence in the segment. Tokens that do not occur have
    probability 0. The paper's window is as long as the row; the sum is over ORDER_WINDOW tokens, which is the same in
    float32.

    logits: float32 [B, L, V]. ahead: from 1 to ORDER_WINDOW tokens. Padding has a loss without meaning.
    """
    scores_W = -jnp.arange(ahead.ids_BxLxW.shape[-1], dtype=jnp.float32)
    weights_BxLxW = jnp.exp(scores_W) * ahead.is_new_BxLxW
    logits_BxLxW = jnp.take_along_axis(logits_BxLxV, ahead.ids_BxLxW, axis=-1)
    expected_BxL = (weights_BxLxW * logits_BxLxW).sum(axis=-1) / jnp.maximum(weights_BxLxW.sum(axis=-1), 1.0)
    return jax.nn.logsumexp(logits_BxLxV, axis=-1) - expected_BxL


def future_bag_losses(logits_BxLxV: jax.Array, ahead: Ahead) -> jax.Array:
    """Returns the binary cross-entropy of which tokens are ahead, float32 [B, L], in nats, the vocabulary's mean.

    Future summary prediction with a bag of words (Mahajan et al. 2025, arXiv 2510.14751). logits: float32 [B, L, V].
    ahead: from 2 tokens to the horizon.
    """
    logits_BxLxW = jnp.take_along_axis(logits_BxLxV, ahead.ids_BxLxW, axis=-1)
    of_bag_BxL = jnp.where(ahead.is_new_BxLxW, logits_BxLxW, 0).sum(axis=-1)
    return (jax.nn.softplus(logits_BxLxV).sum(axis=-1) - of_bag_BxL) / logits_BxLxV.shape[-1]
