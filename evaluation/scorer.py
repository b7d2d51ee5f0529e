"""Scores tokens of texts with a run's language model.

Probes, likelihoods and lm-eval score texts by `score_texts`; evaluation/text_losses.py has the losses of an objective.

Examples of similar lengths share a batch. Rows are padded to a few fixed lengths, so that few programs are compiled.
The scores of an example do not depend on the other examples of its batch.

Suffixes: B rows, K hidden tokens of a row, L positions, D model, V vocabulary (rows of the embedding table).
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import track

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from experiment.experiment import Experiment
from generate.fill_masks import attention_order, masked_rows
from generate.prompts import (
    INFILLING_KINDS,
    PROMPT_KINDS,
    denoisers_with_mode,
    first_denoiser,
    lay_out_rows,
    to_sequences,
    with_mode,
)
from generate.sampling import allowed_tokens, hash_of, padded_batch, padded_length, padded_rows, row_parts
from models.config import ModelConfig
from models.parameters import Params
from models.placement import placed
from models.transformer import apply, bind
from objectives import Denoiser
from objectives.objective import InputsTargets
from objectives.prompting import FillMasks, PromptKind
from run import sharding
from run.sharding import constrain_rows

# What a model sees of the text around hidden tokens. "bound": all of it, and the rest of a span of which a random part
# is hidden (`hide_parts`).
Side = Literal["left", "both", "bound"]

_KINDS: dict[Side, tuple[PromptKind, ...]] = {
    "left": tuple(kind for kind in PROMPT_KINDS if kind != "respond"),
    "both": (*INFILLING_KINDS, "fill_masks", "continue"),  # the last one: of any order
    "bound": ("fill_masks",),
}
POSITIONS_PER_BATCH = 1 << 14
LOGITS_PER_BATCH = 1 << 27


class Example(NamedTuple):
    """A text with hidden tokens, laid out for one denoiser. All int32 [n], of different lengths.

    The hidden tokens are predicted after `targets_start` or, with `prompting`, at the masks of `inputs`.
    """

    inputs: np.ndarray
    targets_start: np.ndarray
    hidden: np.ndarray
    prompting: FillMasks | None = None  # of the denoiser, where it fills in masks
    position: int | None = None  # of the first target, as in generate.prompts.Prompt
    places: np.ndarray | None = None  # of `targets_start` and then `hidden`, as in InputsTargets
    weight: float = 1.0  # of the nats, in the sum over the examples of a span


class Scores(NamedTuple):
    """What the model predicts for the hidden tokens of one example, [n] each."""

    nats: np.ndarray  # float64: negative log-likelihood, given the true tokens before it where a decoder predicts it
    is_likeliest: np.ndarray  # bool: whether the token is the model's likeliest one


class _Shape(NamedTuple):
    """The padded lengths of an example. With a single stack `inputs` is the length of the row, and `targets` 0."""

    inputs: int
    targets: int
    hidden: int


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A run's language model, in the layout of the run or of another config.

    Attributes:
      experiment: its `model` is the language model (run.restore.language_model).
      params: the language model's.
      mesh: over whose devices rows are split.
    """

    experiment: Experiment
    params: Params
    mesh: Mesh

    def score(
        self, examples: Iterable[tuple[int, Example]], *, text_only: bool = False, rows_per_batch: int | None = None
    ) -> Iterator[tuple[int, Example, Scores]]:
        """Yields each of `examples` with its number and its scores; not in order.

        Few examples are in memory at the same time, so `examples` may be a generator of millions.

        Args:
          examples: of the experiment's denoisers, each with a number of the caller, such as that of its text.
          text_only: whether probabilities are among the tokens of text (`text_tokens`) in place of all rows of the
            output table, and the likeliest token among them in place of all tokens but pad.
          rows_per_batch: the most rows of a batch, rounded to a multiple of the devices; None: as many as fit. The
            scores do not depend on it, but for rounding.

        Raises ConfigError for an example that is longer than the model's learned positions.
        """
        running = (
            (started, self._start([example for _, example in started], shape, rows, text_only))
            for started, shape, rows in self.batches(examples, rows_per_batch)
        )
        # The next batch is made while the devices compute this one.
        for batch, _ in itertools.pairwise(itertools.chain(running, [None])):
            yield from _finish(*batch)

    def logits(self, batch: Mapping[str, Any]) -> Array:
        """Returns logits, float32 [B, L, V], at the positions of the decoder, or of the encoder without a decoder.

        batch: at least the fields that the model reads: the tokens, segment ids and positions of each stack, and
          decoder_bidirectional_mask for a prefix LM. V is the number of rows of the output table.

        Raises ConfigError for a field that is missing.
        """
        # A batch made by hand may have several segments in a row, whatever the rows of the run have.
        model = dataclasses.replace(self.experiment.model, one_segment=False)
        stacks = [stack for stack, exists in (("encoder", model.has_encoder), ("decoder", model.has_decoder)) if exists]
        needed = [f"{stack}_{name}" for stack in stacks for name in ("input_tokens", "segment_ids", "positions")]
        if model.architecture == "decoder_only" and model.has_prefix:
            needed.append("decoder_bidirectional_mask")
        for name in needed:
            if name not in batch:
                raise ConfigError(
                    f"the batch has no field {name!r}, which this {model.architecture} model reads: add it"
                )
        optional = ("encoder_token_types", "encoder_attention_order", "decoder_attention_order")
        present = (name for name in (*needed, *optional, "decoder_target_positions") if name in batch)
        padded, rows = padded_batch({name: np.asarray(batch[name]) for name in present}, self.mesh)
        over_rows = sharding.batch_sharding(self.mesh)
        with placed(constrain=functools.partial(constrain_rows, sharding=over_rows)):
            return _logits(model, self.params, jax.device_put(padded, over_rows))[:rows]

    def batches(
        self, examples: Iterable[tuple[int, Example]], most: int | None = None
    ) -> Iterator[tuple[list[tuple[int, Example]], _Shape, int]]:
        """Yields batches: numbered examples of one padded shape, the shape, and the rows to pad the batch to."""
        model, parts = self.experiment.model, row_parts(self.mesh)

        def rows_of(shape: _Shape) -> int:
            """The most rows of a batch."""
            rows = POSITIONS_PER_BATCH // (shape.inputs + shape.targets)
            rows = min(rows, LOGITS_PER_BATCH // (shape.hidden * model.vocab_size), most or rows)
            return max(rows // parts, 1) * parts

        waiting: dict[_Shape, list[tuple[int, Example]]] = {}
        for number, example in examples:
            shape = _padded_shape(model, example)
            waiting.setdefault(shape, []).append((number, example))
            if len(waiting[shape]) == rows_of(shape):
                yield waiting.pop(shape), shape, rows_of(shape)
        for shape, rest in waiting.items():
            yield rest, shape, min(padded_rows(len(rest), self.mesh), rows_of(shape))

    def _start(self, examples: list[Example], shape: _Shape, rows: int, text_only: bool) -> tuple[Array, Array]:
        """Starts the computation of a batch, and returns the arrays of Scores, on the devices."""
        experiment = self.experiment
        hidden, positions = np.zeros((2, rows, shape.hidden), np.int32)
        for row, example in enumerate(examples):
            count = len(example.hidden)
            hidden[row, :count], positions[row, :count] = example.hidden, _positions(experiment, example)
        over_rows = sharding.batch_sharding(self.mesh)
        arrays = jax.device_put((batch_of(experiment, examples, shape, rows), positions, hidden), over_rows)
        with placed(constrain=functools.partial(constrain_rows, sharding=over_rows)):
            return _scores(experiment.model, self.params, *arrays, vocab=experiment.vocab, text_only=text_only)


class TextScores(NamedTuple):
    """What a model predicts for the hidden tokens of texts: one entry for each text.

    Unknown tokens are SentencePiece's unk, whose text is not known. They have no bytes.
    """

    nats: np.ndarray  # float64 [n], of the tokens that are not unknown
    tokens: np.ndarray  # int64 [n], that are not unknown
    bytes: np.ndarray  # int64 [n], of UTF-8
    unknown_nats: np.ndarray  # float64 [n], of unknown tokens
    unknown_tokens: np.ndarray  # int64 [n]
    is_exact: np.ndarray  # bool [n]: whether every hidden token is the model's likeliest one


def score_texts(
    model: LanguageModel,
    denoiser: Denoiser,
    texts: Sequence[np.ndarray],
    spans: Sequence[Iterable[tuple[int, int]]],
    *,
    text_only: bool = False,
    rows_per_batch: int | None = None,
    draws: int = 0,
    show_progress: bool = False,
) -> TextScores:
    """Returns the sums of the scores of each text over its hidden spans.

    With draws the nats of a span estimate a bound, and no text `is_exact`.

    Args:
      denoiser: how tokens are hidden: of `find_denoiser`.
      texts: ids, int32 [length] each.
      spans: start and end of the spans of each text, which are hidden one at a time.
      text_only, rows_per_batch: as in `LanguageModel.score`.
      draws: random parts of each span that are hidden (`hide_parts`); 0: the whole span is.
      show_progress: whether to draw a bar on standard error, if it is a terminal.
    """
    vocab, num_bytes = model.experiment.vocab, model.experiment.tokenizer.num_bytes
    nats, unknown_nats = np.zeros((2, len(texts)))
    tokens, bytes_, unknown_tokens = np.zeros((3, len(texts)), np.int64)
    is_exact = np.full(len(texts), not draws)
    is_silent = not (show_progress and sys.stderr.isatty())
    bar = track(texts, "scoring", console=Console(stderr=True), disable=is_silent, transient=True)

    def examples() -> Iterator[tuple[int, Example]]:
        for k, (text, of_text) in enumerate(zip(bar, spans, strict=True)):
            for start, stop in of_text:
                num_unknown = int((text[start:stop] == vocab.unk).sum())
                tokens[k] += stop - start - num_unknown
                unknown_tokens[k] += num_unknown
                bytes_[k] += num_bytes(text[start:stop])
                if draws:
                    yield from ((k, part) for part in hide_parts(denoiser, text, start, stop, draws, vocab))
                else:
                    yield k, hide(denoiser, text, start, stop, vocab)

    for k, example, scores in model.score(examples(), text_only=text_only, rows_per_batch=rows_per_batch):
        is_known = example.hidden != vocab.unk
        nats[k] += example.weight * scores.nats[is_known].sum()
        unknown_nats[k] += example.weight * scores.nats[~is_known].sum()
        is_exact[k] &= scores.is_likeliest.all()
    return TextScores(nats, tokens, bytes_, unknown_nats, unknown_tokens, is_exact)


def hide(denoiser: Denoiser, text: np.ndarray, start: int, stop: int, vocab: Vocab) -> Example:
    """Returns `text`, int32 [n], with its tokens `start`, ..., `stop` - 1 hidden as in the training of `denoiser`.

    denoiser: one that hides such tokens (`find_denoiser`).
    """
    laid_out = denoiser.objective.prompting.hide(text, start, stop, vocab)
    assert laid_out is not None, denoiser.name
    inputs, targets_start, position, places = with_mode(denoiser, laid_out, vocab)
    prompting = denoiser.objective.prompting if isinstance(denoiser.objective.prompting, FillMasks) else None
    return Example(inputs, targets_start, text[start:stop], prompting, position, places)


def hide_parts(
    denoiser: Denoiser, text: np.ndarray, start: int, stop: int, draws: int, vocab: Vocab
) -> Iterator[Example]:
    """Yields `text`, int32 [n], `draws` times, with a random part of its tokens `start`, ..., `stop` - 1 hidden.

    k of these n tokens are hidden, k uniform in 1..n, with the weight n / k, so that the weighted sum of nats estimates
    the any-order bound of objectives/masked_diffusion.py on the nats of the span, given the rest of the text. The draws
    of k are spread evenly; all are a function of the text and the span.

    denoiser: one of the side "bound" (`find_denoiser`).
    """
    prompting, length = denoiser.objective.prompting, stop - start
    assert isinstance(prompting, FillMasks) and not denoiser.mode
    random = np.random.default_rng([start, stop, hash_of(text)])
    counts = 1 + np.floor((np.arange(draws) + random.random()) / draws * length).astype(int)
    for count in counts.tolist():
        places = np.sort(start + random.permutation(length)[:count])
        shown = text.copy()
        shown[places] = vocab.mask
        inputs, targets_start, *_ = prompting.lay_out(shown, vocab)
        yield Example(inputs, targets_start, text[places], prompting, weight=length / count / draws)


def find_denoiser(experiment: Experiment, side: Side, mode: str | None) -> Denoiser | None:
    """Returns the first denoiser that hides the end of a text ("left"), or tokens within a text ("both").

    "bound": the first one that is trained on the bound of objectives/masked_diffusion.py.

    mode: a mode token, which restricts the choice to the denoisers with this mode; None: all denoisers.

    None if the run has no such denoiser. Raises ConfigError if no denoiser has the mode.
    """
    start, stop = (1, 3) if side == "left" else (1, 2)  # models of responses hide the end alone
    candidates = [
        denoiser
        for denoiser in denoisers_with_mode(experiment, mode)
        if denoiser.objective.prompting.hide(np.zeros(3, np.int32), start, stop, experiment.vocab) is not None
        and (side != "left" or not isinstance(denoiser.objective.prompting, FillMasks))
        and (side != "bound" or denoiser.objective.prompting.bounds_likelihood)
    ]
    if side == "both" and not experiment.model.has_decoder:
        order = attention_order(experiment, np.zeros((1, 5), np.int32))
        if order is not None and order.any():  # a UniLM pattern that sees one side alone
            return None
    return first_denoiser(candidates, _KINDS[side])


def text_tokens(vocab: Vocab, num_ids: int) -> np.ndarray:
    """Returns which ids of a table of `num_ids` embeddings occur in text, bool [num_ids]: ordinary tokens and unk.

    Without pad, EOS, BOS, the mask, [CLS], [SEP], mode tokens, sentinels and rows beyond the vocabulary.
    """
    ids = np.arange(num_ids)
    return ((ids >= vocab.content_start) & (ids < vocab.content_end)) | (ids == vocab.unk)


def _finish(started: list[tuple[int, Example]], outputs: tuple[Array, Array]) -> Iterator[tuple[int, Example, Scores]]:
    nats_BxK, is_likeliest_BxK = jax.device_get(outputs)
    for (number, example), nats, is_likeliest in zip(started, nats_BxK, is_likeliest_BxK, strict=False):
        count = len(example.hidden)
        yield number, example, Scores(nats[:count].astype(np.float64), is_likeliest[:count])


def _padded_shape(model: ModelConfig, example: Example) -> _Shape:
    inputs, targets = len(example.inputs), len(example.targets_start) + len(example.hidden)
    if example.prompting is not None:
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
    return _Shape(inputs_length, targets_length, padded_length(len(example.hidden)) if len(example.hidden) > 1 else 1)


def batch_of(experiment: Experiment, examples: list[Example], shape: _Shape, rows: int) -> Batch:
    """Returns the fields of a batch of `rows` rows that the model reads, one example in each.

    The last rows repeat the last example.
    """
    examples = examples + [examples[-1]] * (rows - len(examples))
    inputs = to_sequences([example.inputs for example in examples])
    if (prompting := examples[0].prompting) is not None:
        order = attention_order(experiment, inputs.tokens)
        batch = masked_rows(experiment, inputs, shape.inputs, prompting, order)
    else:
        targets = to_sequences([np.concatenate([example.targets_start, example.hidden]) for example in examples])
        positions, places = [example.position for example in examples], None
        if examples[0].places is not None:
            places = to_sequences([example.places for example in examples]).tokens
        laid_out = InputsTargets(inputs, targets, places=places)
        batch = lay_out_rows(experiment, laid_out, positions, shape.inputs, shape.targets)
    return {name: array for name, array in batch.items() if not name.endswith(("target_tokens", "weights", "source"))}


def _positions(experiment: Experiment, example: Example) -> np.ndarray:
    """Returns the positions, int [n], at which the scored stack predicts the hidden tokens."""
    if example.prompting is not None:
        return np.flatnonzero(example.inputs == experiment.vocab.mask)
    start = len(example.targets_start) + (0 if experiment.model.has_encoder else len(example.inputs))
    return start + np.arange(len(example.hidden))


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


_logits = jax.jit(apply, static_argnames="config")
