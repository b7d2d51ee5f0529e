"""What train.generate and the Python interface do with prompts: files of prompts, checks, texts, filled masks."""

import codecs
import collections
import dataclasses
import json
import numbers
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contract.errors import ConfigError
from data.sources.records import InvalidRecord, read_object, string_field
from experiment.experiment import Experiment
from generate.fill_masks import Candidate, candidates, mask_probabilities, read_masked_prompt
from generate.prompts import Prompt, max_answer_length, read_prompt
from generate.sampling import Answer, Request, Sampling, generate_answers
from models.parameters import Params

NUM_CANDIDATES = 5  # shown for each mask


@dataclasses.dataclass(frozen=True)
class Options:
    """How texts are generated. The fields are flags of train.generate."""

    mode: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises ConfigError for values that cannot work."""
        check_integer("top_k", self.top_k, least=0, most=2**31 - 1, meaning=" (all tokens)")
        check_integer("num_samples", self.num_samples)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens)
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise ConfigError(f"--{name}={value!r} must be a number")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature={self.temperature} must be 0 (the likeliest token) or more, and finite")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p={self.top_p} must be above 0 and at most 1 (all tokens)")
        if self.num_samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"--num_samples={self.num_samples} with --temperature=0 are all the same: set --temperature above 0"
            )
        if not _is_integer(self.seed) or not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed={self.seed!r} must be an integer from 0 to 2**32 - 1")

    def check_fills_masks(self) -> None:
        """Raises ConfigError for a field that is set, because none applies to a model that fills in masks."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) != field.default:
                raise ConfigError(f"--{field.name} does not apply to this run, whose model fills in masks: remove it")


