"""Next sentence prediction (Devlin et al. 2019) in addition to masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.sentence_pairs import CUT, LABEL, OTHER, TRIM_A, TRIM_B, Pair, SentencePairs, random_column


@dataclasses.dataclass(frozen=True)
class NSP(SentencePairs):
    """B follows A (label 0), or B is from another document (label 1): a random B.

    B is random with probability 1/2, and always where A is the whole window. So slightly more than half of the pairs
    have a random B, as in BERT. Neither the length of B nor its ends must reveal the label:
    - Begin: a random B begins with a sentence, as a true B does. The first sentence of the other window is excluded,
      because that window may have cut it. The others are equally likely if they leave as many tokens as the true B has.
      A is cut late enough for such a sentence to exist, if any cut allows that; otherwise B begins with the earliest.
    - End: if the true B ends inside a sentence, a random B has as many tokens as the true B, or one less where it would
      end with a sentence. If the true B ends with a sentence, a random B has the most whole sentences that fit the
      length of the true B. Deviation: BERT's random B always consists of whole sentences.

    After an A that is the whole window, B may be as long as A, and both are trimmed as in BERT: one token at a time
    from the longer text, at its front or its end with probability 1/2, until both together have as many tokens as the
    window, at least 2.
    """

    extra_columns: ClassVar = ("others",)
    label_names: ClassVar = ("B follows A", "B is of another document")

    def pair(self, tokens, lengths, keys, vocab, *, others):
        used, ends, ends_whole = self.used_sentences(tokens, lengths, keys, vocab)
        starts, other_ends = self._other_sentences(others, vocab)
        # A ends at the same place for either label: late enough for a random B as long as the rest of the window.
        ends[np.arange(len(ends)), used - 1] = False
        other_room = others.lengths - starts.argmax(axis=1)
        fitting = ends & ~valid_positions(used - other_room - 1, ends.shape[1])
        ends = np.where(fitting.any(axis=1)[:, None], fitting, ends)
        cut = random_column(rng.fold_in(keys, CUT), ends) + 1  # 0 for a window of one sentence
        is_random = (rng.uniform(rng.fold_in(keys, LABEL), 1)[:, 0] < 0.5) | (cut == 0)
        first, wanted = np.where(cut == 0, used, cut), np.where(cut == 0, used, used - cut)

        long_enough = starts & valid_positions(others.lengths - wanted + 1, starts.shape[1])
        begins = np.maximum(random_column(rng.fold_in(keys, OTHER), long_enough), 0)
        begins = np.where(long_enough.any(axis=1), begins, starts.argmax(axis=1))
        other = _random_lengths(other_ends, begins, np.minimum(wanted, others.lengths - begins), ends_whole & (cut > 0))
        second = np.where(is_random, other, used - cut)
        kept_first, kept_second = trimmed_lengths(first, second, np.maximum(used, 2))
        first_begins = _heads(rng.fold_in(keys, TRIM_A), first - kept_first)
        other_begins = tokens.shape[1] + begins + _heads(rng.fold_in(keys, TRIM_B), second - kept_second)
        second_begins = np.where(is_random, other_begins, cut)
        return Pair(first_begins, kept_first, second_begins, kept_second, is_random.astype(np.int32))

    def _other_sentences(self, others: Sequences, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
        """Where a random B may begin, and where its sentences certainly end: bool [E, W] each."""
        ends, last_is_whole = self.ends_of_sentences(*others, vocab)
        starts = np.zeros_like(ends)
        starts[:, 1:] = ends[:, :-1]
        starts &= valid_positions(others.lengths, ends.shape[1])
        ends[np.arange(len(ends)), others.lengths - 1] = last_is_whole
        return starts, ends


def trimmed_lengths(first: np.ndarray, second: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of A and of B that remain after trimming to `limit` tokens together; int [E] each.

    Tokens are removed one at a time from the longer text, or from B where both are equal (google-research/bert,
    truncate_seq_pair).
    """
    kept = np.minimum(first, np.maximum(limit - second, (limit + 1) // 2))
    return kept, np.minimum(second, limit - kept)


def _random_lengths(ends: np.ndarray, begins: np.ndarray, most: np.ndarray, must_end: np.ndarray) -> np.ndarray:
    """int64 [E]: tokens of a random B at `begins`, at most `most`: whole sentences if `must_end`, else cut."""
    rows, width = np.arange(len(ends)), ends.shape[1]
    ends = ends & valid_positions(begins + most, width) & ~valid_positions(begins, width)
    last_end = width - ends[:, ::-1].argmax(axis=1)
    whole = np.where(ends.any(axis=1), last_end - begins, most)
    return np.where(must_end, whole, most - (ends[rows, begins + most - 1] & (most > 1)))


def _heads(keys: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """int64 [E]: how many of `tosses`, int [E], fair coins fall heads."""
    most = int(tosses.max())
    return ((rng.uniform(keys, most) < 0.5) & valid_positions(tosses, most)).sum(axis=1)
