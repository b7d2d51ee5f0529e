"""Log-likelihoods of given texts under a run's language model, batched.

    continuations(model, [encode_pair(experiment, denoiser, context, continuation), ...])    log p of continuations
    rolling(model, [tokenizer.encode(text), ...])    log p(text), of any length
    pseudo(model, pairs)    each token given all other tokens (Salazar et al. 2020), for masked models

The model reads the context as it reads a text to continue in training: a causal model as the start of its targets,
prefix LM and encoder-decoders as inputs, with the objective's mode token and sentinel. The given tokens are scored
alone, without the sentinel before them and without an EOS after them, and each among all ids of the output table. Of
masked diffusion the likelihood is an estimate of the bound that it is trained on, as in LLaDA.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from evaluation.scorer import LOGITS_PER_BATCH, LanguageModel, TextScores, find_denoiser, hide, score_texts
from experiment.experiment import Experiment
from generate.fill_masks import Order, first_block, first_masks, mask_probabilities
from generate.prompts import denoisers_with_mode, first_denoiser
from generate.sampling import hash_of
from objectives import Denoiser
from objectives.prompting import FillMasks

DRAWS = 128  # of the bound of masked diffusion, as many as in LLaDA's code
_ROWS = 64  # that are filled in together, at most
# data.source of corpora whose documents are all a prompt and its response, encoded apart.
_SOURCES_OF_PAIRS = {"gym", "stdlib_functions"}


class Pair(NamedTuple):
    """A context and its continuation, int32 [n] each."""

    context: np.ndarray
    continuation: np.ndarray
    is_start: bool = False  # whether the continuation has the space that some tokenizers put before a text


class Likelihood(NamedTuple):
    """The likelihood of the scored tokens of one text."""

    nats: float  # the negative logarithm, with base e; of masked diffusion an estimate of an upper bound on it
    tokens: int  # scored
    bytes: int  # UTF-8 bytes that the scored tokens spell
    is_greedy: bool  # whether each scored token is the model's likeliest one; of masks, filled in one at a time
    dropped: int  # tokens at the start of the context that did not fit into a row and were not read

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the likelihood, with base e."""
        return -self.nats


def encode_pair(
    experiment: Experiment, denoiser: Denoiser, context: str, continuation: str, *, where: str = "the text"
) -> Pair:
    """Returns the tokens of a context and its continuation, as those of the training text of `denoiser`.

    A denoiser of prompts and responses, as that of SFT, was trained on texts that were encoded apart, as was any
    denoiser of a run whose corpora have nothing else. Other denoisers read the tokens of the whole text, divided
    at the first one that differs from the tokens of the context alone. It belongs to the continuation, with all tokens
    after it: one with characters of both, and any before that one. Deviation: lm-eval's models read the tokens of the
    context alone, followed by the last tokens of the whole. Both agree where the whole begins with the former.

    Raises ConfigError for text that is not valid Unicode; `where` names it.
    """
    of_pairs = {corpus.source for corpus in experiment.data.of_corpora().values()} <= _SOURCES_OF_PAIRS
    is_apart = of_pairs or "prompt_lengths" in denoiser.objective.extra_columns
    texts = (context, continuation if is_apart else context + continuation)
    alone, whole = (experiment.tokenizer.encode_with_specials(text, (), where=where) for text in texts)
    if is_apart:
        return Pair(alone, whole, True)
    length = min(len(whole), len(alone))
    differs = np.flatnonzero(whole[:length] != alone[:length])
    before, after = np.split(whole, [int(differs[0]) if len(differs) else length])
    return Pair(before, after, not len(before))


def continuation_denoiser(experiment: Experiment, mode: str | None = None) -> Denoiser:
    """Returns the denoiser in whose layout texts are continued.

    It is one that hides the end of a text, else one that learns responses to prompts, else one of masked
    diffusion. train.generate prefers one of responses: in a mixture of SFT and CLM it takes SFT, and this is CLM.

    mode: a mode token, which restricts the choice to the denoisers with this mode; None: all denoisers.

    Raises ConfigError if the run has none.
    """
    candidates = denoisers_with_mode(experiment, mode)
    denoiser = find_denoiser(experiment, "left", mode) or first_denoiser(candidates, ("respond",))
    bounded = (one for one in candidates if one.objective.prompting.bounds_likelihood)
    denoiser = denoiser or next(bounded, None)
    if denoiser is None:
        remedy = "use the pseudo-log-likelihood" if find_denoiser(experiment, "both", mode) else "choose another run"
        raise ConfigError(f"{_run(experiment, mode)} does not continue texts, so it has no log-likelihoods: {remedy}")
    return denoiser


