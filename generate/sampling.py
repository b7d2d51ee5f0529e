"""Samples answers to prompts: one token after another until EOS, for batches of prompts.

Suffixes: B rows, V vocabulary (rows of the embedding table), T new tokens.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from contract.errors import ConfigError
from contract.vocab import Vocab
from experiment.experiment import Experiment
from generate.prompts import Prompt, first_position, prompt_batch, prompt_length
from models.config import ModelConfig
from models.decoding import decode_step, init_cache, prefill
from models.parameters import Params
from models.transformer import Batch

_NOT_FINITE = -1  # in place of a token


class Sampling(NamedTuple):
    """The arguments of `sample_token` that a user chooses. The arguments are traced, so new values do not recompile."""

    temperature: float
    top_k: int
    top_p: float


class Request(NamedTuple):
    """A prompt, and the most tokens of its answer."""

    prompt: Prompt
    max_tokens: int


class Answer(NamedTuple):
    """What the model generated for a prompt."""

    tokens: np.ndarray  # int32 [n], without EOS
    finished: bool  # whether the model ended the answer with an EOS


class Decoded(NamedTuple):
    """The new tokens of each row, with pad after its end. A row that drew an EOS has the EOS at tokens[length].

    A row ends with _NOT_FINITE where its logits are NaN or infinite.
    """

    tokens_BxT: Array  # int32
    lengths_B: Array  # int32, EOS not counted; the row's limit where no EOS was drawn


def allowed_tokens(vocab: Vocab, num_ids: int) -> Array:
    """Returns which ids of a table of `num_ids` embeddings may be drawn, bool [num_ids].

    These are the ids of the vocabulary without pad; pad may be drawn where it is EOS.
    """
    ids = jnp.arange(num_ids)
    return (ids < vocab.size) & ((ids != vocab.pad) | (ids == vocab.eos))


def sample_token(
    logits_BxV: Array, keys_B: Array, *, allowed_V: Array, temperature: float, top_k: int, top_p: float
) -> Array:
    """Draws one token for each row among the tokens that `allowed_V` allows. Returns int32 [B].

    Args:
      logits_BxV: logits of any float dtype.
      keys_B: a PRNG key for each row.
      allowed_V: bool, the ids that may be drawn.
      temperature: divides the logits; 0 selects the likeliest token.
      top_k: then restricts the draw to the k likeliest tokens; 0 is off.
      top_p: then restricts the draw to the smallest set of likeliest tokens whose renormalised probabilities reach p
        (nucleus sampling, Holtzman et al. 2020); 1 is off.

    Equally likely tokens are ranked by id, so top_k keeps exactly k tokens; other implementations keep all ties.
    """
    logits_BxV = jnp.where(allowed_V, logits_BxV.astype(jnp.float32), -jnp.inf)
    ids_BxV = jnp.argsort(-logits_BxV, axis=-1, stable=True)  # column r: the token of rank r
    ranked_BxV = jnp.take_along_axis(logits_BxV, ids_BxV, axis=-1)
    # Relative to the greatest logit, so that a very small temperature gives -inf and never inf - inf.
    scores_BxV = (ranked_BxV - ranked_BxV[:, :1]) / jnp.where(temperature > 0, temperature, 1.0)
    in_top_k_V = (jnp.arange(logits_BxV.shape[1]) < top_k) | (top_k <= 0)
    scores_BxV = jnp.where(in_top_k_V, scores_BxV, -jnp.inf)
    mass_BxV = jnp.cumsum(jax.nn.softmax(scores_BxV, axis=-1), axis=-1)
    likelier_mass_BxV = jnp.pad(mass_BxV[:, :-1], ((0, 0), (1, 0)))
    # top_p=1 is off even where the rounded sum reaches 1 early.
    in_top_p_BxV = (likelier_mass_BxV < top_p) | (jnp.asarray(top_p) >= 1)
    drawn_B = jax.vmap(jax.random.categorical)(keys_B, jnp.where(in_top_p_BxV, scores_BxV, -jnp.inf))
    rank_B = jnp.where(temperature > 0, drawn_B, 0)
    return jnp.take_along_axis(ids_BxV, rank_B[:, None], axis=-1)[:, 0].astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("config", "vocab", "max_tokens", "longest_row"))
def decode(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    keys_B: Array,
    limits_B: Array,
    sampling: Sampling,
    *,
    vocab: Vocab,
    max_tokens: int,
    longest_row: int | None = None,
) -> Decoded:
    """Draws up to T = `max_tokens` new tokens for each row of prompts, until every row has ended.

    Args:
      config: the model.
      params: its parameters.
      batch: the encoder's fields, if there is an encoder, and the decoder's fields of the prompts, int32 [B, P], whose
        last position predicts the first new token. models/decoding.py describes prompts of different lengths.
      keys_B: a PRNG key for each row: token i is drawn with fold_in(key, i), so that a larger T begins with the same
        tokens, and other rows change nothing.
      limits_B: int32, at most T: a row ends with an EOS or after this many tokens.
      sampling: how tokens are drawn.
      vocab: the special ids.
      max_tokens: T.
      longest_row: the most positions that a row takes by its limit, without the padding at its start, for a model with
        learned positions; None: P - 1 + T.

    Compiles once for each shape of `batch` and each T, in time and size that do not depend on T. Raises ValueError
    if the longest row exceeds the model's learned positions.
    """
    allowed_V = allowed_tokens(vocab, config.vocab_size)

    def is_unfinished(state) -> Array:
        i, _, _, ended_B, _ = state
        return (i < max_tokens) & ~ended_B.all()

    def step(state):
        i, logits_BxV, cache, ended_B, tokens_BxT = state
        step_keys_B = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_B, i)
        token_B = sample_token(logits_BxV, step_keys_B, allowed_V=allowed_V, **sampling._asdict())
        is_finite_B = jnp.isfinite(jnp.where(allowed_V, logits_BxV, -jnp.inf).max(axis=-1))
        token_B = jnp.where(ended_B, vocab.pad, jnp.where(is_finite_B, token_B, _NOT_FINITE))
        logits_BxV, cache = decode_step(config, params, token_B, cache)
        ended_B |= (token_B == vocab.eos) | (token_B == _NOT_FINITE) | (i + 1 >= limits_B)
        return i + 1, logits_BxV, cache, ended_B, tokens_BxT.at[:, i].set(token_B)

    rows, prompt_length = batch["decoder_input_tokens"].shape
    limits_B = jnp.asarray(limits_B)
    # No token follows the last one, so the cache has no position for the last token: its step's logits are NaN, unused.
    cache = init_cache(config, params, batch, prompt_length - 1 + max_tokens, longest_row)
    logits_BxV, cache = prefill(config, params, batch, cache)
    tokens_BxT = jnp.full((rows, max_tokens), vocab.pad, jnp.int32)
    state = jnp.int32(0), logits_BxV, cache, limits_B <= 0, tokens_BxT
    *_, tokens_BxT = jax.lax.while_loop(is_unfinished, step, state)
    # Pad and EOS occur only after a row's text.
    is_text_BxT = (tokens_BxT != vocab.pad) & (tokens_BxT != vocab.eos)
    return Decoded(tokens_BxT, is_text_BxT.sum(axis=-1, dtype=jnp.int32))


def padded_length(length: int) -> int:
    """Returns the next multiple of a quarter of the power of two at or below `length`, at least of 16.

    Texts of many lengths then share a few compiled programs.
    """
    step = max(16, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


def padded_rows(count: int, mesh: Mesh | None = None) -> int:
    """Returns the next power of two, at least 1: a number of rows to pad to, as `padded_length` is a length.

    mesh: over whose devices the rows are split, which then divide the number.
    """
    rows, parts = 1 << max(count - 1, 0).bit_length(), 1 if mesh is None else row_parts(mesh)
    return -(-rows // parts) * parts


def row_parts(mesh: Mesh) -> int:
    """Returns how many parts of a batch have different rows."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def padded_batch(batch: Batch, mesh: Mesh) -> tuple[Batch, int]:
    """Returns `batch` with rows of padding at its end, for the devices and for few programs, and its own rows."""
    rows = len(next(iter(batch.values())))
    more = padded_rows(rows, mesh) - rows
    return {name: np.pad(array, [(0, more), *[(0, 0)] * (array.ndim - 1)]) for name, array in batch.items()}, rows


