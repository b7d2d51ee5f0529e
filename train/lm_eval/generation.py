"""Continues the contexts of generate_until in batches, until a stop string.

All rows of a batch are decoded for a few tokens at a time; rows that have ended are then left out. An answer does not
depend on the other rows of its batch.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from lm_eval.models.utils import postprocess_generated_text

from contract.batch import Batch
from contract.errors import ConfigError
from objectives import Denoiser
from train.experiment import Experiment
from train.generate.prompts import Prompt, encode, prompt_batch
from train.generate.sampling import decode
from train.likelihood import fits
from train.lm_eval.arguments import Arguments, GenerationArguments
from train.probes.probe import LanguageModel
from train.probes.scorer import hide

_TOKENS_AT_A_TIME = 32
_POSITIONS_PER_BATCH = 1 << 14
_LENGTH_MULTIPLE = 32  # prompts are padded to it, so that few programs are compiled


class ContextPrompt(NamedTuple):
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
        row = getattr(data, field)
        self._row = f"{field}={row}"
        self.default_max_tokens = arguments.max_gen_toks or min(256, row // 2)

    def prompt(self, context: str, arguments: GenerationArguments, *, where: str) -> ContextPrompt:
        """Returns a context that leaves `arguments.max_tokens` positions of a row for the answer.

        Tokens at its start that do not fit are dropped. Raises ConfigError if a row has no room for so many tokens, and
        for text that is not valid Unicode; `where` names it.
        """
        experiment = self._model.experiment
        text = encode(experiment.tokenizer, context, np.zeros(0, np.int32), where=where)
        kept = bisect.bisect_right(
            range(len(text) + 1),
            False,
            key=lambda count: not fits(experiment, self._denoiser, count, arguments.max_tokens),
        )
        if not kept:
            raise ConfigError(
                f"{where} max_gen_toks={arguments.max_tokens} does not fit data.{self._row}: set fewer, as in "
                f"--gen_kwargs max_gen_toks={self.default_max_tokens}"
            )
        read = text[len(text) - kept + 1 :]
        laid_out = hide(self._denoiser, np.append(read, np.int32(0)), len(read), len(read) + 1, experiment.vocab)
        prompt = Prompt(self._denoiser, read, laid_out.inputs, laid_out.targets_start)
        return ContextPrompt(prompt, arguments, dropped=len(text) - len(read))

    def generate(self, prompts: Sequence[ContextPrompt]) -> Iterator[tuple[int, str]]:
        """Yields the number of each of `prompts`, from 0, and the text that continues it; not in order."""
        groups: dict[GenerationArguments, list[int]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            groups[prompt.arguments].append(number)
        for arguments, numbers in groups.items():
            numbers.sort(key=lambda number: -_length(prompts[number].prompt))
            while numbers:
                positions = _length(prompts[numbers[0]].prompt) + arguments.max_tokens
                rows = self._arguments.rows_per_batch or max(_POSITIONS_PER_BATCH // positions, 1)
                batch, numbers = numbers[:rows], numbers[rows:]
                yield from self._continue({number: prompts[number].prompt for number in batch}, arguments)

    def _continue(self, prompts: dict[int, Prompt], arguments: GenerationArguments) -> Iterator[tuple[int, str]]:
        """Yields the number and the continuation of each of `prompts`, which are decoded together."""
        answers = {number: np.zeros(0, np.int32) for number in prompts}
        for first in range(0, arguments.max_tokens, _TOKENS_AT_A_TIME):
            count = min(_TOKENS_AT_A_TIME, arguments.max_tokens - first)
            grown = [_grown(prompts[number], answers[number]) for number in answers]
            rows = self._decode(grown, list(answers), arguments, count, first)
            for number, tokens in zip(list(answers), rows, strict=True):
                text_length = _text_length(tokens, self._model.experiment)
                answers[number] = np.concatenate([answers[number], tokens[:text_length]])
                text = self._text(prompts[number], answers[number])
                has_stop = any(stop in text for stop in arguments.until)
                if text_length < count or has_stop or first + count == arguments.max_tokens:
                    yield number, postprocess_generated_text(text, list(arguments.until), None)
                    del answers[number]
            if not answers:
                return

    def _decode(
        self, prompts: list[Prompt], numbers: list[int], arguments: GenerationArguments, count: int, first: int
    ) -> np.ndarray:
        """Returns tokens `first`, ..., `first` + `count` - 1 of the answers, int32 [rows, count]; pad after an EOS."""
        experiment, num_rows = self._model.experiment, len(prompts)
        filled = 1 << (num_rows - 1).bit_length()  # the last row is repeated, so that few programs are compiled
        prompts, numbers = (given + [given[-1]] * (filled - num_rows) for given in (prompts, numbers))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self._arguments.seed), np.array(numbers))
        decoded = decode(
            experiment.model,
            self._model.params,
            _aligned_batch(experiment, prompts, count),
            jax.vmap(jax.random.fold_in, (0, None))(keys, first),
            arguments.sampling,
            vocab=experiment.vocab,
            max_tokens=count,
        )
        return jax.device_get(decoded.tokens_BxT)[:num_rows]

    def _text(self, prompt: Prompt, answer: np.ndarray) -> str:
        """Returns the text of `answer`, int32 [n], after the prompt's: the first word's space may depend on it."""
        decode_text = self._model.experiment.tokenizer.decode
        before, whole = decode_text(prompt.text), decode_text(np.concatenate([prompt.text, answer]))
        return whole[len(before) :] if whole.startswith(before) else decode_text(answer)


def _length(prompt: Prompt) -> int:
    return len(prompt.inputs) + len(prompt.targets_start)


def _grown(prompt: Prompt, answer: np.ndarray) -> Prompt:
    """The prompt with the tokens of the answer so far, which the model continues."""
    return Prompt(prompt.denoiser, prompt.text, prompt.inputs, np.concatenate([prompt.targets_start, answer]))


def _text_length(tokens: np.ndarray, experiment: Experiment) -> int:
    """The number of tokens before the first special token, which ends a text: EOS, or the sentinel after a span."""
    vocab = experiment.vocab
    is_text = ((tokens >= vocab.content_start) & (tokens < vocab.content_end)) | (tokens == vocab.unk)
    return len(tokens) if is_text.all() else int(np.argmin(is_text))


def _aligned_batch(experiment: Experiment, prompts: Sequence[Prompt], num_new: int) -> Batch:
    """Returns one row for each prompt, all of which end at the last decoder position (models/decoding.py).

    num_new: how many tokens will follow.
    """
    batches = [prompt_batch(experiment, prompt, 1) for prompt in prompts]
    longest = max(batch["decoder_input_tokens"].shape[1] for batch in batches)
    width = -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    if experiment.model.positions == "learned":  # a cache has at most as many positions as the table
        width = max(longest, min(width, experiment.model.max_length - num_new + 1))
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    for batch in batches:
        for name, array in batch.items():
            if name.endswith(("target_tokens", "weights", "source")):
                continue
            padding = width - array.shape[1] if name.startswith("decoder") else 0
            rows[name].append(np.pad(array, ((0, 0), (padding, 0))))
    return {name: np.concatenate(arrays) for name, arrays in rows.items()}
