"""Continues the contexts of generate_until, until a stop string.

Answers grow by a few tokens at a time, and the next batches do not contain those that have ended. An answer does not
depend on the other contexts.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from lm_eval.models.utils import postprocess_generated_text

from contract.errors import ConfigError
from evaluation.likelihood import fits
from evaluation.lm_eval.arguments import Arguments, GenerationArguments
from evaluation.probes.probe import LanguageModel
from evaluation.probes.scorer import hide
from generate.answers import Answer, Request, generate_answers
from generate.prompts import Prompt, encode, prompt_length
from objectives import Denoiser

_CONTEXTS_AT_A_TIME = 512
_TOKENS_AT_A_TIME = 32
_POSITIONS_PER_BATCH = 1 << 14


class Context(NamedTuple):
    """A context as the model reads it, and how to continue it."""

    prompt: Prompt
    arguments: GenerationArguments
    dropped: int  # tokens at the start of the context that do not fit into a row


class Generator:
    """Continues texts in the layout of `denoiser`, which is also the layout that scores continuations.

    Raises ConfigError for a layout that shows the model how many tokens it must write.
    """

    def __init__(self, model: LanguageModel, denoiser: Denoiser, arguments: Arguments):
        experiment = model.experiment
        one, two = (hide(denoiser, np.zeros(1 + n, np.int32), 1, 1 + n, experiment.vocab) for n in (1, 2))
        if len(one.inputs) != len(two.inputs):
            raise ConfigError(
                f"generate_until: objective {denoiser.name!r} shows the model how many tokens to write, and lm-eval "
                "does not know the number: use tasks of likelihoods, or another run"
            )
        self._model, self._denoiser, self._arguments = model, denoiser, arguments
        data = experiment.data
        field = "targets_length" if experiment.model.has_encoder else "inputs_length"
        self._row = f"data.{field}={getattr(data, field)}"
        lengths = range(1, data.inputs_length + data.targets_length)
        self._longest = bisect.bisect_left(lengths, True, key=lambda n: not fits(experiment, denoiser, 0, n))
        self.default_max_tokens = arguments.max_gen_toks or min(256, max(self._longest // 2, 1))

    def read(self, context: str, arguments: GenerationArguments, *, where: str) -> Context:
        """Returns a context that leaves `arguments.max_tokens` positions of a row for the answer.

        Tokens at its start that do not fit are dropped. Raises ConfigError if a row has no room for so many tokens, and
        for text that is not valid Unicode; `where` names it.
        """
        experiment = self._model.experiment
        text = encode(experiment.tokenizer, context, np.zeros(0, np.int32), where=where)

        def is_too_long(length: int) -> bool:
            return not fits(experiment, self._denoiser, length, arguments.max_tokens)

        num_fitting = bisect.bisect_left(range(len(text) + 1), True, key=is_too_long)  # among lengths from 0
        if not num_fitting:
            raise ConfigError(
                f"{where} max_gen_toks={arguments.max_tokens} does not fit a row of {self._row}: set "
                f"--gen_kwargs max_gen_toks={self._longest} or less"
            )
        dropped = len(text) - (num_fitting - 1)
        text = text[dropped:]
        laid_out = hide(self._denoiser, np.append(text, np.int32(0)), len(text), len(text) + 1, experiment.vocab)
        prompt = Prompt(self._denoiser, text, laid_out.inputs, laid_out.targets_start)
        return Context(prompt, arguments, dropped)

    def generate(self, contexts: Sequence[Context]) -> Iterator[tuple[int, str]]:
        """Yields the number of each of `contexts`, from 0, and the text that continues it; not in order.

        The draws of an answer depend on the seed, the context, and how many contexts before it are equal to it.
        """
        groups: dict[tuple[GenerationArguments, int], list[int]] = defaultdict(list)
        repeats: Counter = Counter()
        for number, context in enumerate(contexts):
            key = (context.arguments, context.prompt.text.tobytes())
            groups[context.arguments, repeats[key]].append(number)
            repeats[key] += context.arguments.sampling.temperature > 0
        for (arguments, repeat), numbers in groups.items():
            numbers.sort(key=lambda number: -self._length(contexts[number].prompt))
            for first in range(0, len(numbers), _CONTEXTS_AT_A_TIME):
                chosen = {k: contexts[k].prompt for k in numbers[first : first + _CONTEXTS_AT_A_TIME]}
                yield from self._continue(chosen, arguments, repeat)

    def _continue(
        self, prompts: dict[int, Prompt], arguments: GenerationArguments, repeat: int
    ) -> Iterator[tuple[int, str]]:
        """Yields the number and the continuation of each of `prompts`."""
        texts = {number: np.zeros(0, np.int32) for number in prompts}  # of the answers that have not ended
        for first in range(0, arguments.max_tokens, _TOKENS_AT_A_TIME):
            count = min(_TOKENS_AT_A_TIME, arguments.max_tokens - first)
            numbers = list(texts)
            requests = [Request(_grown(prompts[number], texts[number]), count) for number in numbers]
            for number, answer in zip(numbers, self._answers(requests, arguments, repeat), strict=True):
                new, is_ended = self._text_of(answer)
                tokens = np.concatenate([texts[number], new])
                text = self._decode(prompts[number].text, tokens)
                texts[number] = tokens
                if is_ended or first + count == arguments.max_tokens or any(stop in text for stop in arguments.until):
                    del texts[number]
                    yield number, postprocess_generated_text(text, list(arguments.until), None)
            if not texts:
                return

    def _answers(self, requests: list[Request], arguments: GenerationArguments, repeat: int) -> Iterator[Answer]:
        positions = max(self._length(request.prompt) for request in requests) + requests[0].max_tokens
        answers = generate_answers(
            self._model.experiment,
            self._model.params,
            requests,
            arguments.sampling,
            num_samples=1,
            seed=(self._arguments.seed + repeat) % 2**32,
            batch_size=self._arguments.rows_per_batch or max(_POSITIONS_PER_BATCH // positions, 1),
        )
        return (answer for [answer] in answers)

    def _text_of(self, answer: Answer) -> tuple[np.ndarray, bool]:
        """Returns the tokens of an answer before its first special token, and whether it has such a token, or an EOS.

        A special token ends a text: it does not occur in raw text. The sentinel after a span is one.
        """
        vocab, tokens = self._model.experiment.vocab, answer.tokens
        is_special = ((tokens < vocab.content_start) | (tokens >= vocab.content_end)) & (tokens != vocab.unk)
        if is_special.any():
            return tokens[: int(np.argmax(is_special))], True
        return tokens, answer.finished

    def _decode(self, context: np.ndarray, answer: np.ndarray) -> str:
        """Returns the text that `answer`, int32 [n], adds to that of `context`, int32 [m], a first space included."""
        decode = self._model.experiment.tokenizer.decode
        before, whole = decode(context), decode(np.concatenate([context, answer]))
        return whole[len(before) :] if whole.startswith(before) else decode(answer)

    def _length(self, prompt: Prompt) -> int:
        return len(prompt.inputs) + prompt_length(self._model.experiment, prompt)


def _grown(prompt: Prompt, answer: np.ndarray) -> Prompt:
    """The prompt with the tokens of the answer so far, which the model continues."""
    return Prompt(prompt.denoiser, prompt.text, prompt.inputs, np.concatenate([prompt.targets_start, answer]))
