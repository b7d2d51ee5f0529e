"""The texts of requests as tokens: where a context ends, and the windows of texts of any length."""

import bisect
from collections.abc import Iterator

import numpy as np
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from contract.errors import ConfigError
from data.tokenizers.tokenizer import Tokenizer
from evaluation.likelihood import Pair, encode_pair, fits
from experiment.experiment import Experiment
from generate.prompts import encode
from objectives import Denoiser


def split_pair(tokenizer: Tokenizer, denoiser: Denoiser, context: str, continuation: str, *, where: str) -> Pair:
    """Returns the tokens of a context and its continuation, divided as lm-eval's Hugging Face model divides them.

    White space at the end of the context belongs to the continuation, because tokenizers attach spaces to the word
    after them. The tokens are those of the whole text, as in training, where lm-eval's encoder-decoders encode the two
    texts apart; a model of prompts and responses (SFT) was trained on texts that were encoded apart, and reads them so.

    Raises ConfigError for text that is not valid Unicode; `where` names it.
    """
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    if denoiser.objective.prompting.task == "respond":
        nothing = np.zeros(0, np.int32)
        return Pair(*(encode(tokenizer, text, nothing, where=where) for text in (kept, continuation)))
    return encode_pair(tokenizer, kept, continuation, where=where)


def longest_window(experiment: Experiment, denoiser: Denoiser) -> int:
    """Returns the largest max_seq_len of lm-eval's rolling windows with which each of them fits a row of training.

    Raises ConfigError for a row that is too short for two tokens.
    """

    def is_too_long(length: int) -> bool:
        # A window has `length` + 1 tokens, of which the first one, or all but the last one, are the context.
        return not all(fits(experiment, denoiser, count, length + 1 - count) for count in (1, length))

    data = experiment.data
    length = bisect.bisect_left(range(1, data.inputs_length + data.targets_length), True, key=is_too_long)
    if not length:
        raise ConfigError(f"data.inputs_length={data.inputs_length} is too short for a window of two tokens")
    return length


def rolling_windows(text: np.ndarray, length: int) -> Iterator[Pair]:
    """Yields lm-eval's rolling windows of `text`, int32 [n], whose continuations together are the text.

    The first window has no context: a row begins with what lm-eval calls the prefix token. Later windows have one
    token of context, and the last one as many as fit.

    length: of `longest_window`.
    """
    prefix = -1  # lm-eval's prefix token, which is in the first window alone
    for window in get_rolling_token_windows(text.tolist(), prefix, max_seq_len=length, context_len=1):
        context, continuation = make_disjoint_window(window)
        yield Pair(*(np.array(part, np.int32) for part in ([] if context == [prefix] else context, continuation)))
