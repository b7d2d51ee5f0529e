"""Decoding with a cache of keys and values: a new token costs the computation of one position.

    cache = init_cache(config, params, batch, length)            # runs the encoder of an encoder-decoder
    logits, cache = prefill(config, params, batch, cache)        # the whole prompt in one pass
    logits, cache = decode_step(config, params, tokens, cache)   # one token for each row; repeat

All functions are pure and can be jitted with `config` static (for `init_cache` also `length`). All rows share one index
into the cache, so all prompts end at the same index: shorter prompts are padded at the *start* (segment id 0), and the
positions of a row count from the row's first token. The prompt of a row is one segment. An encoder-decoder's prompt is
the start token, optionally followed by more tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import Batch, Transformer, bind


class Cache(NamedTuple):
    """The state of decoding. S is the capacity of a row, E the length of the encoder's rows; both in positions."""

    keys_values: KeysValues  # of self-attention, [N, B, G, S, K]
    cross_keys_values: KeysValues | None  # of cross-attention, [N, B, G, E, K]
    encoder_segment_ids_BxE: Array | None
    encoder_positions_BxE: Array | None
    segment_ids_BxS: Array  # 0 at positions not yet written
    bidirectional_mask_BxS: Array
    positions_BxS: Array  # int32: 0 at positions not yet written
    next_positions_B: Array  # int32: position of the next token
    num_written: Array  # int32 []: positions written, the same for all rows


def init_cache(config: ModelConfig, params: Params, batch: Batch, length: int, longest_row: int | None = None) -> Cache:
    """Returns a cache for rows of at most `length` decoder positions, prompt included.

    The part for self-attention is empty. The part for cross-attention contains keys and values of the batch's encoder
    rows.

    longest_row: the most positions of a row without the padding at its start; None: `length`.

    Raises ValueError for a model without a decoder, and for rows beyond the table of learned positions.
    """
    longest_row = length if longest_row is None else longest_row
    if not config.has_decoder:
        raise ValueError(f"model.architecture={config.architecture!r} has no decoder to decode with")
    if config.positions == "learned" and longest_row > config.max_length:
        raise ValueError(
            f"a row of {longest_row} positions is longer than the table of learned positions: decode at most "
            f"{config.max_length} positions, or train with a larger model.max_length"
        )
    model, cross = bind(config, params), None
    encoder = dict.fromkeys(("encoder_segment_ids", "encoder_positions"))
    if config.has_encoder:
        encoder = {name: batch[name] for name in encoder}
        cross = model.decoder.cross_keys_values(model.encode(batch), batch["encoder_positions"])
    num_layers, rows = config.of_decoder.num_layers, batch["decoder_input_tokens"].shape[0]
    empty = jnp.zeros((num_layers, rows, config.num_kv_heads, length, config.head_dim), config.dtype)
    return Cache(
        keys_values=KeysValues(empty, empty),
        cross_keys_values=cross,
        encoder_segment_ids_BxE=encoder["encoder_segment_ids"],
        encoder_positions_BxE=encoder["encoder_positions"],
        segment_ids_BxS=jnp.zeros((rows, length), jnp.int32),
        bidirectional_mask_BxS=jnp.zeros((rows, length), bool),
        positions_BxS=jnp.zeros((rows, length), jnp.int32),
        next_positions_B=jnp.zeros(rows, jnp.int32),
        num_written=jnp.zeros((), jnp.int32),
    )


def prefill(config: ModelConfig, params: Params, batch: Batch, cache: Cache) -> tuple[Array, Cache]:
    """Writes the prompt, the batch's decoder fields [B, P], into an empty cache.

    Returns the logits float32 [B, V] of the first new token, and the new cache. A decoder-only prompt is bidirectional
    where `decoder_bidirectional_mask` is True, as in training.

    Raises ValueError for a prompt longer than the cache.
    """
    prompt_length, capacity = batch["decoder_input_tokens"].shape[1], cache.segment_ids_BxS.shape[1]
    if prompt_length > capacity:
        raise ValueError(f"a prompt of {prompt_length} tokens is longer than the cache of {capacity} positions")
    return _extend(
        bind(config, params),
        cache,
        batch["decoder_input_tokens"],
        batch["decoder_positions"],
        batch["decoder_segment_ids"],
        batch["decoder_bidirectional_mask"]
        if config.has_prefix and not config.has_encoder
        else jnp.zeros_like(cache.bidirectional_mask_BxS[:, :prompt_length]),
    )


def decode_step(config: ModelConfig, params: Params, tokens_B: Array, cache: Cache) -> tuple[Array, Cache]:
    """Appends one token, int32 [B], to each row. Returns the logits float32 [B, V] of the next token, and the cache.

    The logits are NaN if the cache was already full, which only the device can check, and a device cannot raise.
    """
    return _extend(
        bind(config, params),
        cache,
        tokens_B[:, None],
        cache.next_positions_B[:, None],
        cache.segment_ids_BxS.max(1, keepdims=True),
        jnp.zeros((tokens_B.shape[0], 1), bool),
    )


def _extend(
    model: Transformer,
    cache: Cache,
    tokens_BxL: Array,
    positions_BxL: Array,
    segment_ids_BxL: Array,
    bidirectional_mask_BxL: Array,
) -> tuple[Array, Cache]:
    """Runs the decoder on L new positions of each row, which attend to the cache and, by the mask, to each other.

    Returns the logits at the last position, float32 [B, V], and the cache with the new positions written.
    """
    index, num_new = cache.num_written, tokens_BxL.shape[1]
    segment_ids = jax.lax.dynamic_update_slice_in_dim(cache.segment_ids_BxS, segment_ids_BxL, index, 1)
    mask = jax.lax.dynamic_update_slice_in_dim(cache.bidirectional_mask_BxS, bidirectional_mask_BxL, index, 1)
    positions = jax.lax.dynamic_update_slice_in_dim(cache.positions_BxS, positions_BxL, index, 1)
    hidden_BxLxD, keys_values = model.decoder(
        model.embed(tokens_BxL, positions_BxL, stack="decoder"),
        model.decoder.attention_context(
            positions_BxL,
            segment_ids_BxL,
            segment_ids,
            key_positions_BxS=positions,
            bidirectional_mask=mask if model.config.has_prefix else None,
            encoder_segment_ids_BxE=cache.encoder_segment_ids_BxE,
            encoder_positions_BxE=cache.encoder_positions_BxE,
            query_offset=index,
        ),
        cross=cache.cross_keys_values,
        cached=cache.keys_values,
    )
    assert keys_values is not None  # `cached` was given
    has_capacity = index + num_new <= cache.segment_ids_BxS.shape[1]
    logits_BxV = jnp.where(has_capacity, model.logits(hidden_BxLxD[:, -1]), jnp.nan)
    return logits_BxV, cache._replace(
        keys_values=keys_values,
        segment_ids_BxS=segment_ids,
        bidirectional_mask_BxS=mask,
        positions_BxS=positions,
        next_positions_B=positions_BxL[:, -1] + 1,
        num_written=index + num_new,
    )
