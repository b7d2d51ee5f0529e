"""Prompts laid out as the objective lays out its training examples, and answers put back into them."""

import dataclasses
import re
from typing import Literal

import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from data.tokenizer import Tokenizer
from objectives import CLM, FIM, SFT, IIDDenoising, PrefixLM, SpanCorruption
from objectives.algebra.sequences import Sequences
from objectives.objective import Denoiser, InputsTargets, Objective
from objectives.rows import layout
from objectives.rows.lengths import RowShape
from train.experiment import Experiment

_SENTINEL = r"<extra_id_\d+>"  # as Vocab.names() writes them

Use = Literal["continue", "respond", "fill_spans", "fill_middle", "rewrite"]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt of a model with a decoder; all ids int32 [n].

    text: the prompt's own tokens, sentinels among them where spans are to be filled in.
    inputs: what the model reads before it answers: as in training, with mode token, sentinel and EOS.
    targets_start: the first tokens of the targets, given: the prompt itself for a causal model.
    """

    denoiser: Denoiser
    text: np.ndarray
    inputs: np.ndarray
    targets_start: np.ndarray


def use_of(objective: Objective) -> Use:
    """What a model of this objective does with a prompt.

    "continue" - goes on with it; "respond" - answers it, as it was fine-tuned to; "fill_spans" - says what its
    sentinels stand for, each after its sentinel; "fill_middle" - goes on with it, or says what its one sentinel stands
    for; "rewrite" - writes the text that it takes the prompt for the spoilt form of.
    """
    if isinstance(objective, FIM):
        return "fill_middle"
    if isinstance(objective, CLM | PrefixLM):
        return "continue"
    if isinstance(objective, SFT):
        return "respond"
    if isinstance(objective, IIDDenoising):
        spans = objective.inputs == "unique_sentinels" and objective.targets == "noise_spans"
        return "fill_spans" if spans else "rewrite"
    return "fill_spans" if isinstance(objective, SpanCorruption) else "rewrite"


def read_prompt(experiment: Experiment, text: str, mode: str | None) -> tuple[Prompt, list[str]]:
    """The prompt that `text` makes for the run's objective, and what the user should be told about it.

    With sentinels ("<extra_id_0>") the first denoiser that fills them in reads it; without, the first that continues a
    text (prefix LM, else CLM), and where there is none, one that fills in spans, with a sentinel put at the end. What
    only rewrites a text takes any. `mode` narrows the choice to the denoisers of that mode token; None for all.

    Raises ConfigError for a prompt or a mode that the run's denoisers cannot take.
    """
    tokenizer, notes = experiment.tokenizer, []
    num_sentinels = len(re.findall(_SENTINEL, text))
    denoiser = _choose_denoiser(experiment, mode, infill=num_sentinels > 0)
    use, specials = use_of(denoiser.objective), _SENTINEL
    if use == "rewrite":  # spoilt by masks, or by one sentinel again and again
        specials = "|".join(
            re.escape(tokenizer.vocab.names()[t]) for t in (tokenizer.vocab.mask, tokenizer.vocab.sentinel(0))
        )
    else:
        _check_sentinels(text, tokenizer.vocab, most=1 if use == "fill_middle" else tokenizer.vocab.num_sentinels)
    for name in dict.fromkeys(one.mode for one in experiment.collator.denoisers if one.mode):
        if name in text:
            notes.append(f"{name} in the prompt is read as ordinary text; a mode is chosen with --mode")
    if not text and not isinstance(denoiser.objective, CLM):
        raise ConfigError("--prompt is empty, and this run's model continues or fills in a text: give it one")
    if use == "fill_spans" and not num_sentinels:
        last = tokenizer.vocab.names()[tokenizer.vocab.sentinel(0)]
        notes.append(f"{denoiser.name} fills in spans and the prompt marks none, so {last} was put at its end")
        text += last
    return make_prompt(denoiser, encode(tokenizer, text, specials), tokenizer.vocab), notes


def make_prompt(denoiser: Denoiser, text: np.ndarray, vocab: Vocab) -> Prompt:
    """`text`, ids int32 [n], as `denoiser` shows it in training."""
    mode = [vocab.mode(denoiser.mode)] if denoiser.mode else []
    objective = denoiser.objective
    if isinstance(objective, CLM):
        inputs, targets_start = mode, text
        hole = np.flatnonzero(text == vocab.sentinel(0))
        if isinstance(objective, FIM) and len(hole):
            prefix, suffix = text[: hole[0]], text[hole[0] + 1 :]
            pre, suf, mid = vocab.sentinels[:3]
            targets_start = [pre, *prefix, suf, *suffix, mid]
    elif isinstance(objective, SFT):
        inputs, targets_start = [*mode, *text, *([vocab.eos] if objective.inputs_eos else [])], []
    else:
        announced = [vocab.sentinel(0)] if isinstance(objective, PrefixLM) and objective.sentinel else []
        inputs, targets_start = [*mode, *text, *announced, vocab.eos], []
    return Prompt(denoiser, text, np.array(inputs, np.int32), np.array(targets_start, np.int32))


def answer_room(experiment: Experiment, prompt: Prompt) -> int:
    """How many tokens of answer a row of training has room for after `prompt`, at least 1.

    Raises ConfigError where the prompt is longer than its row.
    """
    data = experiment.data
    if experiment.model.has_encoder:
        check_length(len(prompt.inputs), data.inputs_length, f"data.inputs_length={data.inputs_length}")
        given, row, field = len(prompt.targets_start), data.targets_length, "targets_length"
    else:
        given, row, field = len(prompt.inputs) + len(prompt.targets_start), data.inputs_length, "inputs_length"
    check_length(given, row - 1, f"data.{field}={row}, beside an answer,")
    return row - given


def prompt_batch(experiment: Experiment, prompt: Prompt, num_rows: int) -> Batch:
    """`num_rows` rows of `prompt` as training lays it out; the decoder's last position predicts the answer's first."""
    data, model, vocab = experiment.data, experiment.model, experiment.tokenizer.vocab
    # Inputs are targets shifted right: one target more, which nobody reads, makes room for all that is given.
    targets = np.append(prompt.targets_start, np.int32(vocab.eos))
    examples = InputsTargets(_repeated(prompt.inputs, num_rows), _repeated(targets, num_rows))
    rows, source = np.arange(num_rows), np.zeros(num_rows, np.int32)
    if model.has_encoder:
        shape = RowShape(model.architecture, data.inputs_length, len(targets), 1)
        return layout.encoder_decoder(examples, rows, source, num_rows, shape, vocab)
    shape = RowShape(model.architecture, len(prompt.inputs) + len(targets), 0, 1)
    return layout.decoder_only(
        examples, rows, source, num_rows, shape, vocab, bidirectional_inputs=data.bidirectional_inputs
    )


def continuation(prompt: Prompt, answer: np.ndarray, vocab: Vocab) -> np.ndarray:
    """The text of an answer that goes on where the prompt ends: without the sentinel that some prefix LMs put first."""
    announced = isinstance(prompt.denoiser.objective, PrefixLM) and prompt.denoiser.objective.sentinel
    return answer[1:] if announced and answer[:1].tolist() == [vocab.sentinel(0)] else answer


def complete(prompt: Prompt, answer: np.ndarray, vocab: Vocab) -> np.ndarray:
    """The prompt's text with `answer`, ids int [n] without EOS, after it or in place of its sentinels, or alone."""
    use = use_of(prompt.denoiser.objective)
    if use == "fill_spans":
        return fill_spans(prompt.text, parse_spans(answer, vocab), vocab)
    if use == "rewrite":
        return answer
    if vocab.sentinel(0) in prompt.text:
        return fill_spans(prompt.text, {0: answer}, vocab)
    return np.concatenate([prompt.text, continuation(prompt, answer, vocab)])


