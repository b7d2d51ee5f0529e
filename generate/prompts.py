"""Prompts: which denoiser of a run reads a prompt, and the batch in which the model reads it."""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import GENERAL_NAMES, Vocab, sentinel_name
from experiment.experiment import Experiment
from objectives import Denoiser
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, RowShape
from objectives.prompting import Prompting, PromptKind, PromptTokens
from objectives.rows import layout
from run.restore import not_a_language_model

_SENTINEL = re.compile(re.escape(sentinel_name(0)).replace("0", r"\d+"))
PROMPT_KINDS: tuple[PromptKind, ...] = ("respond", "continue", "infill_middle", "infill_spans", "rewrite")
INFILLING_KINDS: tuple[PromptKind, ...] = ("infill_spans", "infill_middle", "rewrite")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt for a model with a decoder. All ids are int32 [n].

    Attributes:
      denoiser: the denoiser whose layout the prompt has.
      text: the prompt's own tokens, with sentinels at the places to fill in.
      inputs: what the model reads before it answers, as in training: with mode token, sentinel and EOS.
      targets_start: the first tokens of the targets, given; the prompt itself for a causal model.
      position: of the first token of the targets, as in PromptTokens, the mode token counted.
    """

    denoiser: Denoiser
    text: np.ndarray
    inputs: np.ndarray
    targets_start: np.ndarray
    position: int | None = None

    @property
    def prompting(self) -> Prompting:
        """How the denoiser's objective lays out prompts and answers."""
        return self.denoiser.objective.prompting


def read_prompt(
    experiment: Experiment, text: str, mode: str | None, where: str = "--prompt"
) -> tuple[Prompt, list[str]]:
    """Returns `text` as a prompt for a denoiser of the run, and notes for the user.

    Kinds are tried in the order of PROMPT_KINDS or, if the text has sentinels ("<extra_id_0>"), of INFILLING_KINDS. The
    prompt is for the first denoiser of the first kind that the run has, with prefix LM before CLM. If this denoiser
    fills in spans and the text has no sentinel, a sentinel is appended.

    mode: a mode token, which restricts the choice to the denoisers with this mode; None: all denoisers.
    where: names the prompt in messages.

    Raises ConfigError if no denoiser of the run accepts the prompt or has the mode, and for a mask ("[MASK]") where the
    run fills in spans and no masks.
    """
    tokenizer, vocab, notes = experiment.tokenizer, experiment.vocab, []
    text = _with_general_names(text, vocab)
    num_sentinels = len(_SENTINEL.findall(text))
    marks = [name for name, id_ in vocab.ids_by_name().items() if id_ == vocab.mask >= 0]
    found = next((name for name in [*marks, GENERAL_NAMES["mask"]] if name in text), "")
    denoiser = _choose_denoiser(experiment, mode, where, has_sentinels=num_sentinels > 0, has_masks=bool(found))
    prompting = denoiser.objective.prompting
    if found and vocab.mask not in prompting.special_tokens(vocab):
        _check_fills_no_spans(experiment, mode, f"{where} has {found}")
    max_sentinels = prompting.max_sentinels(vocab)
    if max_sentinels is not None:
        _check_sentinels(text, vocab, max_sentinels, where)
    for name in dict.fromkeys(denoiser.mode for denoiser in experiment.denoisers if denoiser.mode):
        if name in text:
            notes.append(f"{name} in the prompt is read as ordinary text; choose a mode with --mode")
    if mode is None and not notes and len({other.mode for other in denoisers_with_mode(experiment, None)}) > 1:
        token = f"mode token {denoiser.mode}" if denoiser.mode else "no mode token"
        notes.append(f"denoiser {denoiser.name} reads the prompt, with {token}; choose another mode with --mode")
    if not text and not prompting.allows_empty:
        raise ConfigError(f"{where} is empty, and this run's model continues or fills in a text: write a prompt")
    if prompting.kind == "infill_spans" and not num_sentinels:
        first = sentinel_name(0)
        notes.append(f"{denoiser.name} fills in spans and the prompt marks none, so {first} was appended to the prompt")
        text += first
    tokens = tokenizer.encode_with_specials(text, prompting.special_tokens(vocab), where=where)
    return make_prompt(denoiser, tokens, vocab), notes


def make_prompt(denoiser: Denoiser, text: np.ndarray, vocab: Vocab) -> Prompt:
    """Returns `text`, ids int32 [n], laid out as `denoiser` lays out the same tokens in training."""
    laid_out = with_mode(denoiser, denoiser.objective.prompting.lay_out(text, vocab), vocab)
    return Prompt(denoiser, text, laid_out.inputs, laid_out.targets_start, laid_out.position)


