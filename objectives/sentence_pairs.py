"""Pairs of sentences in addition to masked tokens: the common part of BERT's NSP and ALBERT's SOP."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import NEWLINE, STOP, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, sentence_ends
from objectives.algebra.sequences import Sequences
from objectives.mlm import FIRST_FREE_TAG, MLM
from objectives.prompting import FillMasks
from objectives.rows.lengths import OutputLengths

# Tags of keys: for the used length of a window, the cut, the label, the other text, and the trimming of A and B.
USED, CUT, LABEL, OTHER, TRIM_A, TRIM_B = range(FIRST_FREE_TAG, FIRST_FREE_TAG + 6)


class Pair(NamedTuple):
    """Two pieces, A and B, of each of E texts: where each begins and its tokens, int64 [E]; labels int32 [E]."""

    first_begins: np.ndarray
    first_lengths: np.ndarray
    second_begins: np.ndarray
    second_lengths: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class SentencePairs(MLM):
    """[CLS] A [SEP] B [SEP], masked as in MLM. [CLS] A [SEP] has token type 0, B [SEP] has token type 1.

    A window of one document is cut in two at the end of a sentence, drawn uniformly. Subclasses define A, B and the
    label.

    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py).
    short_seq_prob: share of the windows that are shortened to their first n tokens, n uniform in 2..all, so that the
        model also reads short texts. BERT and ALBERT: 0.1.
    pair_weight: weight of the pair's loss relative to MLM's. 0 is the ablation: inputs and masks are identical, without
        the pair's loss. BERT and ALBERT: 1.

    Deviations from the references (create_pretraining_data.py of google-research/bert and albert): a window is as long
    as a row allows, so it may begin and end inside a sentence, and no pair of consecutive sentences is cut to fit. Text
    that a shortened window or a random B leaves unused is not read in this epoch. Every window has new masks.
    """

    sentence_ends: SentenceEnds
    short_seq_prob: float
    pair_weight: float

    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    covers_window: ClassVar = False
    one_example_per_row: ClassVar = True
    num_token_types: ClassVar = 2
    learner: ClassVar = "sentence_pairs"

    @property
    def prompting(self):
        return FillMasks(self.mask_rate)

    def check(self, field):
        if not 0 <= self.short_seq_prob <= 1:
            raise ConfigError(f"{field}.short_seq_prob={self.short_seq_prob} must lie between 0 and 1; BERT uses 0.1")
        if not 0 <= self.pair_weight < float("inf"):
            raise ConfigError(f"{field}.pair_weight={self.pair_weight} must be 0 (the ablation) or more; BERT uses 1")
        return super().check(field)

    def output_lengths(self, raw):
        inputs = np.maximum(raw, 2) + 3
        return OutputLengths(inputs, np.zeros_like(raw), inputs)

    @abc.abstractmethod
    def pair(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab, **columns) -> Pair:
        """Returns the pieces of the windows that form the pairs, and the labels. Arguments as for `corrupt`."""

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        pair = self.pair(tokens, lengths, keys, vocab, **columns)
        text, _, token_types = _join(_concatenate(tokens, **columns), pair, vocab)
        return self.mask(text, keys, vocab)._replace(token_types=token_types, labels=pair.labels)

    def hidden(self, tokens, lengths, keys, vocab, **columns):
        pair = self.pair(tokens, lengths, keys, vocab, **columns)
        text, places, _ = _join(_concatenate(tokens, **columns), pair, vocab)
        rows, positions = np.nonzero((places >= 0) & ~self.replaced(text, keys, vocab))
        hidden = valid_positions(lengths, tokens.shape[1])
        for sequences in columns.values():
            hidden = np.concatenate([hidden, valid_positions(sequences.lengths, sequences.tokens.shape[1])], axis=1)
        hidden[rows, places[rows, positions]] = False
        return hidden

    def restore(self, inputs, targets, vocab):
        return targets[(targets != vocab.cls) & (targets != vocab.sep)]

    def used_sentences(
        self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of tokens of each window that are used, int64 [E], and `ends_of_sentences` of these tokens."""
        is_short = rng.uniform(rng.fold_in(keys, USED), 2)[:, 1] < self.short_seq_prob
        short = rng.integers(rng.fold_in(keys, USED), np.minimum(lengths, 2), lengths)
        used = np.where(is_short, short, lengths).astype(np.int64)
        return used, *self.ends_of_sentences(tokens, used, vocab)

    def ends_of_sentences(self, tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
        """Where sentences and texts end, bool [E, W]; and whether the end of a text ends a sentence, bool [E].

        Otherwise the window has cut the text's last sentence.
        """
        ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
        marks = {"stops": STOP, "newlines": NEWLINE, "stops_and_newlines": STOP | NEWLINE}[self.sentence_ends]
        return ends, vocab.marked(tokens[np.arange(len(tokens)), lengths - 1], marks)


def random_column(keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """int64 [E]: a column of each row, drawn uniformly where `allowed`, bool [E, W]; -1 if no column is allowed."""
    counts = allowed.sum(axis=1)
    columns = np.append(np.flatnonzero(allowed) % allowed.shape[1], 0)
    nth = rng.integers(keys, 0, np.maximum(counts - 1, 0))
    return np.where(counts > 0, columns[np.cumsum(counts) - counts + nth], -1)


def _concatenate(tokens: np.ndarray, others: Sequences | None = None) -> np.ndarray:
    """int32 [E, W + V]: the tokens of each window, then the tokens of the other window."""
    return tokens if others is None else np.concatenate([tokens, others.tokens], axis=1)


def _join(tokens: np.ndarray, pair: Pair, vocab: Vocab) -> tuple[Sequences, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP]; the place of each position in `tokens`, int [E, W]; token types, int32 [E, W].

    The place of special tokens and of padding is -1.
    """
    first_sep = pair.first_lengths[:, None] + 1
    last_sep = first_sep + pair.second_lengths[:, None] + 1
    lengths = last_sep[:, 0] + 1
    position = np.arange(int(lengths.max()))
    in_first = position < first_sep
    places = position + np.where(in_first, pair.first_begins[:, None] - 1, pair.second_begins[:, None] - first_sep - 1)
    is_text = (position > 0) & (position != first_sep) & (position < last_sep)
    places = np.where(is_text, places, -1)
    joined = take(tokens, np.maximum(places, 0))
    joined[~is_text] = vocab.sep
    joined[:, 0] = vocab.cls
    return Sequences(joined, lengths), places, (position > first_sep).astype(np.int32)
