"""The tokens that multi-token prediction predicts, from a batch's own fields."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp


class FutureTokens(NamedTuple):
    """What lies i - 1 positions further on in the same segment, [n, B, T] for i = 1, ..., n; 0 where there is nothing.

    The first of each is the batch's own field.
    """

    input_tokens: jax.Array  # int32
    positions: jax.Array  # int32
    target_tokens: jax.Array  # int32: the i-th token ahead of what the position has read
    loss_weights: jax.Array  # float32: that token is scored where it is scored as the next one


def future_tokens(batch: Mapping[str, jax.Array], num_future_tokens: int) -> FutureTokens:
    """The decoder fields of a batch (contract/batch.py) from each of the next `num_future_tokens` positions."""
    segment_ids_BxT = batch["decoder_segment_ids"]
    T = segment_ids_BxT.shape[1]

    def ahead(field_BxT: jax.Array, by: int) -> jax.Array:
        same_segment_BxT = (jnp.roll(segment_ids_BxT, -by, axis=1) == segment_ids_BxT) & (jnp.arange(T) < T - by)
        return jnp.where(same_segment_BxT, jnp.roll(field_BxT, -by, axis=1), 0)

    names = ("decoder_input_tokens", "decoder_positions", "decoder_target_tokens", "decoder_loss_weights")
    return FutureTokens(*(jnp.stack([ahead(batch[name], by) for by in range(num_future_tokens)]) for name in names))