def generate_answers(
    experiment: Experiment,
    params: Params,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    num_samples: int,
    seed: int,
    first_sample: int = 0,
    batch_size: int = 16,
) -> Iterator[list[Answer]]:
    """Yields `num_samples` answers to each of `requests`, in order.

    The draws of an answer are a function of the seed, the prompt's tokens and the number of the sample: they depend on
    neither the other prompts, the place among them, nor the batch size. Equal prompts have equal answers.

    Raises ConfigError where logits are NaN or infinite.

    first_sample: the number of the first sample.
    batch_size: how many answers are decoded together. Lengths are padded to a few sizes, so that few programs are
      compiled.
    """
    samples = range(first_sample, first_sample + num_samples)
    rows = [(request, sample) for request in requests for sample in samples]
    batches = (rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size))
    decoded = (_decode_rows(experiment, params, batch, sampling, seed) for batch in batches)
    answers = itertools.chain.from_iterable(decoded)
    for _ in requests:
        yield list(itertools.islice(answers, num_samples))


def _decode_rows(
    experiment: Experiment, params: Params, rows: Sequence[tuple[Request, int]], sampling: Sampling, seed: int
) -> list[Answer]:
    """Returns an answer for each (request, number of the sample)."""
    model, num_padding = experiment.model, padded_rows(len(rows)) - len(rows)
    prompts = [request.prompt for request, _ in rows]
    most = max(request.max_tokens for request, _ in rows)
    length = max(prompt_length(experiment, prompt) for prompt in prompts)
    length, max_tokens = padded_length(length) if length > 1 else 1, padded_length(most)
    longest_row = None
    if model.positions == "learned":
        length = min(length, model.max_length)
        # No token follows the last one, which therefore has no position.
        longest = max(first_position(experiment, prompt) + most for (prompt, most), _ in rows)
        longest_row = max(longest, model.max_length)  # the same for all batches that fit
    decoded = decode(
        model,
        params,
        prompt_batch(experiment, [*prompts, *prompts[:1] * num_padding], length),
        _keys([*rows, *rows[:1] * num_padding], seed),
        np.array([*(request.max_tokens for request, _ in rows), *[0] * num_padding], np.int32),
        sampling,
        vocab=experiment.vocab,
        max_tokens=max_tokens,
        longest_row=longest_row,
    )
    tokens, lengths = jax.device_get(decoded)
    check_finite(experiment, not (tokens == _NOT_FINITE).any())
    return [
        Answer(tokens[k, : lengths[k]], finished=bool(lengths[k] < request.max_tokens))
        for k, (request, _) in enumerate(rows)
    ]


def check_finite(experiment: Experiment, is_finite: bool) -> None:
    """Raises ConfigError, one line, for a model whose logits are not finite."""
    if not is_finite:
        raise ConfigError(
            "the model's logits are not finite, so it has no answer: the run diverged, or its numbers overflow in "
            f"precision={experiment.model.dtype!r}: choose an earlier checkpoint, or train with another precision"
        )


def _keys(rows: Sequence[tuple[Request, int]], seed: int) -> jax.Array:
    """Returns the PRNG key of each row."""
    hashes = np.array([hash_of(request.prompt.inputs, request.prompt.targets_start) for request, _ in rows], np.uint32)
    return _keys_of(jax.random.key(seed), hashes, np.array([sample for _, sample in rows], np.uint32))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def _keys_of(key: jax.Array, prompt_hash: jax.Array, sample: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, prompt_hash), sample)


def hash_of(*tokens: np.ndarray) -> int:
    """Returns 32 bits of a hash of what the model reads: one part or several, int [n] each."""
    parts = (np.asarray(part, "<i4") for part in tokens)
    text = b"".join(len(part).to_bytes(8, "little") + part.tobytes() for part in parts)
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
