"""The tokens that multi-token prediction predicts, computed from the fields of a batch."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp


class FutureTokens(NamedTuple):
    """Decoder fields of a batch, shifted left by 0, ..., n - 1 positions within each segment: [n, B, T] each.

    Entries are 0 where the shifted position is after the segment's end. Shift 0 is the batch's own field.
    """

    input_tokens: jax.Array  # int32
    positions: jax.Array  # int32
    target_tokens: jax.Array  # int32: for shift i, the token i + 1 after the position's input token
    loss_weights: jax.Array  # float32: the loss weight of that token as a next token


def future_tokens(batch: Mapping[str, jax.Array], num_future_tokens: int) -> FutureTokens:
    """Returns the fields of a batch (contract/batch.py) with which n = `num_future_tokens` tokens are predicted."""
    segment_ids_BxT = batch["decoder_segment_ids"]
    T = segment_ids_BxT.shape[1]

    def ahead(field_BxT: jax.Array, by: int) -> jax.Array:
        same_segment_BxT = (jnp.roll(segment_ids_BxT, -by, axis=1) == segment_ids_BxT) & (jnp.arange(T) < T - by)
        return jnp.where(same_segment_BxT, jnp.roll(field_BxT, -by, axis=1), 0)

    names = ("decoder_input_tokens", "decoder_positions", "decoder_target_tokens", "decoder_loss_weights")
    return FutureTokens(*(jnp.stack([ahead(batch[name], by) for by in range(num_future_tokens)]) for name in names))
