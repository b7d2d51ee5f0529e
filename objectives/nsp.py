"""Next sentence prediction (Devlin et al. 2019) in addition to masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.sentence_pairs import CUT, END, Pair, SentencePairs, draw_labels, first_kind

_LEAST_REST = 8  # tokens by which a short B may be shortened


@dataclasses.dataclass(frozen=True)
class NSP(SentencePairs):
    """B follows A (label 0), or B is from another document (label 1): a random B. Each has probability 1/2.

    A window is cut at the first end of a sentence from a place on that is drawn uniformly in its first half: A is the
    text before, and the true B is the text after. The window of the other document is cut in the same way, from the
    same place on, at the same kind of end, and the random B is the text after. Both are then shortened at their end, to
    the length of the shorter one and by up to an eighth more, drawn uniformly. So A, and the lengths of A and B, do not
    depend on the label, and both B begin with a sentence and end anywhere: without the eighth, a true B after a long A
    would end where its document does, and the random B, shortened to its length, inside a sentence.

    Deviations: BERT cuts a text at the end of any of its sentences, and trims pairs that are too long at the front or
    the end; its random B has as many whole sentences as fit. A pair for which one of the windows has no sentence end to
    cut at has no label.
    """

    extra_columns: ClassVar = ("others",)
    label_names: ClassVar = ("B follows A", "B is of another document")

    def pair(self, tokens, lengths, keys, vocab, *, others):
        most = self.used_lengths(np.maximum(lengths, others.lengths), keys)
        used, other_used = np.minimum(lengths, most), np.minimum(others.lengths, most)
        place = rng.integers(rng.fold_in(keys, CUT), 1, np.maximum(np.minimum(used, other_used) // 2, 1))
        cuts = self._cuts_from(place, tokens, lengths, used, vocab)
        other_cuts = self._cuts_from(place, *others, other_used, vocab)
        has_pair = cuts.any(axis=2) & other_cuts.any(axis=2)
        labels = draw_labels(keys, has_pair.any(axis=0))
        cut, other_cut = (first_kind(of_kinds, has_pair).argmax(axis=1) for of_kinds in (cuts, other_cuts))

        second = np.minimum(most - np.maximum(cut, other_cut), np.minimum(used - cut, other_used - other_cut))
        longest_rest = np.maximum(second // 8, np.minimum(second - 1, _LEAST_REST))
        second = second - rng.integers(rng.fold_in(keys, END), 0, np.maximum(longest_rest, 0))
        second_begins = np.where(labels == 1, tokens.shape[1] + other_cut, cut)
        has_label = labels >= 0
        first = np.where(has_label, cut, used)
        return Pair(np.zeros_like(first), first, second_begins, np.where(has_label, second, 0), labels)

    def _cuts_from(self, place, tokens, lengths, used, vocab):
        """bool [K, E, W + 1]: `cuts_between_sentences` from place[e] on, with at least one used token after them."""
        cuts = self.cuts_between_sentences(tokens, lengths, vocab)
        return cuts & valid_positions(used, cuts.shape[2]) & ~valid_positions(place, cuts.shape[2])
