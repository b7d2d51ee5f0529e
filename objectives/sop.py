"""Sentence order prediction (Lan et al. 2020) in addition to masked tokens."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from contract.vocab import BLANK, NEWLINE, SPACE, STOP, Vocab
from objectives.algebra.noise import random_column, take, valid_positions
from objectives.sentence_pairs import CUT, Pair, SentencePairs, draw_labels, first_kind


@dataclasses.dataclass(frozen=True)
class SOP(SentencePairs):
    """A and B are consecutive texts of whole sentences, in order (label 0) or swapped (label 1), with probability 1/2.

    Both begin after, and end with, the same kind of end: a line break, or a stop in a window with fewer than three line
    breaks. The place between A and B is drawn uniformly. The parts of sentences at the ends of a window are omitted,
    because a swapped pair would begin or end inside them; where the window begins or ends with its document, its first
    or last sentence is whole. Omitted are a last sentence of a document without an end mark, and the whitespace tokens
    between a stop and the next sentence.

    Deviations: ALBERT trims pairs that are too long, at the front or the end, which cuts sentences. A window with fewer
    than two whole sentences has no pair; ALBERT gives it a random B and labels it as swapped.
    """

    extra_columns: ClassVar = ("begins_document", "ends_document")
    label_names: ClassVar = ("in order", "swapped")
    has_whole_sentences: ClassVar = True

    def pair(self, tokens, lengths, keys, vocab, *, begins_document, ends_document):
        used, rows = self.used_lengths(lengths, keys), np.arange(len(tokens))
        cuts, text_begins = self.cuts_between_sentences(tokens, lengths, vocab), _after_blanks(tokens, lengths, vocab)
        for kind, of_kind in zip(self.kinds_of_ends, cuts, strict=True):
            # A line does not begin with a line break. After a stop and whitespace tokens, which are omitted, sentences
            # begin with the same mark as the document, or its first sentence would reveal its place.
            next_begin = text_begins[rows, np.minimum(of_kind[:, 1:].argmax(axis=1) + 1, tokens.shape[1] - 1)]
            is_begin = ~vocab.marked(tokens[:, 0], NEWLINE)
            if kind == STOP:
                marks = (vocab.marked(tokens[rows, column], SPACE) for column in (text_begins[:, 0], next_begin))
                is_begin = np.equal(*marks)
            of_kind[:, 0] = begins_document & is_begin
            of_kind[rows, lengths] = ends_document & vocab.marked(tokens[rows, lengths - 1], kind)
        cuts &= valid_positions(used + 1, cuts.shape[2])
        has_pair = cuts.sum(axis=2) > 2
        cuts = first_kind(cuts, has_pair)
        labels = draw_labels(keys, has_pair.any(axis=0))

        begin, stop = cuts.argmax(axis=1), cuts.shape[1] - 1 - cuts[:, ::-1].argmax(axis=1)
        cuts[rows, begin] = cuts[rows, stop] = False
        cut = random_column(rng.fold_in(keys, CUT), cuts)
        begins, ends = np.stack([begin, cut], axis=1), np.stack([cut, stop], axis=1)
        is_after_stop = np.array([kind == STOP for kind in self.kinds_of_ends])[has_pair.argmax(axis=0)]
        begins[is_after_stop] = take(text_begins, np.minimum(begins, tokens.shape[1] - 1))[is_after_stop]
        sizes = ends - begins
        swapped = labels == 1
        begins[swapped], sizes[swapped] = begins[swapped, ::-1], sizes[swapped, ::-1]
        without = labels < 0
        begins[without], sizes[without] = 0, np.stack([used, np.zeros_like(used)], axis=1)[without]
        return Pair(begins[:, 0], sizes[:, 0], begins[:, 1], sizes[:, 1], labels)


def _after_blanks(tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> np.ndarray:
    """int64 [E, W]: the first position from each position on that is no whitespace token; W - 1 where there is none."""
    width = tokens.shape[1]
    is_text = valid_positions(lengths, width) & ~vocab.marked(tokens, BLANK)
    positions = np.where(is_text, np.arange(width), width - 1)
    return np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]