def check_integer(name: str, value: Any, *, least: int = 1, most: int = 2**20, meaning: str = "") -> None:
    """Raises ConfigError if `value` is not an integer from `least`, whose meaning can be added, to `most`."""
    if not _is_integer(value) or value < least:
        raise ConfigError(f"--{name}={value!r} must be an integer of {least}{meaning} or more")
    if value > most:
        raise ConfigError(f"--{name}={value} must be at most {most}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


class NamedText(NamedTuple):
    """A text and its name in messages, such as "--prompt" or "--prompts=FILE, line 3"."""

    text: str
    where: str


@dataclasses.dataclass(frozen=True)
class Generated:
    """One answer to a prompt.

    Attributes:
      prompt: the text of the prompt.
      answer: what the model wrote, with the special tokens that it wrote, such as "<extra_id_0>".
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
      text: the prompt with the likeliest token in place of each mask.
      candidates: for each mask the likeliest tokens with their probabilities.
    """

    prompt: str
    text: str
    candidates: list[list[Candidate]]


def read_texts(
    experiment: Experiment, texts: Sequence[NamedText], options: Options
) -> tuple[list[Request] | list[np.ndarray], list[str]]:
    """Returns `texts` as the run's model reads them, for `answer_texts`, and notes for the user, each once.

    With several texts a note begins with the number of those that it is about.

    Raises ConfigError, before the parameters are needed, for options that do not suit the model, as `read_prompt` and
    `read_masked_prompt` do, for a prompt that leaves no position for an answer, and for max_tokens that exceed the
    learned positions.
    """
    options.check()
    if not experiment.model.has_decoder:
        options.check_fills_masks()
        return [read_masked_prompt(experiment, text, where) for text, where in texts], []
    requests, notes = [], collections.Counter()
    for text, where in texts:
        prompt, of_prompt = read_prompt(experiment, text, options.mode, where)
        max_tokens, of_length = most_tokens(experiment, prompt, options.max_tokens, where)
        requests.append(Request(prompt, max_tokens))
        notes.update([*of_prompt, *of_length])
    if len(texts) == 1:
        return requests, list(notes)
    return requests, [f"{count} of {len(texts)} prompts: {note}" for note, count in notes.items()]


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
    if model.positions == "learned" and requested > in_row + model.max_length - row:
        most = in_row + model.max_length - row
        raise ConfigError(
            f"--max_tokens={requested} does not fit: the model has {model.max_length} learned positions and {where} "
            f"leaves {most} of them; set --max_tokens={most} or less"
        )
    excess = requested - in_row
    return requested, [f"with --max_tokens={requested} a row can be {excess} tokens longer than in training ({row})"]


def generate_texts(
    experiment: Experiment,
    params: Params,
    texts: Sequence[NamedText],
    requests: Sequence[Request],
    options: Options,
    batch_size: int,
) -> Iterator[list[Generated]]:
    """Yields the answers to each of `texts`. requests: of `read_texts`."""
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    answers = generate_answers(
        experiment,
        params,
        requests,
        sampling,
        num_samples=options.num_samples,
        seed=options.seed,
        batch_size=batch_size,
    )
    decode = experiment.tokenizer.decode

    def generated(text: str, prompt: Prompt, answer: Answer, sample: int) -> Generated:
        completed = prompt.prompting.complete(prompt.text, answer.tokens, experiment.vocab)
        return Generated(text, decode(answer.tokens), decode(completed), answer.finished, options.seed, sample)

    for (text, _), (prompt, _), of_prompt in zip(texts, requests, answers, strict=True):
        yield [generated(text, prompt, answer, sample) for sample, answer in enumerate(of_prompt, start=1)]


def fill_masks(
    experiment: Experiment, params: Params, texts: Sequence[NamedText], ids: Sequence[np.ndarray], batch_size: int
) -> Iterator[Filled]:
    """Yields each of `texts` with its masks filled in. ids: of `read_masked_prompt`."""
    prompting, vocab, tokenizer = experiment.denoisers[0].objective.prompting, experiment.vocab, experiment.tokenizer
    probabilities = mask_probabilities(experiment, params, ids, batch_size=batch_size)
    for (text, _), ids_of_text, of_text in zip(texts, ids, probabilities, strict=True):
        filled = prompting.complete(ids_of_text, of_text.argmax(axis=-1), vocab)
        yield Filled(text, tokenizer.decode(filled), candidates(tokenizer, of_text, NUM_CANDIDATES))


def answer_texts(
    experiment: Experiment,
    params: Params,
    texts: Sequence[NamedText],
    read: list[Request] | list[np.ndarray],
    options: Options,
    batch_size: int,
) -> Iterator[list[Generated] | list[Filled]]:
    """Yields the answers to each of `texts`: `options.num_samples` of them, or the text with its masks filled in.

    read: of `read_texts`.
    """
    if experiment.model.has_decoder:
        return generate_texts(experiment, params, texts, read, options, batch_size)
    return ([filled] for filled in fill_masks(experiment, params, texts, read, batch_size))


def read_prompts(path: str) -> list[NamedText]:
    """Returns the prompts of a file, in its order; "-" is standard input.

    A .jsonl file has an object with the field "prompt" in each line; its other fields and blank lines are ignored. Any
    other file has a prompt in each line. There, a blank line is an empty prompt.

    Raises ConfigError for a file that cannot be read or has no prompt, and, with the number of the line, for text that
    is not UTF-8 and for a line of a .jsonl file without a prompt.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise ConfigError(f"--prompts={path} cannot be read ({error.strerror}): name a file, or - for stdin") from None
    read_line = _prompt_of_object if path.endswith(".jsonl") else _prompt_of_line
    prompts = []
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        del lines[-1]  # the end of the last line
    for number, line in enumerate(lines, start=1):
        where = f"--prompts={path}, line {number}"
        if path.endswith(".jsonl") and not line.strip():
            continue
        try:
            prompts.append(NamedText(read_line(line.removesuffix(b"\r")), where))
        except InvalidRecord as error:
            raise ConfigError(f"{where} {error}") from None
    if not prompts:
        raise ConfigError(f"--prompts={path} has no prompts: write one in each line")
    return prompts


def _prompt_of_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"is not UTF-8 (byte {error.start} of the line)") from None


def _prompt_of_object(line: bytes) -> str:
    fields = read_object(line)
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise InvalidRecord('has no \'prompt\': write an object such as {"prompt": "Once upon a time"}')
    return string_field(fields, "prompt", may_be_empty=True)


def to_json(answer: Generated | Filled, *, is_ascii: bool = False) -> str:
    """Returns an answer as one line of JSON.

    is_ascii: escape other characters, for a terminal or a pipe whose encoding cannot express them.
    """
    return json.dumps(dataclasses.asdict(answer), ensure_ascii=is_ascii)
