"""Scores hidden tokens: batches of examples of similar lengths, and the model's nats of each hidden token.

Rows are padded to a few fixed lengths, so that few programs are compiled. The scores of an example do not depend on the
other examples of its batch.

Suffixes: B rows, K hidden tokens of a row, L positions, V vocabulary (rows of the embedding table).
"""

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from experiment.experiment import Experiment
from generate.answers import padded_length, padded_rows
from generate.fill_masks import masked_rows
from generate.prompts import lay_out_rows, to_sequences
from generate.sampling import allowed_tokens
from models.config import ModelConfig
from models.parameters import Params
from models.placement import activation_constraint
from models.transformer import bind
from objectives import Denoiser
from objectives.objective import InputsTargets
from run import sharding
from run.per_device import constrain_rows

_POSITIONS_PER_BATCH = 1 << 14
_LOGITS_PER_BATCH = 1 << 27


class Example(NamedTuple):
    """A text with hidden tokens, laid out for one denoiser. All int32 [n], of different lengths.

    A decoder predicts the hidden tokens after `targets_start`. An encoder predicts them at the masks of `inputs`.
    """

    inputs: np.ndarray
    targets_start: np.ndarray
    hidden: np.ndarray


class Scores(NamedTuple):
    """What the model predicts for the hidden tokens of one example, [n] each."""

    nats: np.ndarray  # float64: negative log-likelihood, given the true tokens before it where a decoder predicts it
    is_likeliest: np.ndarray  # bool: whether the token is the model's likeliest one


def hide(denoiser: Denoiser, text: np.ndarray, start: int, stop: int, vocab: Vocab) -> Example | None:
    """Returns `text`, int32 [n], with its tokens `start`, ..., `stop` - 1 hidden as `denoiser` hides them in training.

    None if the denoiser hides no such tokens.
    """
    laid_out = denoiser.objective.prompting.hide(text, start, stop, vocab)
    if laid_out is None:
        return None
    mode = [vocab.mode(denoiser.mode)] if denoiser.mode else []
    return Example(np.array([*mode, *laid_out.inputs], np.int32), laid_out.targets_start, text[start:stop])


