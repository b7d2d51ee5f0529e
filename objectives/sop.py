"""Sentence order prediction (Lan et al. 2020) in addition to masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.sentence_pairs import CUT, LABEL, OTHER, Pair, SentencePairs, random_column


@dataclasses.dataclass(frozen=True)
class SOP(SentencePairs):
    """A and B are consecutive pieces of text, in order (label 0) or swapped (label 1), each with probability 1/2.

    Sentences that the window may have cut are excluded, since a swapped pair would begin or end inside them: the last
    sentence if it is not whole, and the first sentence if at least three are whole. A window without two whole
    sentences is cut in two at a uniformly drawn token; ALBERT gives a single sentence a random B and labels the pair as
    swapped. In a window of one token that token is A, B is empty, and the label is 0.
    """

    label_names: ClassVar = ("in order", "swapped")

    def pair(self, tokens, lengths, keys, vocab):
        used, ends, last_is_whole = self.used_sentences(tokens, lengths, keys, vocab)
        rows, width = np.arange(len(used)), tokens.shape[1]
        ends[rows, used - 1] = last_is_whole
        whole = ends.sum(axis=1)
        begin = np.where(whole > 2, ends.argmax(axis=1) + 1, 0)
        stop = np.where(whole > 1, width - ends[:, ::-1].argmax(axis=1), used)
        ends &= valid_positions(stop - 1, width) & ~valid_positions(begin, width)
        anywhere = rng.integers(rng.fold_in(keys, OTHER), 1, np.maximum(used - 1, 1))
        cut = np.where(whole > 1, random_column(rng.fold_in(keys, CUT), ends) + 1, anywhere)
        is_swapped = (rng.uniform(rng.fold_in(keys, LABEL), 1)[:, 0] < 0.5) & (used > 1)
        begins, sizes = np.stack([begin, cut], axis=1), np.stack([cut - begin, stop - cut], axis=1)
        begins[is_swapped], sizes[is_swapped] = begins[is_swapped, ::-1], sizes[is_swapped, ::-1]
        return Pair(begins[:, 0], sizes[:, 0], begins[:, 1], sizes[:, 1], is_swapped.astype(np.int32))
