"""The model "cloze" of lm-eval: log-likelihoods and generation of a run's language model.

    lm_eval.simple_evaluate(model="cloze", model_args={"workdir": "runs/clm"}, tasks=[...])    after importing this file

Contexts are read as train.generate reads a text to continue, and continuations are scored by evaluation/likelihood.py.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from contract.errors import ConfigError
from evaluation.likelihood import Pair, continuation_denoiser, continuations
from evaluation.lm_eval.arguments import Arguments, generation_arguments
from evaluation.lm_eval.generation import Generator
from evaluation.lm_eval.texts import longest_window, rolling_windows, split_pair
from evaluation.probes.probe import LanguageModel
from generate.prompts import not_a_language_model
from run.restore import language_model, load_experiment, load_params, reading_mesh

NAME = "cloze"
_REQUESTS_AT_A_TIME = 512  # results of so many requests are cached together
_LOG = logging.getLogger(__name__)


@register_model(NAME)
class ClozeLM(LM):
    """A run's language model.

    Args:
      **arguments: the fields of evaluation.lm_eval.arguments.Arguments.

    Raises ConfigError for an unknown argument or value, for a folder that is not a run's, and for a model that does not
    continue texts, before the checkpoint is read.
    """

    def __init__(self, **arguments: Any):
        super().__init__()
        self.arguments = Arguments.from_mapping(arguments)
        trained = load_experiment(self.arguments.workdir)
        if trained.learner.language_model(trained.params_shapes) is None:
            raise not_a_language_model(trained)
        self.denoiser = continuation_denoiser(trained, self.arguments.mode)
        mesh = reading_mesh(trained)
        params, self.step = load_params(trained, self.arguments.workdir, self.arguments.step, mesh=mesh)
        experiment, params = language_model(trained, params)
        self.language_model = LanguageModel(experiment, params, mesh)
        self._num_params = trained.num_params
        self._shortened = 0  # requests whose context lost tokens

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns log p(continuation | context), in nats, of each request, and whether the continuation is greedy.

        The start of a context that is too long for a row is not read, and the number of such requests is reported.
        Raises ConfigError for an empty continuation, or for one that is too long for a row.
        """
        pairs = []
        for request in requests:
            pair = split_pair(self._tokenizer, self.denoiser, *request.args, where=_where(request))
            if not len(pair.continuation):
                raise ConfigError(f"{_where(request)} has an empty continuation, which has no likelihood to compare")
            pairs.append(pair)
        results: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
        num_shortened = 0

        def finish(number: int, likelihood) -> None:
            nonlocal num_shortened
            results[number] = (likelihood.log_likelihood, bool(likelihood.is_greedy))
            num_shortened += likelihood.dropped > 0
            self.cache_hook.add_partial("loglikelihood", requests[number].args, results[number])

        self._score(pairs, finish, lambda number: _where(requests[number]), disable_tqdm)
        self._report_shortened(num_shortened, len(requests))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns log p(text), in nats, of each request: the sum over lm-eval's rolling windows of the text.

        evaluation/lm_eval/texts.py describes the windows. Each token is scored once. Raises ConfigError for a row too
        short for two tokens.
        """
        length = longest_window(self.language_model.experiment, self.denoiser)
        windows, owners = [], []
        for number, request in enumerate(requests):
            (text,) = request.args
            whole = split_pair(self._tokenizer, self.denoiser, "", text, where=_where(request)).continuation
            of_text = list(rolling_windows(whole, length))
            windows += of_text
            owners += [number] * len(of_text)
        results, waiting = [0.0] * len(requests), np.bincount(owners, minlength=len(requests))

        def finish(window: int, likelihood) -> None:
            number = owners[window]
            results[number] += likelihood.log_likelihood
            waiting[number] -= 1
            if not waiting[number]:
                self.cache_hook.add_partial("loglikelihood_rolling", requests[number].args, results[number])

        self._score(windows, finish, lambda window: _where(requests[owners[window]]), disable_tqdm)
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the text that the model writes after each context, up to the first stop string, EOS or max_gen_toks.

        Supported arguments of a task's generation_kwargs: evaluation/lm_eval/arguments.py. Raises ConfigError for others,
        for a max_gen_toks that does not fit a row, and for a layout that shows the model how many tokens to write.
        """
        generator = Generator(self.language_model, self.denoiser, self.arguments)
        contexts = [
            generator.read(
                request.args[0],
                generation_arguments(request.args[1], generator.default_max_tokens),
                where=_where(request),
            )
            for request in requests
        ]
        self._report_shortened(sum(context.dropped > 0 for context in contexts), len(contexts))
        results = [""] * len(contexts)
        bar = tqdm(total=len(contexts), desc="generating", disable=disable_tqdm)
        for number, text in generator.generate(contexts):
            results[number] = text
            self.cache_hook.add_partial("generate_until", requests[number].args, text)
            bar.update()
        bar.close()
        return results

    def get_model_info(self) -> dict[str, Any]:
        """Returns what lm-eval writes next to the results: the checkpoint, the layout, and counts."""
        experiment = self.language_model.experiment
        row = experiment.data
        return {
            "model_num_parameters": self._num_params,
            "model_dtype": str(np.dtype(experiment.model.dtype)),
            "step": self.step,
            "objective": experiment.objective_name,
            "denoiser": self.denoiser.name,
            "mode": self.denoiser.mode,
            "architecture": experiment.model.architecture,
            "inputs_length": row.inputs_length,
            "targets_length": row.targets_length if experiment.model.has_encoder else 0,
            "shortened_contexts": self._shortened,
        }

    def apply_chat_template(self, chat_history, add_generation_prompt=True) -> str:
        """Raises ConfigError: a run has no chat template."""
        raise _no_chat_template()

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns "" without --apply_chat_template, and otherwise raises ConfigError: a run has no chat template."""
        if chat_template:
            raise _no_chat_template()
        return ""

    @property
    def tokenizer_name(self) -> str:
        """Raises ConfigError: lm-eval reads this name for chat templates alone."""
        raise _no_chat_template()

    @property
    def _tokenizer(self):
        return self.language_model.experiment.tokenizer

    def _score(
        self, pairs: Sequence[Pair], finish: Callable[[int, Any], None], where: Callable[[int], str], disable_tqdm: bool
    ) -> None:
        """Calls finish(number, likelihood) for each of `pairs`, the longest ones first."""
        order = sorted(range(len(pairs)), key=lambda k: -len(pairs[k].context) - len(pairs[k].continuation))
        bar = tqdm(total=len(pairs), desc="scoring", disable=disable_tqdm)
        for first in range(0, len(order), _REQUESTS_AT_A_TIME):
            chosen = order[first : first + _REQUESTS_AT_A_TIME]
            found = continuations(
                self.language_model,
                [pairs[k] for k in chosen],
                mode=self.arguments.mode,
                drop_context=True,
                rows_per_batch=self.arguments.rows_per_batch,
                where=lambda k, chosen=chosen: where(chosen[k - 1]),
            )
            for number, likelihood in zip(chosen, found, strict=True):
                finish(number, likelihood)
            bar.update(len(chosen))
        bar.close()

    def _report_shortened(self, count: int, total: int) -> None:
        self._shortened += count
        if count:
            data = self.language_model.experiment.data
            _LOG.warning(
                "%d of %d contexts are too long for a row of data.inputs_length=%d: their first tokens were not read",
                count,
                total,
                data.inputs_length,
            )


def _where(request: Instance) -> str:
    """The name of a request in messages."""
    return f"task {request.task_name}, document {request.doc_id}, {request.request_type} {request.idx}:"


def _no_chat_template() -> ConfigError:
    return ConfigError("--apply_chat_template: a run has no chat template: remove the flag")
