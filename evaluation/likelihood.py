"""Log-likelihoods of given texts under a run's language model, batched.

    continuations(model, [encode_pair(tokenizer, context, continuation), ...])   log p(continuation | context)
    rolling(model, [encode(tokenizer, text), ...])                               log p(text), of any length
    pseudo(model, pairs)                 each token given all other tokens (Salazar et al. 2020), for masked models

The model reads the context as it reads a text to continue in training: a causal model as the start of its targets,
prefix LM and encoder-decoders as inputs, with the objective's mode token and sentinel. The given tokens are scored
alone, without the sentinel before them and without an EOS after them, and each among all ids of the output table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from data.tokenizers.tokenizer import Tokenizer
from evaluation.probes.probe import LanguageModel, find_denoiser
from evaluation.probes.scorer import Example, hide, score
from experiment.experiment import Experiment
from generate.prompts import denoisers_with_mode, encode, first_denoiser
from objectives import Denoiser


class Pair(NamedTuple):
    """A context and its continuation, int32 [n] each."""

    context: np.ndarray
    continuation: np.ndarray


class Likelihood(NamedTuple):
    """The likelihood of the scored tokens of one text."""

    nats: float  # the negative logarithm, with base e
    tokens: int  # scored
    bytes: int  # UTF-8 bytes that the scored tokens spell
    is_greedy: bool  # whether each scored token is the model's likeliest one
    dropped: int  # tokens at the start of the context that did not fit into a row and were not read

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the likelihood, with base e."""
        return -self.nats


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, *, where: str = "the text") -> Pair:
    """Returns the tokens of `context` + `continuation`, divided where the text is divided.

    A token with characters of both belongs to the continuation, so the tokens are always those of the whole text, as
    in training. Deviation: lm-eval's models read the tokens of the context alone, followed by the last tokens of the
    whole. Both agree wherever no token has characters of both.

    Raises ConfigError for text that is not valid Unicode; `where` names it.
    """
    nothing = np.zeros(0, np.int32)
    whole, alone = (encode(tokenizer, text, nothing, where=where) for text in (context + continuation, context))
    length = min(len(whole), len(alone))
    differs = np.flatnonzero(whole[:length] != alone[:length])
    return Pair(*np.split(whole, [int(differs[0]) if len(differs) else length]))


def continuation_denoiser(experiment: Experiment, mode: str | None = None) -> Denoiser:
    """Returns the denoiser in whose layout texts are continued: the one that continues prompts of train.generate.

    mode: a mode token, which restricts the choice to the denoisers with this mode; None: all denoisers.

    Raises ConfigError if the run has none.
    """
    denoiser = find_denoiser(experiment, "left", mode) or first_denoiser(
        denoisers_with_mode(experiment, mode), ("respond",)
    )
    if denoiser is None:
        remedy = "use the pseudo-log-likelihood" if find_denoiser(experiment, "both", mode) else "choose another run"
        raise ConfigError(f"{_run(experiment, mode)} does not continue texts, so it has no log-likelihoods: {remedy}")
    return denoiser


def continuations(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    mode: str | None = None,
    drop_context: bool = False,
    rows_per_batch: int | None = None,
    where: Callable[[int], str] = "text {}".format,
) -> list[Likelihood]:
    """Returns the likelihood of each continuation given its context. A context may be empty.

    Args:
      model: the language model and the layout.
      pairs: of `encode_pair`.
      mode: as for `continuation_denoiser`.
      drop_context: whether tokens at the start of a context that is too long for a row of training are not read;
        Likelihood.dropped counts them. By default such a context is an error.
      rows_per_batch: the most rows of a batch, as in `scorer.score`; None: as many as fit.
      where: number of a pair, from 1 -> its name in messages.

    Raises ConfigError, before anything is computed, for texts that do not fit, and as `continuation_denoiser`.
    """
    denoiser = continuation_denoiser(model.experiment, mode)

    def examples_of(pair: Pair) -> list[Example]:
        return [_hide(model.experiment, denoiser, np.concatenate(pair), len(pair.context))]

    fitted = _fitted(model.experiment, pairs, examples_of, drop_context, where)
    return _likelihoods(model, fitted, rows_per_batch)


def fits(experiment: Experiment, denoiser: Denoiser, context_length: int, continuation_length: int) -> bool:
    """Returns whether a row of training has room for so many tokens of a context and of its continuation.

    denoiser: of `continuation_denoiser`.
    """
    text = np.zeros(context_length + continuation_length, np.int32)
    return max(_excess(experiment, _hide(experiment, denoiser, text, context_length))) <= 0


def rolling(
    model: LanguageModel, texts: Sequence[np.ndarray], *, mode: str | None = None, context_length: int | None = None
) -> list[Likelihood]:
    """Returns the likelihood of each text, int32 [n] of any length, each token given the tokens before it.

    A text that is longer than a row is scored in windows, in each of which the model reads some tokens before the
    scored ones: as many as the encoder has positions for, or in a decoder-only model one; the more it reads, the fewer
    it scores in a row. Deviation from lm-eval's rolling windows (train/lm_eval): the last window reads no more than the
    others, and lm-eval's as many tokens as fit.

    Args:
      model, mode: as for `continuations`.
      texts: ids.
      context_length: how many tokens before the scored ones a window has, at most; None: as described.

    Raises ConfigError for a context_length that leaves no token to score, and as `continuation_denoiser`.
    """
    experiment = model.experiment
    denoiser = continuation_denoiser(experiment, mode)
    if context_length is None:
        context_length = experiment.data.inputs_length if experiment.model.has_encoder else 1
    windows = ((list(_windows(experiment, denoiser, text, context_length)), 0) for text in texts)
    return _likelihoods(model, windows)


