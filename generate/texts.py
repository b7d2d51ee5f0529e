"""What train.generate and the Python interface do with prompts: files of prompts, checks, texts, filled masks."""

import dataclasses
import itertools
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, get_args

import numpy as np

from contract.errors import ConfigError
from experiment.experiment import Experiment
from files.atomic import parse_json
from files.paths import read_bytes
from generate.fill_masks import (
    Candidate,
    Order,
    Unmasking,
    candidates,
    check_order,
    fill_in,
    fills_masks,
    masks_prompting,
    read_masked_prompt,
)
from generate.prompts import Prompt, first_position, max_answer_length, read_prompt
from generate.sampling import Request, Sampling, generate_answers
from models.parameters import Params

NUM_CANDIDATES = 5  # shown for each mask
# Fields of Options that are of masks alone, and of answers that are written alone.
_MASK_OPTIONS = ("order", "steps", "block_length", "remask")
_TEXT_OPTIONS = ("mode", "top_k", "top_p")


@dataclasses.dataclass(frozen=True)
class Options:
    """How texts are generated. The fields are flags of train.generate."""

    mode: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None  # None: 0.8, and 0 where masks are filled in
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1
    seed: int = 0
    order: Order | None = None  # of masks; None: that of the objective's prompting
    steps: int = 0  # of masks; 0: one mask in each step
    block_length: int = 0  # of masks; 0: all masks are one block
    remask: float = 0.0  # the probability that a filled mask is hidden again before a step

    def check(self) -> None:
        """Raises ConfigError for values that cannot work."""
        leasts = {"top_k": 0, "num_samples": 1, "max_tokens": 1, "seed": 0, "steps": 0, "block_length": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value is not None and not least <= value < 2**31:
                raise ConfigError(f"--{name}={value} must be from {least} to 2**31 - 1")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature={self.temperature} must be 0 (the likeliest token) or more, and finite")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p={self.top_p} must be above 0 and at most 1 (all tokens)")
        if not 0 <= self.remask < 1:
            raise ConfigError(f"--remask={self.remask} must be 0 or more, and below 1")
        if self.order is not None and self.order not in get_args(Order):
            raise ConfigError(f"--order={self.order} must be one of {', '.join(get_args(Order))}")
        if self.num_samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"--num_samples={self.num_samples} with --temperature=0 are all the same: set --temperature above 0"
            )

    def check_steps(self, order: Order) -> None:
        """Raises ConfigError for a field that has no effect in the steps in which masks are filled in."""
        if order == "once":
            given = {"steps": self.steps > 1, "block_length": self.block_length > 0, "remask": self.remask > 0}
            for name in (name for name, is_given in given.items() if is_given):
                raise ConfigError(
                    f"--order=once fills in all masks in one step: remove --{name}, or set another --order"
                )
        if self.remask and 1 in (self.steps, self.block_length):
            one = "steps" if self.steps == 1 else "block_length"
            raise ConfigError(f"--remask has no effect with --{one}=1, in whose only step no mask was filled in before")

    def check_applies(self, without_effect: Collection[str], what: str) -> None:
        """Raises ConfigError for a field of `without_effect` that is set. what: the model does, for the message."""
        for field in dataclasses.fields(self):
            if field.name in without_effect and getattr(self, field.name) != field.default:
                raise ConfigError(f"--{field.name} does not apply to this run, whose model {what}: remove it")


class NamedText(NamedTuple):
    """A text and its name in messages, such as "--prompt" or "--prompts=FILE, line 3"."""

    text: str
    where: str


@dataclasses.dataclass(frozen=True)
class Generated:
    """One answer to a prompt.

    Attributes:
      prompt: the text of the prompt.
      answer: what the model wrote, with the special tokens that it wrote, such as "<extra_id_0>". Where it continues a
        text, it keeps the space before its first word.
      text: the prompt with the answer inserted: at its end, or in place of its sentinels.
      finished: whether the model ended the answer, with an EOS; False at the limit of max_tokens.
      seed: of the draws.
      sample: number of the sample, from 1.
    """

    prompt: str
    answer: str
    text: str
    finished: bool
    seed: int
    sample: int


@dataclasses.dataclass(frozen=True)
class Filled:
    """A prompt whose masks are filled in.

    Attributes:
      prompt: the text of the prompt.
      text: the prompt with a token in place of each mask; of masks that max_tokens appended, those before an EOS.
      candidates: for each mask the likeliest tokens with their probabilities, before a mask is filled in.
      seed, sample: as in Generated.
    """

    prompt: str
    text: str
    candidates: list[list[Candidate]]
    seed: int
    sample: int


