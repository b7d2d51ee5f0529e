"""Decoding token by token with a cache of keys and values, so that a token costs one position and not the row again.

    cache = init_cache(config, params, batch, length)            # encoder-decoder: the encoder runs here, once
    logits, cache = prefill(config, params, batch, cache)        # the whole prompt in one pass
    logits, cache = decode_step(config, params, tokens, cache)   # one token for each row, again and again

All are pure and can be jitted with `config` static. All rows share one index into the cache, so prompts end together:
rows with shorter prompts are padded at the *start* (segment id 0), each row's positions counting from its first token.
A row's prompt is one segment. The decoder's prompt of an encoder-decoder is its start token, or more.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues
from models.config import ModelConfig
from models.transformer import Batch, Params, Transformer, bind


class Cache(NamedTuple):
    """What later tokens need of earlier ones. S is the most that a row can hold; `index` positions are filled."""

    keys_values: KeysValues  # of the self attention, [N, B, G, S, K]
    cross_keys_values: KeysValues | None  # of the cross attention, [N, B, G, E, K]
    encoder_segment_ids_BxE: Array | None
    segment_ids_BxS: Array  # 0 where nothing is written yet
    bidirectional_mask_BxS: Array
    next_positions_B: Array
    index: Array  # int32 []


def init_cache(config: ModelConfig, params: Params, batch: Batch, length: int) -> Cache:
    """An empty cache for rows of at most `length` decoder positions, prompt included; the encoder's part is filled.

    Raises ValueError for a model without a decoder, and for a length beyond the table of learned positions.
    """
    if not config.has_decoder:
        raise ValueError(f"model.architecture={config.architecture!r} has no decoder to decode with")
    if config.positions == "learned" and length > config.max_length:
        raise ValueError(f"a cache of {length} positions is longer than model.max_length={config.max_length}")
    model, cross, encoder_segment_ids = bind(config, params), None, None
    if config.has_encoder:
        cross = model.decoder.cross_keys_values(model.encode(batch))
        encoder_segment_ids = batch["encoder_segment_ids"]
    rows = batch["decoder_input_tokens"].shape[0]
    empty = jnp.zeros((config.num_layers, rows, config.num_kv_heads, length, config.head_dim), config.dtype)
    return Cache(
        keys_values=KeysValues(empty, empty),
        cross_keys_values=cross,
        encoder_segment_ids_BxE=encoder_segment_ids,
        segment_ids_BxS=jnp.zeros((rows, length), jnp.int32),
        bidirectional_mask_BxS=jnp.zeros((rows, length), bool),
        next_positions_B=jnp.zeros(rows, jnp.int32),
        index=jnp.zeros((), jnp.int32),
    )


def prefill(config: ModelConfig, params: Params, batch: Batch, cache: Cache) -> tuple[Array, Cache]:
    """Reads the prompt, the batch's decoder fields [B, P], into an empty cache.

    Returns the logits float32 [B, V] of each row's last position, which predict the first new token. Decoder-only
    prompts see each other's later tokens where `decoder_bidirectional_mask` says so, as in training. Raises ValueError
    for a prompt longer than the cache.
    """
    prompt, room = batch["decoder_input_tokens"].shape[1], cache.segment_ids_BxS.shape[1]
    if prompt > room:
        raise ValueError(f"a prompt of {prompt} tokens is longer than the cache, which has room for {room}")
    return _extend(
        bind(config, params),
        cache,
        batch["decoder_input_tokens"],
        batch["decoder_positions"],
        batch["decoder_segment_ids"],
        jnp.zeros_like(cache.bidirectional_mask_BxS[:, :prompt])
        if config.has_encoder
        else batch["decoder_bidirectional_mask"],
    )


def decode_step(config: ModelConfig, params: Params, tokens_B: Array, cache: Cache) -> tuple[Array, Cache]:
    """Appends one token to each row. Returns the logits float32 [B, V] of the token after it, and the cache.

    Logits are NaN where the cache was already full: the index is known only on the device, so nothing can be raised.
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
    """Runs the decoder on L new positions of each row, which see the cached ones and, if so masked, each other."""
    index, num_new = cache.index, tokens_BxL.shape[1]
    new_segments = jax.lax.dynamic_update_slice_in_dim(cache.segment_ids_BxS, segment_ids_BxL, index, 1)
    new_mask = jax.lax.dynamic_update_slice_in_dim(cache.bidirectional_mask_BxS, bidirectional_mask_BxL, index, 1)
    hidden_BxLxD, keys_values = model.decoder(
        model.embed(tokens_BxL, positions_BxL),
        model.decoder.visibility(
            positions_BxL,
            segment_ids_BxL,
            new_segments,
            bidirectional_mask_BxS=new_mask,
            encoder_segment_ids_BxE=cache.encoder_segment_ids_BxE,
            query_offset=index,
        ),
        cross=cache.cross_keys_values,
        cached=cache.keys_values,
        cache_index=index,
    )
    has_room = index + num_new <= cache.segment_ids_BxS.shape[1]
    logits_BxV = jnp.where(has_room, model.logits(hidden_BxLxD[:, -1]), jnp.nan)
    return logits_BxV, cache._replace(
        keys_values=keys_values,
        segment_ids_BxS=new_segments,
        bidirectional_mask_BxS=new_mask,
        next_positions_B=positions_BxL[:, -1] + 1,
        index=index + num_new,
    )