def score(
    experiment: Experiment,
    params: Params,
    mesh: Mesh,
    examples: Iterable[Example],
    *,
    text_only: bool = False,
    positions_per_batch: int = _POSITIONS_PER_BATCH,
    rows_per_batch: int | None = None,
) -> Iterator[tuple[int, Scores]]:
    """Yields the number of each of `examples`, from 0, and its scores; not in order.

    Few examples are in memory at the same time, so `examples` may be a generator of millions.

    Args:
      experiment: its model is the language model (run.restore.language_model).
      params: the language model's.
      mesh: over whose devices rows are split.
      examples: of this experiment's denoisers.
      text_only: whether probabilities are among the tokens of text (`text_tokens`) in place of all rows of the output
        table, and the likeliest token among them in place of all tokens but pad.
      positions_per_batch: about how many positions a batch has. The scores do not depend on it, except for rounding.
      rows_per_batch: the most rows of a batch, rounded to a multiple of the devices; None: as many as the positions
        allow.

    Raises ConfigError for an example that is longer than the model's learned positions.
    """
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    start = functools.partial(_start, experiment, params, mesh, text_only)
    waiting: dict[tuple[int, int, int], list[tuple[int, Example]]] = {}
    running: tuple[list[tuple[int, Example]], Array] | None = None
    for number, example in enumerate(examples):
        shape = _padded_shape(experiment.model, example)
        waiting.setdefault(shape, []).append((number, example))
        rows = _rows_per_batch(shape, experiment.model.vocab_size, positions_per_batch, rows_per_batch, parts)
        if len(waiting[shape]) == rows:
            # The next batch is made while the devices compute this one.
            started = waiting.pop(shape)
            next_running = started, start(started, shape, rows)
            yield from _finish(running)
            running = next_running
    for shape, started in waiting.items():
        most = _rows_per_batch(shape, experiment.model.vocab_size, positions_per_batch, rows_per_batch, parts)
        rows = min(-(-padded_rows(len(started)) // parts) * parts, most)
        next_running = started, start(started, shape, rows)
        yield from _finish(running)
        running = next_running
    yield from _finish(running)


def _finish(running) -> Iterator[tuple[int, Scores]]:
    if running is None:
        return
    started, outputs = running
    nats_BxK, is_likeliest_BxK = jax.device_get(outputs)
    for (number, example), nats, is_likeliest in zip(started, nats_BxK, is_likeliest_BxK, strict=False):
        count = len(example.hidden)
        yield number, Scores(nats[:count].astype(np.float64), is_likeliest[:count])


def _padded_shape(model: ModelConfig, example: Example) -> tuple[int, int, int]:
    """Returns the padded lengths of an example's inputs, targets and hidden tokens.

    With a single stack the first length is that of the row, and the second 0.
    """
    inputs, targets = len(example.inputs), len(example.targets_start) + len(example.hidden)
    if not model.has_decoder:
        lengths = (inputs, 0)
    elif model.has_encoder:
        lengths = (max(inputs, 1), targets)
    else:
        lengths = (inputs + targets, 0)
    longest = max(lengths)
    if model.positions == "learned" and longest > model.max_length:
        raise ConfigError(
            f"a text takes {longest} positions, special tokens included, and the model has {model.max_length} learned "
            "positions: set a smaller --length, or leave out longer sentences"
        )
    most = model.max_length if model.positions == "learned" else longest * 2 + 16
    inputs_length, targets_length = (min(padded_length(length), most) for length in lengths)
    return inputs_length, targets_length, padded_length(len(example.hidden)) if len(example.hidden) > 1 else 1


def _rows_per_batch(shape: tuple[int, int, int], vocab_size: int, positions: int, most: int | None, parts: int) -> int:
    inputs_length, targets_length, hidden = shape
    rows = min(positions // (inputs_length + targets_length), _LOGITS_PER_BATCH // (hidden * vocab_size))
    if most is not None:
        rows = min(rows, most)
    return max(rows // parts, 1) * parts


def _start(
    experiment: Experiment,
    params: Params,
    mesh: Mesh,
    text_only: bool,
    started: list[tuple[int, Example]],
    shape: tuple[int, int, int],
    rows: int,
) -> Array:
    """Starts the computation of a batch of `rows` rows, of which the last ones repeat the last example."""
    examples = [example for _, example in started]
    examples += [examples[-1]] * (rows - len(examples))
    batch = _batch(experiment, examples, shape)
    hidden, positions = np.zeros((2, rows, shape[2]), np.int32)
    for row, example in enumerate(examples):
        count = len(example.hidden)
        hidden[row, :count], positions[row, :count] = example.hidden, _positions(experiment, example)
    over_rows = sharding.batch_sharding(mesh)
    arrays = jax.device_put((batch, positions, hidden), over_rows)
    with activation_constraint(functools.partial(constrain_rows, sharding=over_rows)):
        return _scores(experiment.model, params, *arrays, vocab=experiment.vocab, text_only=text_only)


def _batch(experiment: Experiment, examples: list[Example], shape: tuple[int, int, int]) -> Batch:
    """Returns the fields of a batch that the model reads, one example in each row."""
    inputs = to_sequences([example.inputs for example in examples])
    if not experiment.model.has_decoder:
        batch = masked_rows(experiment, inputs, shape[0])
    else:
        targets = to_sequences([np.concatenate([example.targets_start, example.hidden]) for example in examples])
        batch = lay_out_rows(experiment, InputsTargets(inputs, targets), *shape[:2])
    return {name: array for name, array in batch.items() if not name.endswith(("target_tokens", "weights", "source"))}


def _positions(experiment: Experiment, example: Example) -> np.ndarray:
    """Returns the positions, int [n], at which the scored stack predicts the hidden tokens."""
    if not experiment.model.has_decoder:
        return np.flatnonzero(example.inputs == experiment.vocab.mask)
    start = len(example.targets_start) + (0 if experiment.model.has_encoder else len(example.inputs))
    return start + np.arange(len(example.hidden))


def text_tokens(vocab: Vocab, num_ids: int) -> np.ndarray:
    """Returns which ids of a table of `num_ids` embeddings occur in text, bool [num_ids]: ordinary tokens and unk.

    Without pad, EOS, BOS, the mask, [CLS], [SEP], mode tokens, sentinels and rows beyond the vocabulary.
    """
    ids = np.arange(num_ids)
    return ((ids >= vocab.content_start) & (ids < vocab.content_end)) | (ids == vocab.unk)


@functools.partial(jax.jit, static_argnames=("config", "vocab", "text_only"))
def _scores(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    positions_BxK: Array,
    hidden_BxK: Array,
    *,
    vocab: Vocab,
    text_only: bool,
) -> tuple[Array, Array]:
    """Returns each hidden token's nats, float32 [B, K], and whether it is the likeliest token, bool [B, K]."""
    transformer = bind(config, params)
    states_BxLxD = transformer.hidden(batch)
    logits_BxKxV = transformer.logits(jnp.take_along_axis(states_BxLxD, positions_BxK[..., None], axis=1))
    logits_BxKxV = logits_BxKxV.astype(jnp.float32)
    if text_only:
        logits_BxKxV = jnp.where(text_tokens(vocab, config.vocab_size), logits_BxKxV, -jnp.inf)
    of_hidden_BxK = jnp.take_along_axis(logits_BxKxV, hidden_BxK[..., None], axis=-1)[..., 0]
    nats_BxK = jax.nn.logsumexp(logits_BxKxV, axis=-1) - of_hidden_BxK
    allowed_V = allowed_tokens(vocab, config.vocab_size)
    likeliest_BxK = jnp.argmax(jnp.where(allowed_V, logits_BxKxV, -jnp.inf), axis=-1)
    return nats_BxK, likeliest_BxK == hidden_BxK
