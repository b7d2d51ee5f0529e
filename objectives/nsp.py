"""Next sentence prediction (Devlin et al. 2019) beside masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.sentence_pairs import (
    _CUT,
    _LABEL,
    _OTHER,
    _TRIM_A,
    _TRIM_B,
    Pair,
    SentencePairs,
    _heads,
    _random_column,
    kept_of_pair,
)


@dataclasses.dataclass(frozen=True)
class NSP(SentencePairs):
    """Next sentence prediction (Devlin et al. 2019): B follows A (label 0) or is of another document (label 1).

    A foreign B comes with probability 1/2, and always after an A that is the whole window: with a little more than half
    of the pairs, as in BERT. Only the text is to tell it from a true one. So it begins with a sentence, as a true B
    does, and not with the first of its window, which may be cut: with a random one of those that leave it as many
    tokens as the true B has. A is long enough that there is one, where it can be; else the earliest sentence will do.
    A foreign B has as many tokens as the true one if the window cut that one within a sentence, one less if they would
    end with one; otherwise the most whole sentences of that many tokens. (BERT's has whole sentences.)

    After an A that is the whole window B may be as long, and both are trimmed as BERT trims: a token at a time of the
    longer one, at its front or its end with probability 1/2, until together they have the tokens of the window, or 2.
    """

    extra_columns: ClassVar = ("others",)
    label_names: ClassVar = ("B follows A", "B is of another document")

    def pair(self, tokens, lengths, keys, vocab, *, others):
        used, ends, is_whole = self._sentences(tokens, lengths, keys, vocab)
        starts, other_ends = self._foreign_sentences(others, vocab)
        # Where A ends, the same for either label: not so early that no foreign B could be as long as the rest.
        ends[np.arange(len(ends)), used - 1] = False
        room = others.lengths - starts.argmax(axis=1)
        fitting = ends & ~valid_positions(used - room - 1, ends.shape[1])
        ends = np.where(fitting.any(axis=1)[:, None], fitting, ends)
        cut = _random_column(rng.fold_in(keys, _CUT), ends) + 1  # 0 for a single sentence
        is_random = (rng.uniform(rng.fold_in(keys, _LABEL), 1)[:, 0] < 0.5) | (cut == 0)
        first, wanted = np.where(cut == 0, used, cut), np.where(cut == 0, used, used - cut)

        roomy = starts & valid_positions(others.lengths - wanted + 1, starts.shape[1])
        begins = np.maximum(_random_column(rng.fold_in(keys, _OTHER), roomy), 0)
        begins = np.where(roomy.any(axis=1), begins, starts.argmax(axis=1))
        other = _foreign_lengths(other_ends, begins, np.minimum(wanted, others.lengths - begins), is_whole & (cut > 0))
        second = np.where(is_random, other, used - cut)
        kept_first, kept_second = kept_of_pair(first, second, np.maximum(used, 2))
        first_begins = _heads(rng.fold_in(keys, _TRIM_A), first - kept_first)
        other_begins = tokens.shape[1] + begins + _heads(rng.fold_in(keys, _TRIM_B), second - kept_second)
        second_begins = np.where(is_random, other_begins, cut)
        return Pair(first_begins, kept_first, second_begins, kept_second, is_random.astype(np.int32))

    def _foreign_sentences(self, others: Sequences, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
        """Where a foreign B may begin, and where its sentences end for certain: bool [E, W] each."""
        ends, last_is_whole = self._ends(*others, vocab)
        starts = np.zeros_like(ends)
        starts[:, 1:] = ends[:, :-1]
        starts &= valid_positions(others.lengths, ends.shape[1])
        ends[np.arange(len(ends)), others.lengths - 1] = last_is_whole
        return starts, ends


def _foreign_lengths(ends: np.ndarray, begins: np.ndarray, most: np.ndarray, is_whole: np.ndarray) -> np.ndarray:
    """int64 [E]: tokens of a B that begins there; `most`, and those only that make whole sentences, or do not."""
    rows, width = np.arange(len(ends)), ends.shape[1]
    ends = ends & valid_positions(begins + most, width) & ~valid_positions(begins, width)
    last_end = width - ends[:, ::-1].argmax(axis=1)
    whole = np.where(ends.any(axis=1), last_end - begins, most)
    return np.where(is_whole, whole, most - (ends[rows, begins + most - 1] & (most > 1)))
