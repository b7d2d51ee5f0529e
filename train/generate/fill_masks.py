"""Fills in the masks of a prompt with a masked language model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from data.tokenizer import ByteTokenizer, Tokenizer
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import apply
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked
from objectives.prompting import FillMasks
from objectives.rows import layout
from objectives.rows.lengths import RowShape
from train.experiment import Experiment
from train.generate.prompts import check_length, encode, not_a_language_model
from train.generate.sampling import allowed_tokens


def read_masked_prompt(experiment: Experiment, text: str) -> np.ndarray:
    """Returns the ids, int32 [n], of a prompt with masks.

    Raises ConfigError if the prompt has no mask, and for a run that does not train the prediction of tokens.
    """
    vocab, prompting = experiment.vocab, experiment.denoisers[0].objective.prompting
    if prompting is None:
        raise not_a_language_model(experiment)
    tokens = encode(experiment.tokenizer, text, prompting.special_tokens(vocab))
    if vocab.mask not in tokens:
        mask = vocab.names()[vocab.mask]
        raise ConfigError(f"--prompt has no {mask}, and this run's model fills in masks: write {mask} for each token")
    return tokens


def masked_batch(experiment: Experiment, text: np.ndarray) -> Batch:
    """Returns a batch of one row, [CLS] text [SEP] as in MLM. text: ids int32 [n] with masks.

    A run with a single UniLM pattern reads the text in this pattern, with the text as a single segment.

    Raises ConfigError if the text is longer than a row.
    """
    vocab, length = experiment.vocab, experiment.data.inputs_length
    tokens = experiment.denoisers[0].objective.prompting.lay_out(text, vocab).inputs[None]
    check_length(tokens.shape[1], length, f"data.inputs_length={length}")
    order = attention_order(experiment, tokens)
    return masked_rows(experiment, Sequences(tokens, np.array([tokens.shape[1]])), length, order)


def attention_order(experiment: Experiment, tokens: np.ndarray) -> np.ndarray | None:
    """Returns the attention order, int32 [1, W], of a run with a single UniLM pattern. tokens: laid out, int32 [1, W].

    None for a run with several patterns, or with none: all tokens attend to each other.
    """
    prompting = experiment.denoisers[0].objective.prompting
    has_one_pattern = len(experiment.denoisers) == 1 and isinstance(prompting, FillMasks)
    return prompting.attention_order(tokens) if has_one_pattern else None


def masked_rows(experiment: Experiment, inputs: Sequences, length: int, order: np.ndarray | None = None) -> Batch:
    """Returns a batch of rows of `length` positions, one for each of `inputs`, laid out and with masks to predict.

    The targets are the inputs: what the masks hide is not known here. order: the attention order, int32 [E, W].
    """
    tokens, vocab, num_rows = inputs.tokens, experiment.vocab, len(inputs.lengths)
    token_types = np.zeros_like(tokens) if experiment.model.num_token_types else None
    examples = Masked(inputs, tokens, tokens == vocab.mask, token_types=token_types, attention_order=order)
    shape = RowShape(experiment.model.architecture, length, 0, 1)
    return layout.encoder_only(examples, np.arange(num_rows), np.zeros(num_rows, np.int32), num_rows, shape, vocab)


def mask_probabilities(experiment: Experiment, params: Params, text: np.ndarray) -> np.ndarray:
    """Returns the probability of each token at each mask of `text`, ids int32 [n]: float32 [masks, V].

    Masks are independent: the prediction at a mask does not depend on how the other masks are filled.
    """
    vocab = experiment.vocab
    probabilities_1xLxV = _probabilities(experiment.model, params, masked_batch(experiment, text), vocab)
    return np.asarray(probabilities_1xLxV)[0, 1 + np.flatnonzero(text == vocab.mask)]


def candidates(tokenizer: Tokenizer, probabilities: np.ndarray, count: int) -> list[str]:
    """Returns a line for each mask: the `count` likeliest tokens with their probabilities."""
    likeliest = np.argsort(-probabilities, axis=-1, kind="stable")[:, :count]
    return [
        "  ".join(f"{token_repr(tokenizer, int(token))} {row[token]:.3f}" for token in tokens)
        for tokens, row in zip(likeliest, probabilities, strict=True)
    ]


def token_repr(tokenizer: Tokenizer, token: int) -> str:
    """Returns a token in quotes, with white space, and bytes that are only a part of a character, escaped."""
    vocab = tokenizer.vocab
    if isinstance(tokenizer, ByteTokenizer) and vocab.content_start <= token < vocab.content_end:
        return repr(bytes([token - vocab.content_start])).removeprefix("b")
    return repr(tokenizer.decode(np.array([token])))


@functools.partial(jax.jit, static_argnames=("config", "vocab"))
def _probabilities(config: ModelConfig, params: Params, batch: Batch, vocab: Vocab) -> jax.Array:
    logits_BxLxV = apply(config, params, batch)
    return jax.nn.softmax(jnp.where(allowed_tokens(vocab, config.vocab_size), logits_BxLxV, -jnp.inf), axis=-1)