def read_texts(
    experiment: Experiment, texts: Sequence[NamedText], options: Options
) -> tuple[list[Request] | list[np.ndarray], list[str]]:
    """Returns `texts` as the run's model reads them, for `answer_texts`, and notes for the user, each once.

    Raises ConfigError, before the parameters are needed, for options that do not suit the model, as `read_prompt` and
    `read_masked_prompt` do, for a prompt that leaves no position for an answer, and for max_tokens that exceed the
    learned positions.
    """
    options.check()
    to_masks = [fills_masks(experiment, text) for text, _ in texts]
    if len(set(to_masks)) > 1:
        raise ConfigError("some prompts have masks and others have none, and this run's model answers both: split them")
    if to_masks[0]:
        options.check_applies(_TEXT_OPTIONS, "fills in masks")
        check_order(masks_prompting(experiment), options.order)
        options.check_steps(options.order or masks_prompting(experiment).order)
        if options.num_samples > 1 and not (options.temperature or options.order == "random" or options.remask):
            raise ConfigError(
                f"--num_samples={options.num_samples} of filled masks are all the same at their temperature of 0: set "
                "--temperature above 0, --order=random or --remask"
            )
        if trained_on := masks_prompting(experiment).block_length:
            options.check_applies(("block_length",), f"was trained on blocks of {trained_on} tokens")
        return [read_masked_prompt(experiment, text, where, options.max_tokens) for text, where in texts], []
    options.check_applies(_MASK_OPTIONS, "fills in no masks here")
    requests, notes = [], []
    for text, where in texts:
        prompt, of_prompt = read_prompt(experiment, text, options.mode, where)
        max_tokens, of_length = most_tokens(experiment, prompt, options.max_tokens, where)
        requests.append(Request(prompt, max_tokens))
        notes += [*of_prompt, *of_length]
    return requests, list(dict.fromkeys(notes))


def most_tokens(
    experiment: Experiment, prompt: Prompt, requested: int | None, where: str = "--prompt"
) -> tuple[int, list[str]]:
    """Returns the largest number of tokens to draw, and notes for the user.

    Raises ConfigError if `requested` exceeds the learned positions.
    """
    in_row = max_answer_length(experiment, prompt, where)
    if requested is None or requested <= in_row:
        return requested or in_row, []
    data, model = experiment.data, experiment.model
    row = data.targets_length if model.has_encoder else data.inputs_length
    most = model.max_length - first_position(experiment, prompt)
    if model.positions == "learned" and requested > most:
        raise ConfigError(
            f"--max_tokens={requested} does not fit: the model has {model.max_length} learned positions and {where} "
            f"leaves {most} of them; set --max_tokens={most} or less"
        )
    excess = requested - in_row
    return requested, [f"with --max_tokens={requested} a row can be {excess} tokens longer than in training ({row})"]


def answer_texts(
    experiment: Experiment,
    params: Params,
    texts: Sequence[NamedText],
    read: list[Request] | list[np.ndarray],
    options: Options,
    batch_size: int,
) -> Iterator[list[Generated] | list[Filled]]:
    """Yields the answers to each of `texts`: `options.num_samples` of them, completed or with masks filled in.

    read: of `read_texts`.
    """
    tokenizer, vocab, seed, num_samples = experiment.tokenizer, experiment.vocab, options.seed, options.num_samples
    if isinstance(read[0], np.ndarray):
        unmasking = Unmasking(
            options.order or masks_prompting(experiment).order,
            options.steps,
            options.block_length,
            options.remask,
            options.temperature or 0.0,
            masks_prompting(experiment).block_length,
        )
        answers = fill_in(
            experiment, params, read, unmasking, seed=seed, num_samples=num_samples, batch_size=batch_size
        )
        for text, _ in texts:
            of_text = []
            for sample, (filled, probabilities) in enumerate(itertools.islice(answers, num_samples), start=1):
                start = len(filled) - (options.max_tokens or 0)  # of the masks that follow the prompt
                ends = start + np.flatnonzero(filled[start:] == vocab.eos)
                filled = tokenizer.decode(filled[: ends[0]] if len(ends) else filled)
                likeliest = candidates(tokenizer, probabilities, NUM_CANDIDATES)
                of_text.append(Filled(text, filled, likeliest, seed, sample))
            yield of_text
        return
    temperature = 0.8 if options.temperature is None else options.temperature
    sampling = Sampling(temperature, options.top_k, options.top_p)
    answers = generate_answers(
        experiment, params, read, sampling, num_samples=num_samples, seed=seed, batch_size=batch_size
    )
    for (text, _), (prompt, _), of_prompt in zip(texts, read, answers, strict=True):
        generated = []
        for sample, (tokens, finished) in enumerate(of_prompt, start=1):
            whole = tokenizer.decode(prompt.prompting.complete(prompt.text, tokens, vocab))
            inside = len(prompt.text) > 0 and prompt.prompting.kind in ("continue", "infill_middle")
            generated.append(Generated(text, tokenizer.decode(tokens, inside=inside), whole, finished, seed, sample))
        yield generated


def read_prompts(path: str) -> list[NamedText]:
    """Returns the prompts of a file, in its order; "-" is standard input.

    A .jsonl file has an object with the field "prompt" in each line; its other fields and blank lines are ignored. Any
    other file has a prompt in each line. There, a blank line is an empty prompt.

    Raises ConfigError for a file that cannot be read, is not UTF-8 or has no prompt, and, with the number of the line,
    for a line of a .jsonl file without a prompt.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else read_bytes(os.path.expanduser(path))
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(f"--prompts={path} cannot be read ({error.strerror}): name a file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts={path} is not UTF-8 (byte {error.start})") from None
    written = text.removesuffix("\n").split("\n") if text else []
    lines = [NamedText(line, f"--prompts={path}, line {k}") for k, line in enumerate(written, 1)]
    if path.endswith(".jsonl"):
        lines = [NamedText(_prompt_of_object(*each), each.where) for each in lines if each.text.strip()]
    if not lines:
        raise ConfigError(f"--prompts={path} has no prompts: write one in each line")
    return lines


def _prompt_of_object(line: str, where: str) -> str:
    try:
        prompt = parse_json(line)["prompt"]
    except (ValueError, TypeError, KeyError):
        prompt = None
    if not isinstance(prompt, str):
        raise ConfigError(f'{where} has no \'prompt\': write an object such as {{"prompt": "Once upon a time"}}')
    return prompt