def pseudo_denoiser(experiment: Experiment, mode: str | None) -> Denoiser:
    """Returns the denoiser in whose layout tokens within a text are hidden. Arguments as for `continuation_denoiser`.

    Raises ConfigError if the run has none.
    """
    denoiser = find_denoiser(experiment, "both", mode)
    if denoiser is None:
        run = _run(experiment, mode)
        raise ConfigError(f"{run} hides no tokens of which it reads both sides, so it has no pseudo-log-likelihoods")
    return denoiser


def continuations(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    mode: str | None = None,
    drop_context: bool = False,
    rows_per_batch: int | None = None,
    draws: int = DRAWS,
    where: Callable[[int], str] = "text {}".format,
) -> list[Likelihood]:
    """Returns the likelihood of each continuation given its context. A context may be empty.

    Args:
      model: the language model and the layout.
      pairs: of `encode_pair`.
      mode: as for `continuation_denoiser`.
      drop_context: whether tokens at the start of a context that is too long for a row of training are not read;
        Likelihood.dropped counts them. By default such a context is an error.
      rows_per_batch: the most rows of a batch, as in `LanguageModel.score`; None: as many as fit.
      draws: of masked diffusion: hidden parts of each continuation, of which the bound is estimated.
      where: number of a pair, from 1 -> its name in messages.

    Raises ConfigError, before anything is computed, for texts that do not fit, for draws that are no positive integer,
    and as `continuation_denoiser`.
    """
    experiment = model.experiment
    denoiser = continuation_denoiser(experiment, mode)
    if type(draws) is not int or draws < 1:
        raise ConfigError(f"draws={draws!r} must be an integer of 1 or more")
    texts, spans, dropped, end = [], [], [], _end(experiment, denoiser)
    for number, pair in enumerate(pairs, start=1):
        text, start = np.concatenate([*pair[:2], end]), len(pair.context)
        excess = _excess(experiment, denoiser, text, start, len(text)) if len(pair.continuation) else 0
        if excess > 0 and drop_context and fits(experiment, denoiser, start - excess, len(pair.continuation)):
            text, start = text[excess:], start - excess
        elif excess > 0:
            raise ConfigError(_too_long(experiment, pair, excess, drop_context, where(number)))
        texts.append(text)
        spans.append([(start, len(text) - len(end))] if len(pair.continuation) else [])
        dropped.append(len(pair.context) - start)
    prompting = denoiser.objective.prompting
    draws = draws if isinstance(prompting, FillMasks) else 0
    scores = score_texts(model, denoiser, texts, spans, rows_per_batch=rows_per_batch, draws=draws)
    if draws:
        masked = [text.copy() for text in texts]
        for text, of_text in zip(masked, spans, strict=True):
            for start, stop in of_text:
                text[start:stop] = experiment.vocab.mask
        is_exact = are_filled_in(model, prompting, masked, texts, prompting.order, rows_per_batch or _ROWS)
        scores = scores._replace(is_exact=is_exact)
    return _likelihoods(model, pairs, scores, dropped)


def _end(experiment: Experiment, denoiser: Denoiser) -> np.ndarray:
    """Returns what is read after a text and is not scored, int32 [n]: EOS, where masks hide responses.

    In training every response ends with EOS, which a model that reads in both directions expects.
    """
    objective = denoiser.objective
    has_eos = isinstance(objective.prompting, FillMasks) and "prompt_lengths" in objective.extra_columns
    return np.array([experiment.vocab.eos] * has_eos, np.int32)


