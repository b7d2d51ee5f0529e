"""Sentence order prediction (Lan et al. 2020) beside masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.sentence_pairs import _CUT, _LABEL, _OTHER, Pair, SentencePairs, _random_column


@dataclasses.dataclass(frozen=True)
class SOP(SentencePairs):
    """Sentence order prediction (Lan et al. 2020): A and B follow one another (label 0) or are swapped (label 1).

    Each with probability 1/2. What a window may have cut is left out, or the swapped would be those that begin or end
    within a sentence: its last sentence if it does not end, and of three or more whole ones the first, which may have
    begun before. A window without two whole sentences is cut in two at any token, each cut as likely; ALBERT gives a
    single sentence a random B and labels that as swapped. A window of one token is an A in order, with an empty B.
    """

    label_names: ClassVar = ("in order", "swapped")

    def pair(self, tokens, lengths, keys, vocab):
        used, ends, last_is_whole = self._sentences(tokens, lengths, keys, vocab)
        rows, width = np.arange(len(used)), tokens.shape[1]
        ends[rows, used - 1] = last_is_whole
        whole = ends.sum(axis=1)
        begin = np.where(whole > 2, ends.argmax(axis=1) + 1, 0)
        stop = np.where(whole > 1, width - ends[:, ::-1].argmax(axis=1), used)
        ends &= valid_positions(stop - 1, width) & ~valid_positions(begin, width)
        anywhere = rng.integers(rng.fold_in(keys, _OTHER), 1, np.maximum(used - 1, 1))
        cut = np.where(whole > 1, _random_column(rng.fold_in(keys, _CUT), ends) + 1, anywhere)
        is_swapped = (rng.uniform(rng.fold_in(keys, _LABEL), 1)[:, 0] < 0.5) & (used > 1)
        begins, sizes = np.stack([begin, cut], axis=1), np.stack([cut - begin, stop - cut], axis=1)
        begins[is_swapped], sizes[is_swapped] = begins[is_swapped, ::-1], sizes[is_swapped, ::-1]
        return Pair(begins[:, 0], sizes[:, 0], begins[:, 1], sizes[:, 1], is_swapped.astype(np.int32))
