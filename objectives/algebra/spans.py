"""Spans after sentinels: finds them in an answer, and puts them in place of the sentinels of a text."""

import numpy as np

from contract.vocab import Vocab


def spans_by_sentinel(answer: np.ndarray, vocab: Vocab) -> dict[int, np.ndarray]:
    """Returns sentinel number -> the tokens in `answer`, int [n], between that sentinel and the next sentinel.

    Sentinels may be in any order. If a sentinel repeats, its first span is returned. Tokens before the first sentinel
    are dropped.
    """
    starts = np.flatnonzero(np.isin(answer, vocab.sentinels))
    number = {id_: k for k, id_ in enumerate(vocab.sentinel_ids)}
    spans: dict[int, np.ndarray] = {}
    for span in np.split(answer, starts)[1:]:
        spans.setdefault(number[int(span[0])], span[1:])
    return spans


def replace_sentinels(text: np.ndarray, spans: dict[int, np.ndarray], vocab: Vocab) -> np.ndarray:
    """`text`, int [n], with each sentinel of `spans` replaced by its tokens, int32. Other sentinels remain."""
    number = {int(vocab.sentinel(k)): k for k in spans}
    parts = [spans[number[token]] if token in number else [token] for token in text.tolist()]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
