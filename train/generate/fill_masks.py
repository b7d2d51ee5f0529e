"""Filling in the masks of a prompt with a masked language model."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from data.tokenizer import ByteTokenizer, Tokenizer
from models.config import ModelConfig
from models.transformer import Params, apply
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked
from objectives.rows import layout
from objectives.rows.lengths import RowShape
from objectives.unilm import UniLM
from train.experiment import Experiment
from train.generate.prompts import check_length, encode
from train.generate.sampling import allowed_tokens


def read_masked_prompt(experiment: Experiment, text: str) -> np.ndarray:
    """The ids, int32 [n], of a prompt with masks. Raises ConfigError where it has none."""
    vocab = experiment.tokenizer.vocab
    mask = vocab.names()[vocab.mask]
    if mask not in text:
        raise ConfigError(f"--prompt has no {mask}, and this run's model fills in masks: put {mask} for each token")
    return encode(experiment.tokenizer, text, re.escape(mask))


def masked_batch(experiment: Experiment, text: np.ndarray) -> Batch:
    """One row of `text`, ids int32 [n] with masks among them, as MLM lays it out: [CLS] text [SEP].

    Where all that the run trains on is UniLM's, of one pattern, the text is read in that; it is not cut in two.

    Raises ConfigError where the text is longer than its row.
    """
    vocab, length = experiment.tokenizer.vocab, experiment.data.inputs_length
    tokens = np.array([[vocab.cls, *text, vocab.sep]], np.int32)
    check_length(tokens.shape[1], length, f"data.inputs_length={length}")
    token_types = np.zeros_like(tokens) if experiment.model.num_token_types else None
    inputs = Sequences(tokens, np.array([tokens.shape[1]]))
    corruptions, order = [denoiser.objective for denoiser in experiment.collator.denoisers], None
    if len(corruptions) == 1 and isinstance(corruptions[0], UniLM):
        order = corruptions[0].order(inputs, np.array([len(text)]))
    examples = Masked(inputs, tokens, tokens == vocab.mask, token_types=token_types, attention_order=order)
    shape = RowShape(experiment.model.architecture, length, 0, 1)
    return layout.encoder_only(examples, np.zeros(1, np.int64), np.zeros(1, np.int32), 1, shape, vocab)


def mask_probabilities(experiment: Experiment, params: Params, text: np.ndarray) -> np.ndarray:
    """float32 [masks, V]: how likely each token is at each mask of `text`, ids int32 [n]. Each mask for itself: the
    model does not know what the others are filled with."""
    vocab = experiment.tokenizer.vocab
    probabilities_1xLxV = _probabilities(experiment.model, params, masked_batch(experiment, text), vocab)
    return np.asarray(probabilities_1xLxV)[0, 1 + np.flatnonzero(text == vocab.mask)]


def fill_masks(text: np.ndarray, probabilities: np.ndarray, vocab: Vocab) -> np.ndarray:
    """`text`, ids int32 [n], each mask replaced by its likeliest token."""
    filled = text.copy()
    filled[text == vocab.mask] = probabilities.argmax(axis=-1)
    return filled


def candidates(tokenizer: Tokenizer, probabilities: np.ndarray, count: int) -> list[str]:
    """For each mask one line: its `count` likeliest tokens, each with its probability."""
    likeliest = np.argsort(-probabilities, axis=-1, kind="stable")[:, :count]
    return [
        "  ".join(f"{token_repr(tokenizer, int(token))} {row[token]:.3f}" for token in tokens)
        for tokens, row in zip(likeliest, probabilities, strict=True)
    ]


def token_repr(tokenizer: Tokenizer, token: int) -> str:
    """A token alone, quoted: a byte that is not a character of its own as '\\xc3', spaces and line ends visible."""
    vocab = tokenizer.vocab
    if isinstance(tokenizer, ByteTokenizer) and vocab.content_start <= token < vocab.content_end:
        return repr(bytes([token - vocab.content_start])).removeprefix("b")
    return repr(tokenizer.decode(np.array([token])))


@functools.partial(jax.jit, static_argnames=("config", "vocab"))
def _probabilities(config: ModelConfig, params: Params, batch: Batch, vocab: Vocab) -> jax.Array:
    logits_BxLxV = apply(config, params, batch)
    return jax.nn.softmax(jnp.where(allowed_tokens(vocab, config.vocab_size), logits_BxLxV, -jnp.inf), axis=-1)