def parse_spans(answer: np.ndarray, vocab: Vocab) -> dict[int, np.ndarray]:
    """The number of each sentinel in `answer`, ids int [n], and the tokens after it up to the next sentinel.

    Sentinels may come in any order. Of one that comes again the first span counts, and tokens before the first
    sentinel belong to none.
    """
    starts = np.flatnonzero(np.isin(answer, vocab.sentinels))
    spans = {}
    for span in np.split(answer, starts)[1:]:
        spans.setdefault(int(vocab.sentinel(span[0])), span[1:])  # sentinel() is its own inverse
    return spans


def fill_spans(text: np.ndarray, spans: dict[int, np.ndarray], vocab: Vocab) -> np.ndarray:
    """`text`, ids int [n], with each sentinel of `spans` replaced by its tokens; sentinels without one stay."""
    number = {int(vocab.sentinel(k)): k for k in spans}
    parts = [spans[number[token]] if token in number else [token] for token in text.tolist()]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)


def encode(tokenizer: Tokenizer, text: str, specials: str) -> np.ndarray:
    """Text -> ids int32 [n]. Only what the regular expression `specials` matches is a special token; what else looks
    like one is text, as it is in training. Raises ConfigError for text that is not valid Unicode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"--prompt is not valid UTF-8 at character {error.start}") from None
    parts = re.split(f"({specials})", text)  # text and special tokens by turns
    parts[::2] = map(tokenizer.encode, parts[::2])
    parts[1::2] = map(tokenizer.encode_with_specials, parts[1::2])
    return np.concatenate(parts)


def check_length(taken: int, room: int, field: str) -> None:
    """Raises ConfigError where a prompt of `taken` tokens does not fit the `room` that `field` has."""
    if taken > room:
        raise ConfigError(
            f"--prompt takes {taken} tokens, special ones included, and {field} has room for {room}: shorten it"
        )


def _check_sentinels(text: str, vocab: Vocab, most: int) -> None:
    """Raises ConfigError where `text` has more than `most` sentinels or they are not the first ones, in order."""
    written = re.findall(_SENTINEL, text)
    names = vocab.names()
    if len(written) > most:
        why = "this run's model fills in one" if most == 1 else f"data.num_sentinels={vocab.num_sentinels}"
        raise ConfigError(f"--prompt has {len(written)} sentinels and {why}")
    expected = [names[int(sentinel)] for sentinel in vocab.sentinels[: len(written)]]
    if written != expected:
        raise ConfigError(f"--prompt has the sentinels {', '.join(written)}: number them {', '.join(expected)}")


def _choose_denoiser(experiment: Experiment, mode: str | None, *, infill: bool) -> Denoiser:
    denoisers = experiment.collator.denoisers
    modes = list(dict.fromkeys(repr(denoiser.mode) for denoiser in denoisers if denoiser.mode))
    chosen = [denoiser for denoiser in denoisers if mode is None or denoiser.mode == mode]
    if not chosen:
        have = f"its denoisers have {', '.join(modes)}" if modes else "it has none, so leave --mode out"
        raise ConfigError(f"--mode={mode!r} is not a mode of this run: {have}")
    uses = ("fill_spans", "fill_middle", "rewrite")
    if not infill:
        uses = ("respond", "continue", "fill_middle", "fill_spans", "rewrite")
    for use in uses:
        of_use = [denoiser for denoiser in chosen if use_of(denoiser.objective) == use]
        if of_use:
            return min(of_use, key=lambda denoiser: isinstance(denoiser.objective, CLM))  # prefix LM before CLM
    what = "this run" if mode is None else f"--mode={mode!r}"
    others = {repr(one.mode): None for one in denoisers if use_of(one.objective) == "fill_spans"}
    instead = f", or choose --mode={' or '.join(others)}" if others else ""
    raise ConfigError(f"--prompt has sentinels, and {what} fills in no spans: leave them out{instead}")


def _repeated(tokens: np.ndarray, num_rows: int) -> Sequences:
    return Sequences(np.tile(tokens, (num_rows, 1)), np.full(num_rows, len(tokens)))