def with_mode(denoiser: Denoiser, tokens: PromptTokens, vocab: Vocab) -> PromptTokens:
    """Returns `tokens` with the mode token of `denoiser`, if it has one, before the inputs."""
    if not denoiser.mode:
        return tokens
    inputs = np.array([vocab.mode(denoiser.mode), *tokens.inputs], np.int32)
    position = None if tokens.position is None else tokens.position + 1
    return tokens._replace(inputs=inputs, position=position)  # no text with a mode token has `places`


def max_answer_length(experiment: Experiment, prompt: Prompt, where: str = "--prompt") -> int:
    """Returns the number of positions for an answer that `prompt` leaves in a row of training, at least 1.

    Raises ConfigError if the prompt leaves none; `where` names the prompt.
    """
    data = experiment.data
    if experiment.model.has_encoder:
        check_length(len(prompt.inputs), data.inputs_length, f"data.inputs_length={data.inputs_length}", where)
        given, row, field = len(prompt.targets_start), data.targets_length, "targets_length"
    else:
        given, row, field = len(prompt.inputs) + len(prompt.targets_start), data.inputs_length, "inputs_length"
    check_length(given, row - 1, f"data.{field}={row}, with one position for an answer,", where)
    # The positions of the text, where the targets have these.
    is_in_text = experiment.model.has_encoder and prompt.position is not None
    return min(row - given, data.inputs_length - prompt.position) if is_in_text else row - given


def prompt_length(experiment: Experiment, prompt: Prompt) -> int:
    """Returns the number of decoder positions of `prompt`; the last one predicts the first new token."""
    return 1 + len(prompt.targets_start) + (0 if experiment.model.has_encoder else len(prompt.inputs))


def first_position(experiment: Experiment, prompt: Prompt) -> int:
    """Returns the decoder position that predicts the first new token."""
    before = prompt_length(experiment, prompt) - 1
    return before + (prompt.position or 0) if experiment.model.has_encoder else before


def prompt_batch(experiment: Experiment, prompts: Sequence[Prompt], length: int | None = None) -> Batch:
    """Returns a row of each of `prompts` as in training. The last decoder position predicts the first new token.

    length: decoder positions of a row; None: those of the longest prompt. Shorter prompts have padding before them in
      the decoder, and after them in the encoder.
    """
    data, model, vocab = experiment.data, experiment.model, experiment.vocab
    lengths = np.array([prompt_length(experiment, prompt) for prompt in prompts])
    length = int(lengths.max()) if length is None else length
    inputs = to_sequences([prompt.inputs for prompt in prompts])
    # Inputs are targets shifted right, which drops the last target: append one, so that all given tokens are inputs.
    targets = to_sequences([np.append(prompt.targets_start, np.int32(vocab.eos)) for prompt in prompts])
    shape = (data.inputs_length, length) if model.has_encoder else (length, 0)
    positions = [prompt.position for prompt in prompts]
    batch = lay_out_rows(experiment, InputsTargets(inputs, targets), positions, *shape)
    padding_first = (np.arange(length) + lengths[:, None]) % length
    return {
        name: np.take_along_axis(array, padding_first, axis=1) if name.startswith("decoder") else array
        for name, array in batch.items()
    }


def to_sequences(arrays: Sequence[np.ndarray]) -> Sequences:
    """Returns token ids, int32 [n] of different lengths, as the rows of one array."""
    lengths = np.array([len(array) for array in arrays])
    tokens = np.zeros((len(arrays), int(lengths.max())), np.int32)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(arrays)
    return Sequences(tokens, lengths)


def lay_out_rows(
    experiment: Experiment,
    examples: InputsTargets,
    positions: Sequence[int | None],
    inputs_length: int,
    targets_length: int,
) -> Batch:
    """Returns E examples for a model with a decoder, one in each row, as in training.

    positions: of the first target of each example, as in PromptTokens; the next ones follow it.
    inputs_length, targets_length: positions of a row, as in RowShape.
    """
    model, num_rows = experiment.model, len(examples.inputs.lengths)
    if any(position is not None for position in positions):
        after = np.zeros(num_rows, np.int64) if model.has_encoder else examples.inputs.lengths
        first = np.array([p if p is not None else q for p, q in zip(positions, after, strict=True)])
        of_targets = first[:, None] + np.arange(examples.targets.tokens.shape[1])
        examples = examples._replace(positions=of_targets.astype(np.int32))
    shape = RowShape(model.architecture, inputs_length, targets_length, 1)
    place = layout.encoder_decoder
    if not model.has_encoder:
        place = functools.partial(layout.decoder_only, bidirectional_inputs=experiment.data.bidirectional_inputs)
    return place(examples, np.arange(num_rows), np.zeros(num_rows, np.int32), num_rows, shape, experiment.vocab)


