"""The model "cloze" of lm-eval: log-likelihoods and generation of a run's language model.

    lm_eval.simple_evaluate(model="cloze", model_args={"workdir": "runs/clm"}, tasks=[...])    after importing this file

Contexts are read, and continuations scored, in the layout of evaluation.likelihood.continuation_denoiser.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm, trange

from command.flags import execute_file
from contract.errors import ConfigError
from evaluation.likelihood import (
    DRAWS,
    Likelihood,
    Pair,
    continuation_denoiser,
    continuations,
    encode_pair,
    fits,
    most,
    rolling,
)
from evaluation.scorer import POSITIONS_PER_BATCH, LanguageModel, hide
from experiment.experiment import Experiment
from generate.prompts import Prompt, prompt_length
from generate.sampling import Answer, Request, Sampling, generate_answers
from objectives import Denoiser
from run.restore import language_model, load_experiment, load_params, not_a_language_model, reading_mesh

NAME = "cloze"
_REQUESTS_AT_A_TIME = 512  # results of so many requests are cached together
_LOG = logging.getLogger(__name__)

# Arguments of other models' decoding algorithms, with the values that change nothing.
_NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1, "length_penalty": 1}
_GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k")


class Generation(NamedTuple):
    """The checked generation_kwargs of a request."""

    until: tuple[str, ...]  # stop strings
    max_tokens: int
    sampling: Sampling


@register_model(NAME)
class ClozeLM(LM):
    """A run's language model.

    Args:
      workdir: the folder of the run.
      step: the checkpoint; None: the newest.
      mode: a mode token, such as [S]; None: that of the first denoiser that continues texts.
      batch_size: rows of a batch, or "auto": as many as fit a number of positions. lm-eval's "auto:N" is "auto".
      max_batch_size: the most rows of a batch with "auto"; None: no limit.
      max_gen_toks: the most tokens of an answer where a task names no number; None: 256, or half a row if that is less.
      seed: of sampled answers.
      draws: of masked diffusion, hidden parts of each continuation, of which the bound is estimated.
      code: a Python file to execute, which registers the run's objective (experiment/outside.py); None: no file.
      device, trust_remote_code: without effect. JAX chooses the device, and a run contains no code.
      **unknown: refused.

    Raises ConfigError for an unknown argument or value, for a folder that is not a run's, and for a model that does not
    continue texts, before the checkpoint is read.
    """

    def __init__(
        self,
        workdir: str = "",
        step: int | None = None,
        mode: str | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_gen_toks: int | None = None,
        seed: int = 0,
        device: str | None = None,
        trust_remote_code: bool = False,
        code: str | None = None,
        draws: int = DRAWS,
        **unknown: Any,
    ):
        super().__init__()
        for name, value in unknown.items():
            raise ConfigError(f"--model_args has the unknown {name}={value}: docs/lm_eval.md has the known ones")
        if not isinstance(workdir, str) or not workdir:  # lm-eval parses a folder "1" as a number
            raise ConfigError(f"--model_args workdir={workdir} must be the folder of a run: ./1 for a folder 1")
        rows = None if str(batch_size).partition(":")[0] == "auto" else batch_size
        self._rows = max_batch_size if rows is None else int(rows) if str(rows).isdecimal() else rows
        numbers = {"step": step, "max_gen_toks": max_gen_toks, "seed": seed, "batch_size": self._rows, "draws": draws}
        for name, value in numbers.items():
            least = 0 if name in ("step", "seed") else 1
            if value is not None and (type(value) is not int or not least <= value < 2**32):
                raise ConfigError(f"--model_args {name}={value} must be an integer of {least} or more")
        if code is not None:
            execute_file(str(code), "--model_args code")
        trained = load_experiment(workdir)
        if trained.learner.language_model(trained.params_shapes) is None:
            raise not_a_language_model(trained)
        self.mode, self.seed, self._draws = mode, seed, draws
        self.denoiser = continuation_denoiser(trained, mode)
        mesh = reading_mesh(trained)
        params, self.step = load_params(trained, workdir, step, mesh=mesh)
        self._experiment, params = language_model(trained, params)
        self.language_model = LanguageModel(self._experiment, params, mesh)
        row = self._experiment.data.inputs_length + self._experiment.data.targets_length  # or more than that
        longest = most(lambda n: fits(self._experiment, self.denoiser, 0, n), row)
        self.max_gen_toks = max_gen_toks or min(256, max(longest // 2, 1))
        self._num_params = trained.num_params
        self._shortened = 0  # requests whose context lost tokens

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns log p(continuation | context), in nats, of each request, and whether the continuation is greedy.

        The start of a context that is too long for a row is not read, and the number of such requests is reported.
        Raises ConfigError for an empty continuation, or for one that is too long for a row.
        """
        pairs = []
        for request in requests:
            pair = split_pair(self._experiment, self.denoiser, *request.args, where=_where(request))
            if not len(pair.continuation):
                raise ConfigError(f"{_where(request)} has an empty continuation, which has no likelihood to compare")
            pairs.append(pair)

        def score(first: int, last: int) -> list[Likelihood]:
            return continuations(
                self.language_model,
                pairs[first:last],
                mode=self.mode,
                drop_context=True,
                rows_per_batch=self._rows,
                draws=self._draws,
                where=lambda number: _where(requests[first + number - 1]),
            )

        return self._score(requests, score, lambda one: (one.log_likelihood, one.is_greedy), disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns log p(text), in nats, of each request: the sum over lm-eval's rolling windows of the text.

        Raises ConfigError for a row too short for two tokens.
        """
        texts = [
            split_pair(self._experiment, self.denoiser, "", *request.args, where=_where(request)).continuation
            for request in requests
        ]

        def score(first: int, last: int) -> list[Likelihood]:
            return rolling(
                self.language_model, texts[first:last], mode=self.mode, rows_per_batch=self._rows, draws=self._draws
            )

        return self._score(requests, score, lambda one: one.log_likelihood, disable_tqdm)

    def _score(
        self,
        requests: list[Instance],
        score: Callable[[int, int], list[Likelihood]],
        result: Callable[[Likelihood], Any],
        disable_tqdm: bool,
    ) -> list[Any]:
        """Returns the result of each request, and writes it to lm-eval's cache as soon as it is computed.

        score: first and last number of some requests -> their likelihoods. result: of a likelihood, for lm-eval.
        """
        results, num_shortened = [], 0
        for first in trange(0, len(requests), _REQUESTS_AT_A_TIME, desc="scoring", disable=disable_tqdm):
            for request, one in zip(requests[first:], score(first, first + _REQUESTS_AT_A_TIME), strict=False):
                results.append(result(one))
                num_shortened += one.dropped > 0
                self.cache_hook.add_partial(request.request_type, request.args, results[-1])
        self._report_shortened(num_shortened, len(requests))
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the text that the model writes after each context, up to the first stop string, EOS or max_gen_toks.

        The start of a context that leaves no room for max_gen_toks is not read. The draws of an answer depend on the
        seed, the context, and how many contexts before it are equal to it. Raises ConfigError for unsupported arguments
        (`generation_arguments`), for a max_gen_toks that does not fit a row, and for a layout that shows the model how
        many tokens to write.
        """
        experiment, denoiser = self._experiment, self.denoiser
        one, two = (hide(denoiser, np.zeros(1 + n, np.int32), 1, 1 + n, experiment.vocab) for n in (1, 2))
        if len(one.inputs) != len(two.inputs):
            raise ConfigError(
                f"generate_until: objective {denoiser.name!r} shows the model how many tokens to write, and lm-eval "
                "does not know the number: use tasks of likelihoods, or another run"
            )
        groups: dict[tuple[Generation, int], list[tuple[int, Prompt]]] = defaultdict(list)
        repeats: Counter = Counter()
        num_shortened = 0
        for number, request in enumerate(requests):
            arguments = generation_arguments(request.args[1], self.max_gen_toks)
            prompt, dropped = self.read_context(request.args[0], arguments.max_tokens, where=_where(request))
            num_shortened += dropped > 0
            key = (arguments, prompt.text.tobytes())
            groups[arguments, repeats[key]].append((number, prompt))
            repeats[key] += arguments.sampling.temperature > 0
        self._report_shortened(num_shortened, len(requests))
        results = [""] * len(requests)
        bar = tqdm(total=len(requests), desc="generating", disable=disable_tqdm)
        for (arguments, repeat), contexts in groups.items():
            contexts.sort(key=lambda context: -len(context[1].text))
            answers = self._answers([prompt for _, prompt in contexts], arguments, repeat)
            for (number, prompt), answer in zip(contexts, answers, strict=True):
                text = self._decode(prompt.text, answer)
                results[number] = postprocess_generated_text(text, list(arguments.until), None)
                self.cache_hook.add_partial("generate_until", requests[number].args, results[number])
                bar.update()
        bar.close()
        return results

    def read_context(self, context: str, max_tokens: int, *, where: str) -> tuple[Prompt, int]:
        """Returns a context as the model reads it, with room for `max_tokens`, and how many first tokens were dropped.

        Raises ConfigError if a row has no room for so many tokens, and for text that is not valid Unicode; `where`
        names it.
        """
        experiment, denoiser = self._experiment, self.denoiser
        text = experiment.tokenizer.encode_with_specials(context, (), where=where)
        if not fits(experiment, denoiser, 0, max_tokens):
            row = f"data.inputs_length={experiment.data.inputs_length}"
            if experiment.model.has_encoder:
                row = f"data.targets_length={experiment.data.targets_length}"
            raise ConfigError(f"{where} max_gen_toks={max_tokens} does not fit a row of {row}: set --gen_kwargs "
                              "max_gen_toks to a smaller number")  # fmt: skip
        dropped = len(text) - most(lambda n: fits(experiment, denoiser, n, max_tokens), len(text))
        text = text[dropped:]
        laid_out = hide(denoiser, np.append(text, np.int32(0)), len(text), len(text) + 1, experiment.vocab)
        return Prompt(denoiser, text, laid_out.inputs, laid_out.targets_start, laid_out.position), dropped

    def get_model_info(self) -> dict[str, Any]:
        """Returns what lm-eval writes next to the results: the checkpoint, the layout, and counts."""
        experiment = self._experiment
        return {
            "model_num_parameters": self._num_params,
            "model_dtype": str(np.dtype(experiment.model.dtype)),
            "step": self.step,
            "objective": experiment.objective_name,
            "denoiser": self.denoiser.name,
            "mode": self.denoiser.mode,
            "architecture": experiment.model.architecture,
            "inputs_length": experiment.data.inputs_length,
            "targets_length": experiment.data.targets_length if experiment.model.has_encoder else 0,
            "shortened_contexts": self._shortened,
        }

    def _answers(self, prompts: list[Prompt], arguments: Generation, repeat: int) -> Iterator[Answer]:
        lengths = [len(prompt.inputs) + prompt_length(self._experiment, prompt) for prompt in prompts]
        answers = generate_answers(
            self._experiment,
            self.language_model.params,
            [Request(prompt, arguments.max_tokens) for prompt in prompts],
            arguments.sampling,
            num_samples=1,
            seed=self.seed,
            first_sample=repeat,
            batch_size=self._rows or max(POSITIONS_PER_BATCH // (max(lengths) + arguments.max_tokens), 1),
        )
        return (answer for [answer] in answers)

    def _decode(self, context: np.ndarray, answer: Answer) -> str:
        """Returns the text that an answer adds to that of `context`, int32 [n], a first space included.

        The first special token ends it: it does not occur in raw text. The sentinel after a span is one.
        """
        vocab, tokens = self._experiment.vocab, answer.tokens
        is_special = ((tokens < vocab.content_start) | (tokens >= vocab.content_end)) & (tokens != vocab.unk)
        tokens = tokens[: np.argmax(is_special)] if is_special.any() else tokens
        decode = self._experiment.tokenizer.decode
        before, whole = decode(context), decode(np.concatenate([context, tokens]))
        return whole[len(before) :] if whole.startswith(before) else decode(tokens)

    def _report_shortened(self, count: int, total: int) -> None:
        self._shortened += count
        if count:
            row = f"data.inputs_length={self._experiment.data.inputs_length}"
            line = "%d of %d contexts are too long for a row of %s: their first tokens were not read"
            _LOG.warning(line, count, total, row)


def generation_arguments(given: Mapping[str, Any], default_max_tokens: int) -> Generation:
    """Returns the generation_kwargs of a request, normalized as for lm-eval's own models. A null argument is not set.

    Numbers may be strings, as YAML reads 1e-3. Raises ConfigError for an unsupported argument, such as num_beams=4, and
    for text that is not a number.
    """
    try:
        is_set = {name: value for name, value in given.items() if value is not None}
        normalized = dict(normalize_gen_kwargs(is_set, default_max_tokens))
        until, max_tokens, do_sample = (normalized.pop(name) for name in ("until", "max_gen_toks", "do_sample"))
        if max_tokens < 1:
            raise ValueError(f"max_gen_toks={max_tokens} must be 1 or more")
        temperature = float(normalized.pop("temperature", 1.0)) if do_sample else 0.0
        normalized.pop("temperature", None)
        sampling = Sampling(temperature, int(normalized.pop("top_k", 0)), float(normalized.pop("top_p", 1.0)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"generation_kwargs={dict(given)}: {error}") from None
    for name, value in normalized.items():
        if value != _NEUTRAL.get(name):
            raise ConfigError(f"generation_kwargs: {name}={value} is not supported: use {', '.join(_GENERATION)}")
    return Generation(tuple(stop for stop in until if stop), max_tokens, sampling)


def split_pair(experiment: Experiment, denoiser: Denoiser, context: str, continuation: str, *, where: str) -> Pair:
    """Returns the tokens of a context and its continuation, divided as lm-eval's Hugging Face model divides them.

    White space at the end of the context belongs to the continuation, because tokenizers attach spaces to the word
    after them. The tokens are as `encode_pair` has them, which lm-eval's encoder-decoders always encode apart.

    Raises ConfigError for text that is not valid Unicode; `where` names it.
    """
    kept = context.rstrip()
    return encode_pair(experiment, denoiser, kept, context[len(kept) :] + continuation, where=where)


def _where(request: Instance) -> str:
    """The name of a request in messages."""
    return f"task {request.task_name}, document {request.doc_id}, {request.request_type} {request.idx}:"