def pseudo(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    mode: str | None = None,
    drop_context: bool = False,
    where: Callable[[int], str] = "text {}".format,
) -> list[Likelihood]:
    """Returns the pseudo-likelihood of each continuation: its tokens are hidden and predicted one at a time.

    The model reads the context and the other tokens of the continuation. This is not the likelihood of a text: the
    pseudo-likelihoods of all continuations do not add up to 1. With an empty context: that of the whole text.

    Arguments and errors as for `continuations`; ConfigError if the run hides no tokens within a text.
    """
    experiment = model.experiment
    denoiser = find_denoiser(experiment, "both", mode)
    if denoiser is None:
        raise ConfigError(f"{_run(experiment, mode)} fills in no tokens, so it has no pseudo-log-likelihoods")

    def examples_of(pair: Pair) -> list[Example]:
        text = np.concatenate(pair)
        return [_hide(experiment, denoiser, text, k, k + 1) for k in range(len(pair.context), len(text))]

    return _likelihoods(model, _fitted(experiment, pairs, examples_of, drop_context, where))


def _run(experiment: Experiment, mode: str | None) -> str:
    with_mode = f" with mode {mode!r}" if mode is not None else ""
    return f"objective.name={experiment.objective_name!r} on {experiment.model.architecture}{with_mode}"


def _hide(experiment: Experiment, denoiser: Denoiser, text: np.ndarray, start: int, stop: int | None = None) -> Example:
    example = hide(denoiser, text, start, len(text) if stop is None else stop, experiment.vocab)
    assert example is not None  # the denoiser was chosen because it hides such tokens
    return example


def _excess(experiment: Experiment, example: Example) -> tuple[int, int]:
    """Returns how many tokens too long the inputs and the targets are for a row of training; 0 or less where they fit.

    In a single stack both share the row, and the second number is 0.
    """
    data, inputs = experiment.data, len(example.inputs)
    if not experiment.model.has_decoder:
        return inputs - data.inputs_length, 0
    targets = len(example.targets_start) + len(example.hidden)
    if experiment.model.has_encoder:
        return inputs - data.inputs_length, targets - data.targets_length
    return inputs + targets - data.inputs_length, 0


def _fitted(
    experiment: Experiment,
    pairs: Sequence[Pair],
    examples_of: Callable[[Pair], list[Example]],
    drop_context: bool,
    where: Callable[[int], str],
) -> list[tuple[list[Example], int]]:
    """Returns the examples of each pair, and the number of dropped tokens of its context."""
    fitted = []
    for number, pair in enumerate(pairs, start=1):
        if not len(pair.continuation):
            fitted.append(([], 0))
            continue
        examples, dropped = examples_of(pair), 0
        excess = max(_excess(experiment, examples[0]))
        if excess > 0 and drop_context and excess <= len(pair.context):
            dropped = excess
            examples = examples_of(pair._replace(context=pair.context[excess:]))
            excess = max(_excess(experiment, examples[0]))
        if excess > 0:
            raise ConfigError(_too_long(experiment, pair, excess, drop_context, where(number)))
        fitted.append((examples, dropped))
    return fitted


def _too_long(experiment: Experiment, pair: Pair, excess: int, drop_context: bool, where: str) -> str:
    data = experiment.data
    row = f"data.inputs_length={data.inputs_length}"
    if experiment.model.has_encoder and experiment.model.has_decoder:
        row += f" and data.targets_length={data.targets_length}"
    remedy = "shorten the continuation" if drop_context else "shorten it, or let the start of its context be dropped"
    return (
        f"{where} has {len(pair.context)} tokens of context and {len(pair.continuation)} of continuation, with special "
        f"tokens {excess} too many for {row}: {remedy}"
    )


def _windows(experiment: Experiment, denoiser: Denoiser, text: np.ndarray, context_length: int) -> Iterator[Example]:
    """Yields windows of `text`, int32 [n], that score each of its tokens once."""
    longest, start = experiment.data.inputs_length + experiment.data.targets_length, 0
    while start < len(text):
        context, scored = min(start, context_length), min(len(text) - start, longest)
        while True:
            window = text[start - context : start + scored]
            example = _hide(experiment, denoiser, window, context)
            inputs, targets = _excess(experiment, example)
            if inputs <= 0 and targets <= 0:
                break
            if experiment.model.has_encoder and inputs > 0 and context:
                context -= min(context, inputs)
            elif max(inputs, targets) < scored:
                scored -= max(inputs, targets)
            elif experiment.model.has_encoder and context:  # a denoiser whose targets repeat the context
                context //= 2
            else:
                raise ConfigError(
                    f"context_length={context_length} leaves no token to score in data.inputs_length="
                    f"{experiment.data.inputs_length}: set a smaller one"
                )
        yield example
        start += scored


def _likelihoods(
    model: LanguageModel, texts: Iterable[tuple[list[Example], int]], rows_per_batch: int | None = None
) -> list[Likelihood]:
    """Returns the likelihood of each text. texts: the examples that score its tokens, and how many were dropped."""
    texts = list(texts)
    examples = [example for of_text, _ in texts for example in of_text]
    scores = dict(score(model.experiment, model.params, model.mesh, examples, rows_per_batch=rows_per_batch))
    num_bytes, likelihoods, first = model.experiment.tokenizer.num_bytes, [], 0
    for of_text, dropped in texts:
        numbers = range(first, first + len(of_text))
        likelihoods.append(
            Likelihood(
                nats=sum(float(scores[number].nats.sum()) for number in numbers),
                tokens=sum(len(example.hidden) for example in of_text),
                bytes=sum(num_bytes(example.hidden) for example in of_text),
                is_greedy=all(scores[number].is_likeliest.all() for number in numbers),
                dropped=dropped,
            )
        )
        first += len(of_text)
    return likelihoods