def check_length(needed: int, available: int, field: str, where: str = "--prompt") -> None:
    """Raises ConfigError if a prompt needs more positions than `field` makes available; `where` names the prompt."""
    if needed > available:
        raise ConfigError(
            f"{where} has {needed} tokens, special tokens included, but {field} allows {available}: shorten the prompt"
        )


def _with_general_names(text: str, vocab: Vocab) -> str:
    """Returns `text` with the sentinels that have other names in the tokenizer's model as <extra_id_0> and so on."""
    names = vocab.names()
    for k, id_ in enumerate(vocab.sentinel_ids):
        text = text.replace(names[id_], sentinel_name(k))
    return text


def _check_fills_no_spans(experiment: Experiment, mode: str | None, what: str) -> None:
    """Raises ConfigError for a prompt with a mask where a denoiser fills in spans. what: the message begins so.

    A model that only continues texts reads the mask's name as text.
    """
    if any(d.objective.prompting.kind == "infill_spans" for d in denoisers_with_mode(experiment, mode)):
        raise ConfigError(
            f"{what}, and this run's model fills in sentinels, not masks: write {sentinel_name(0)}, {sentinel_name(1)} "
            "and so on in its place"
        )


def _check_sentinels(text: str, vocab: Vocab, most: int, where: str) -> None:
    """Raises ConfigError if `text` has more than `most` sentinels, or sentinels not numbered in order from 0."""
    written = _SENTINEL.findall(text)
    if len(written) > most:
        why = "this run's model fills in one" if most == 1 else f"data.num_sentinels={vocab.num_sentinels}"
        raise ConfigError(f"{where} has {len(written)} sentinels, but {why}: use {most} or fewer")
    expected = [sentinel_name(k) for k in range(len(written))]
    if written != expected:
        raise ConfigError(f"{where} has the sentinels {', '.join(written)}: number them {', '.join(expected)}")


def denoisers_with_mode(experiment: Experiment, mode: str | None) -> list[Denoiser]:
    """Returns the run's denoisers that predict tokens and have this mode token; None: all that predict tokens.

    Raises ConfigError if there are none.
    """
    denoisers = [denoiser for denoiser in experiment.denoisers if denoiser.objective.prompting is not None]
    if not denoisers:
        raise not_a_language_model(experiment)
    modes = list(dict.fromkeys(repr(denoiser.mode) for denoiser in denoisers if denoiser.mode))
    candidates = [denoiser for denoiser in denoisers if mode is None or denoiser.mode == mode]
    if not candidates:
        available = f"its denoisers have {', '.join(modes)}" if modes else "it has none, so omit --mode"
        raise ConfigError(f"--mode={mode!r} is not a mode of this run: {available}")
    return candidates


def first_denoiser(denoisers: Sequence[Denoiser], kinds: Sequence[PromptKind]) -> Denoiser | None:
    """Returns the first denoiser of the first kind that one of `denoisers` has, with prefix LM before CLM."""
    for kind in kinds:
        suitable = [denoiser for denoiser in denoisers if denoiser.objective.prompting.kind == kind]
        if suitable:
            return max(suitable, key=lambda denoiser: denoiser.objective.has_inputs)
    return None


def _choose_denoiser(
    experiment: Experiment, mode: str | None, where: str, *, has_sentinels: bool, has_masks: bool
) -> Denoiser:
    candidates, vocab = denoisers_with_mode(experiment, mode), experiment.vocab
    if has_masks:  # for one that reads them as masks, if there is one
        of_masks = [d for d in candidates if vocab.mask in d.objective.prompting.special_tokens(vocab)]
        candidates = of_masks or candidates
    denoiser = first_denoiser(candidates, INFILLING_KINDS if has_sentinels else PROMPT_KINDS)
    if denoiser is not None:
        return denoiser
    subject = "this run" if mode is None else f"--mode={mode!r}"
    others = {
        repr(d.mode): None
        for d in denoisers_with_mode(experiment, None)
        if d.objective.prompting.kind == "infill_spans"
    }
    remedy = f", or choose --mode={' or '.join(others)}" if others else ""
    raise ConfigError(f"{where} has sentinels, and {subject} fills in no spans: remove them{remedy}")
