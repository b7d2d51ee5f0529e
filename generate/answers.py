"""Answers to prompts, decoded in batches."""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiment.experiment import Experiment
from generate.prompts import Prompt, prompt_batch, prompt_length
from generate.sampling import Sampling, decode
from models.parameters import Params


def padded_length(length: int) -> int:
    """Returns the next multiple of a quarter of the power of two at or below `length`, at least of 16.

    Texts of many lengths then share a few compiled programs.
    """
    step = max(16, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


def padded_rows(count: int) -> int:
    """Returns the next power of two, at least 1: a number of rows to pad to, as `padded_length` is a length."""
    return 1 << max(count - 1, 0).bit_length()


class Request(NamedTuple):
    """A prompt, and the most tokens of its answer."""

    prompt: Prompt
    max_tokens: int


class Answer(NamedTuple):
    """What the model generated for a prompt."""

    tokens: np.ndarray  # int32 [n], without EOS
    finished: bool  # whether the model ended the answer with an EOS


def generate_answers(
    experiment: Experiment,
    params: Params,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    num_samples: int,
    seed: int,
    batch_size: int = 16,
) -> Iterator[list[Answer]]:
    """Yields `num_samples` answers to each of `requests`, in order.

    The draws of an answer are a function of the seed, the prompt's tokens and the number of the sample: they depend on
    neither the other prompts, the place among them, nor the batch size. Equal prompts have equal answers.

    batch_size: how many answers are decoded together. Lengths are padded to a few sizes, so that few programs are
      compiled.
    """
    rows = [(request, sample) for request in requests for sample in range(num_samples)]
    answers: list[Answer] = []
    for begin in range(0, len(rows), batch_size):
        answers += _decode_rows(experiment, params, rows[begin : begin + batch_size], sampling, seed)
        while len(answers) >= num_samples:
            yield answers[:num_samples]
            del answers[:num_samples]


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
        longest = max(prompt_length(experiment, prompt) - 1 + most for (prompt, most), _ in rows)
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
    return [
        Answer(tokens[k, : lengths[k]], finished=bool(lengths[k] < request.max_tokens))
        for k, (request, _) in enumerate(rows)
    ]


def _keys(rows: Sequence[tuple[Request, int]], seed: int) -> jax.Array:
    """Returns the PRNG key of each row."""
    hashes = np.array([_hash(request.prompt) for request, _ in rows], np.uint32)
    return _keys_of(jax.random.key(seed), hashes, np.array([sample for _, sample in rows], np.uint32))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def _keys_of(key: jax.Array, prompt_hash: jax.Array, sample: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, prompt_hash), sample)


def _hash(prompt: Prompt) -> int:
    """Returns 32 bits of a hash of what the model reads."""
    parts = (np.asarray(part, "<i4") for part in (prompt.inputs, prompt.targets_start))
    text = b"".join(len(part).to_bytes(8, "little") + part.tobytes() for part in parts)
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
