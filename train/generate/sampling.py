"""Drawing tokens: from one step's logits, and one after another until the end of the text.

Suffixes: B rows, V vocabulary (rows of the embedding table), T new tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from contract.vocab import Vocab
from models.config import ModelConfig
from models.decoding import decode_step, init_cache, prefill
from models.transformer import Batch, Params


class Sampling(NamedTuple):
    """How a token is drawn; `sample_token` says what each means. Traced, so that no value compiles anything anew."""

    temperature: float
    top_k: int
    top_p: float


class Decoded(NamedTuple):
    """New tokens of each row. A row that drew EOS has it at tokens[length], and pad after it."""

    tokens_BxT: Array  # int32
    lengths_B: Array  # int32, EOS not counted; T where a row was cut off before an EOS


def allowed_tokens(vocab: Vocab, num_ids: int) -> Array:
    """bool [num_ids]: the ids that a model with a table of `num_ids` rows may draw, all of the vocabulary but pad."""
    ids = jnp.arange(num_ids)
    return (ids < vocab.size) & (ids != vocab.pad)


def sample_token(
    logits_BxV: Array, key: Array, *, allowed_V: Array, temperature: float, top_k: int, top_p: float
) -> Array:
    """int32 [B]: one token drawn for each row, only where bool `allowed_V` says so.

    temperature: divides the logits; 0 takes the likeliest token. Then top_k: only the k likeliest tokens, 0 for all.
    Then top_p (nucleus sampling, Holtzman et al. 2020): of what is left, renormalised, the fewest likeliest tokens
    whose probabilities reach p, the one that crosses p included; 1 for all. Of equally likely tokens the one of the
    lowest id comes first, so exactly k are left where others keep all that tie with the k-th.
    """
    logits_BxV = jnp.where(allowed_V, logits_BxV.astype(jnp.float32), -jnp.inf)
    ids_BxV = jnp.argsort(-logits_BxV, axis=-1, stable=True)  # column r: the token of rank r
    ranked_BxV = jnp.take_along_axis(logits_BxV, ids_BxV, axis=-1)
    # From the greatest down: division by a very small temperature then ends at -inf, never at inf - inf.
    scores_BxV = (ranked_BxV - ranked_BxV[:, :1]) / jnp.where(temperature > 0, temperature, 1.0)
    in_top_k_V = (jnp.arange(logits_BxV.shape[1]) < top_k) | (top_k <= 0)
    scores_BxV = jnp.where(in_top_k_V, scores_BxV, -jnp.inf)
    mass_BxV = jnp.cumsum(jax.nn.softmax(scores_BxV, axis=-1), axis=-1)
    likelier_mass_BxV = jnp.pad(mass_BxV[:, :-1], ((0, 0), (1, 0)))
    # 1 is off whatever the sum rounds to: it can reach 1 before its end.
    in_top_p_BxV = (likelier_mass_BxV < top_p) | (jnp.asarray(top_p) >= 1)
    drawn_B = jax.random.categorical(key, jnp.where(in_top_p_BxV, scores_BxV, -jnp.inf), axis=-1)
    rank_B = jnp.where(temperature > 0, drawn_B, 0)
    return jnp.take_along_axis(ids_BxV, rank_B[:, None], axis=-1)[:, 0].astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("config", "vocab", "max_tokens"))
def decode(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    key: Array,
    sampling: Sampling,
    *,
    vocab: Vocab,
    max_tokens: int,
) -> Decoded:
    """Draws up to `max_tokens` new tokens (T) for each row of prompts, fewer once every row has drawn its EOS.

    `batch`: the encoder's fields, if there is an encoder, and the decoder's fields of the prompts, int32 [B, P], whose
    last position predicts the first new token (models/decoding.py says how prompts of different lengths stand side by
    side). Token i of the rows is drawn with fold_in(key, i), so a larger T begins with the same tokens.

    Compiled once for each shape of `batch` and each T, in size and in time not depending on T. Raises ValueError where
    P - 1 + T positions are more than the model's table of learned positions.
    """
    allowed_V = allowed_tokens(vocab, config.vocab_size)

    def is_unfinished(state) -> Array:
        i, _, _, ended_B, _ = state
        return (i < max_tokens) & ~ended_B.all()

    def step(state):
        i, logits_BxV, cache, ended_B, tokens_BxT = state
        token_B = sample_token(logits_BxV, jax.random.fold_in(key, i), allowed_V=allowed_V, **sampling._asdict())
        token_B = jnp.where(ended_B, vocab.pad, token_B)
        logits_BxV, cache = decode_step(config, params, token_B, cache)
        return i + 1, logits_BxV, cache, ended_B | (token_B == vocab.eos), tokens_BxT.at[:, i].set(token_B)

    rows, prompt_length = batch["decoder_input_tokens"].shape
    # Nothing follows the last token, so the cache has no place for it: its logits are not a number, and not read.
    cache = init_cache(config, params, batch, prompt_length - 1 + max_tokens)
    logits_BxV, cache = prefill(config, params, batch, cache)
    tokens_BxT = jnp.full((rows, max_tokens), vocab.pad, jnp.int32)
    state = jnp.int32(0), logits_BxV, cache, jnp.zeros(rows, bool), tokens_BxT
    *_, tokens_BxT = jax.lax.while_loop(is_unfinished, step, state)
    # Neither pad nor EOS is part of a row's text, and both stand only at its end.
    is_text_BxT = (tokens_BxT != vocab.pad) & (tokens_BxT != vocab.eos)
    return Decoded(tokens_BxT, is_text_BxT.sum(axis=-1, dtype=jnp.int32))