def are_filled_in(
    model: LanguageModel,
    prompting: FillMasks,
    masked: Sequence[np.ndarray],
    texts: Sequence[np.ndarray],
    order: Order,
    most_rows: int = _ROWS,
) -> np.ndarray:
    """Returns whether the masks of each of `masked` are filled in with the tokens of its text, bool [n].

    The likeliest token is filled in at one mask in each step, with order="once" at all of them. A text with a wrong
    token is right no more, and is not filled in further. The order "random" is a function of the masked text alone.

    Args:
      prompting: of the denoiser that fills in masks.
      masked, texts: ids, int32 [length] each, without and with what the masks hide.
      most_rows: of a batch.
    """
    mask, is_right = model.experiment.vocab.mask, np.ones(len(texts), bool)
    randoms = [np.random.default_rng(hash_of(text)) for text in masked]
    most_masks = max(((text == mask).sum() for text in masked), default=0) or 1
    most_rows = max(min(most_rows, _ROWS, LOGITS_PER_BATCH // (most_masks * model.experiment.model.vocab_size)), 1)
    filled = [text.copy() for text in masked]
    while unfilled := [k for k, text in enumerate(filled) if is_right[k] and mask in text]:
        shown = [filled[k] for k in unfilled]
        found = mask_probabilities(
            model.experiment, model.params, shown, batch_size=int(most_rows), prompting=prompting
        )
        for k, probabilities_MxV in zip(unfilled, found, strict=True):
            masks = np.flatnonzero(filled[k] == mask)
            masks = first_block(masks, prompting.block_length) if prompting.block_length else masks
            probabilities_MxV = probabilities_MxV[: len(masks)]
            chosen = first_masks(probabilities_MxV, order, len(masks) if order == "once" else 1, randoms[k])
            places = masks[chosen]
            is_right[k] = np.array_equal(probabilities_MxV[chosen].argmax(axis=-1), texts[k][places])
            filled[k][places] = texts[k][places]
    return is_right


def fits(experiment: Experiment, denoiser: Denoiser, context_length: int, continuation_length: int) -> bool:
    """Returns whether a row of training has room for so many tokens of a context and of its continuation.

    denoiser: of `continuation_denoiser`. False for a negative length.
    """
    if min(context_length, continuation_length) < 0:
        return False
    text = np.zeros(context_length + continuation_length + len(_end(experiment, denoiser)), np.int32)
    return _excess(experiment, denoiser, text, context_length, len(text)) <= 0


def most(fit: Callable[[int], bool], limit: int) -> int:
    """Returns the largest n from 1 to `limit` with fit(n), which is true up to some n; 0 if there is none."""
    return bisect.bisect_left(range(1, limit + 1), True, key=lambda n: not fit(n))


def rolling(
    model: LanguageModel,
    texts: Sequence[np.ndarray],
    *,
    mode: str | None = None,
    rows_per_batch: int | None = None,
    draws: int = DRAWS,
) -> list[Likelihood]:
    """Returns the likelihood of each text, int32 [n] of any length, each token given the tokens before it.

    A text that is longer than a row is scored in windows, those of lm-eval: see `rolling_windows`.

    Arguments and errors as for `continuations`.
    """
    length = longest_window(model.experiment, continuation_denoiser(model.experiment, mode))
    windows = [rolling_windows(text, length) for text in texts]
    pairs = [window for of_text in windows for window in of_text]
    found = iter(continuations(model, pairs, mode=mode, rows_per_batch=rows_per_batch, draws=draws))
    return [_sum([next(found) for _ in of_text]) for of_text in windows]


def longest_window(experiment: Experiment, denoiser: Denoiser) -> int:
    """Returns the largest `length` of rolling windows with which each of them fits a row of training.

    Raises ConfigError for a row that is too short for two tokens.
    """

    def fit(length: int) -> bool:
        # A window has `length` + 1 tokens, of which the first one, or all but the last one, are the context.
        return all(fits(experiment, denoiser, count, length + 1 - count) for count in (1, length))

    length = most(fit, experiment.data.inputs_length + experiment.data.targets_length)
    if not length:
        raise ConfigError(f"data.inputs_length={experiment.data.inputs_length} is too short for a window of two tokens")
    return length


def rolling_windows(text: np.ndarray, length: int) -> list[Pair]:
    """Returns windows of `text`, int32 [n], whose continuations together are the text, as lm-eval makes them.

    Each scores `length` tokens. The first window has no context, later ones have one token of context, and the last
    one, which scores the rest of the text, has as many as fill `length` + 1 tokens.
    """
    spans = [(start, min(start + length, len(text))) for start in range(0, len(text), length)]
    return [Pair(text[max(stop - length - 1, 0) : start], text[start:stop], start == 0) for start, stop in spans]


def pseudo(model: LanguageModel, pairs: Sequence[Pair], *, mode: str | None = None) -> list[Likelihood]:
    """Returns the pseudo-likelihood of each continuation: its tokens are hidden and predicted one at a time.

    The model reads the context and the other tokens of the continuation. This is not the likelihood of a text: the
    pseudo-likelihoods of all continuations do not add up to 1. With an empty context: that of the whole text.

    Arguments and errors as for `continuations`, but those of the denoiser as for `pseudo_denoiser`.
    """
    experiment, denoiser = model.experiment, pseudo_denoiser(model.experiment, mode)
    texts, spans = [np.concatenate(pair[:2]) for pair in pairs], []
    for number, (pair, text) in enumerate(zip(pairs, texts, strict=True), start=1):
        places = range(len(pair.context), len(text))
        spans.append([(place, place + 1) for place in places])
        check_fits(experiment, denoiser, pair, spans[-1], f"text {number}")
    return _likelihoods(model, pairs, score_texts(model, denoiser, texts, spans), [0] * len(texts))


def check_fits(
    experiment: Experiment, denoiser: Denoiser, pair: Pair, spans: Sequence[tuple[int, int]], where: str
) -> None:
    """Raises ConfigError where a text is too long for a row of training with a span hidden; `where` names the text.

    spans: start and end of each, ascending. The first and the last one are checked.
    """
    text = np.concatenate(pair[:2])
    excess = max((_excess(experiment, denoiser, text, *span) for span in (*spans[:1], *spans[-1:])), default=0)
    if excess > 0:
        raise ConfigError(_too_long(experiment, pair, excess, False, where))


def _run(experiment: Experiment, mode: str | None) -> str:
    with_mode = f" with mode {mode!r}" if mode is not None else ""
    return f"objective.name={experiment.objective_name!r} on {experiment.model.architecture}{with_mode}"


def _excess(experiment: Experiment, denoiser: Denoiser, text: np.ndarray, start: int, stop: int) -> int:
    """Returns how many tokens `hide` with these arguments is too long for a row of training; 0 or less if it fits."""
    example = hide(denoiser, text, start, stop, experiment.vocab)
    data, inputs = experiment.data, len(example.inputs)
    targets = len(example.targets_start) + len(example.hidden)
    if example.prompting is not None:
        return inputs - data.inputs_length
    if experiment.model.has_encoder:
        return max(inputs - data.inputs_length, targets - data.targets_length)
    return inputs + targets - data.inputs_length


def _too_long(experiment: Experiment, pair: Pair, excess: int, drop_context: bool, where: str) -> str:
    data = experiment.data
    row = f"data.inputs_length={data.inputs_length}"
    if experiment.model.has_encoder and experiment.model.has_decoder:
        row += f" and data.targets_length={data.targets_length}"
    remedy = "shorten the continuation" if drop_context else "shorten it"
    return (
        f"{where} has {len(pair.context)} tokens of context and {len(pair.continuation)} of continuation, with special "
        f"tokens {excess} too many for {row}: {remedy}"
    )


def _likelihoods(
    model: LanguageModel, pairs: Sequence[Pair], scores: TextScores, dropped: Sequence[int]
) -> list[Likelihood]:
    """Returns the likelihoods of texts from their scores."""
    nats, tokens = scores.nats + scores.unknown_nats, scores.tokens + scores.unknown_tokens
    # An unknown first token has no bytes, also not that of the space.
    tokenizer = model.experiment.tokenizer
    with_space = [pair.is_start and pair.continuation[:1].tolist() not in ([], [tokenizer.vocab.unk]) for pair in pairs]
    num_bytes = scores.bytes - tokenizer.dummy_bytes * np.array(with_space, bool)
    columns = (nats, tokens, num_bytes, scores.is_exact, np.asarray(dropped))
    return [Likelihood(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _sum(parts: Sequence[Likelihood]) -> Likelihood:
    """Returns the likelihood of a text from those of its windows."""
    return Likelihood(
        nats=math.fsum(part.nats for part in parts),
        tokens=sum(part.tokens for part in parts),
        bytes=sum(part.bytes for part in parts),
        is_greedy=all(part.is_greedy for part in parts),
        dropped=0,
    )
