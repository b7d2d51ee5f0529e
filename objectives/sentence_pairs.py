"""Pairs of sentences beside masked tokens: BERT's next sentence prediction, ALBERT's sentence order prediction."""

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import NEWLINE, STOP, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, sentence_ends
from objectives.algebra.sequences import Sequences
from objectives.mlm import MLM
from objectives.rows.lengths import OutputLengths

_DRAWS = 10  # the first tag of keys that MLM leaves free
_TEXT, _CUT, _LABEL, _OTHER, _TRIM_A, _TRIM_B = range(_DRAWS, _DRAWS + 6)


class Pair(NamedTuple):
    """Two pieces of E texts, A and B: where each begins and how many tokens it has; int64 [E], labels int32 [E]."""

    first_begins: np.ndarray
    first_lengths: np.ndarray
    second_begins: np.ndarray
    second_lengths: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class SentencePairs(MLM):
    """[CLS] A [SEP] B [SEP], masked as MLM masks it; A is of token type 0 with [CLS] and its [SEP], B of type 1.

    A window of one document is cut in two at the end of a sentence, each as likely. What becomes of the parts, and what
    the label says of it, is the subclass's.

    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py).
    short_seq_prob: share of the windows of which only the first 2 to all tokens are used, each length as likely: short
        texts are to be seen too. BERT and ALBERT: 0.1.
    pair_weight: what the pair's loss counts beside MLM's. At 0, the ablation, only that loss goes: inputs and masks are
        the same to the bit. BERT and ALBERT: 1.

    Deviations from the reference (create_pretraining_data.py of google-research/bert and albert): a window is as long
    as a row can hold, so it may begin and end within a sentence, and nothing of two sentences that follow one another
    is ever cut to fit; what a short text or a foreign B leaves unused is not put back, it comes again in another epoch;
    masks are drawn anew for every window.
    """

    sentence_ends: SentenceEnds
    short_seq_prob: float
    pair_weight: float

    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    covers_window: ClassVar = False
    one_example_per_row: ClassVar = True
    num_token_types: ClassVar = 2

    def check(self, field: str) -> list[str]:
        if not 0 <= self.short_seq_prob <= 1:
            raise ConfigError(f"{field}.short_seq_prob={self.short_seq_prob} must lie between 0 and 1; BERT uses 0.1")
        if not 0 <= self.pair_weight < float("inf"):
            raise ConfigError(f"{field}.pair_weight={self.pair_weight} must be 0 (the ablation) or more; BERT uses 1")
        return super().check(field)

    def output_lengths(self, raw):
        inputs = np.maximum(raw, 2) + 3
        return OutputLengths(inputs, np.zeros_like(raw), inputs)

    def pair(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> Pair:
        """The pieces of the windows that make the pairs, and the labels. Other keywords are those of `corrupt`."""
        raise NotImplementedError

    def corrupt(self, tokens, lengths, keys, vocab, **more):
        pair = self.pair(tokens, lengths, keys, vocab, **more)
        text, _, token_types = _joined(_side_by_side(tokens, **more), pair, vocab)
        return self.mask(text, keys, vocab)._replace(token_types=token_types, labels=pair.labels)

    def hidden(self, tokens, lengths, keys, vocab, **more):
        both = _side_by_side(tokens, **more)
        text, places, _ = _joined(both, self.pair(tokens, lengths, keys, vocab, **more), vocab)
        rows, columns = np.nonzero((places >= 0) & ~self.hides(text, keys, vocab))
        hidden = valid_positions(lengths, tokens.shape[1])
        for sequences in more.values():
            hidden = np.concatenate([hidden, valid_positions(sequences.lengths, sequences.tokens.shape[1])], axis=1)
        hidden[rows, places[rows, columns]] = False
        return hidden

    def restore(self, inputs, targets, vocab):
        return targets[(targets != vocab.cls) & (targets != vocab.sep)]

    def _sentences(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab):
        """How much of each window is used, int64 [E]; where its sentences end, bool [E, W]; and whether its last one
        does, where a window may be cut, bool [E]: that end is marked either way."""
        is_short = rng.uniform(rng.fold_in(keys, _TEXT), 2)[:, 1] < self.short_seq_prob
        short = rng.integers(rng.fold_in(keys, _TEXT), np.minimum(lengths, 2), lengths)
        used = np.where(is_short, short, lengths).astype(np.int64)
        return used, *self._ends(tokens, used, vocab)

    def _ends(self, tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
        ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
        marks = {"stops": STOP, "newlines": NEWLINE, "stops_and_newlines": STOP | NEWLINE}[self.sentence_ends]
        return ends, vocab.marked(tokens[np.arange(len(tokens)), lengths - 1], marks)


def kept_of_pair(first: np.ndarray, second: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of A and of B are left once the longer one, B where they are equal, has lost one after another
    until both together have `limit`, int [E] each (google-research/bert, truncate_seq_pair)."""
    kept = np.minimum(first, np.maximum(limit - second, (limit + 1) // 2))
    return kept, np.minimum(second, limit - kept)


def _random_column(keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """int64 [E]: one of the columns where `allowed`, bool [E, W], each as likely; -1 where there is none."""
    counts = allowed.sum(axis=1)
    columns = np.append(np.flatnonzero(allowed) % allowed.shape[1], 0)
    nth = rng.integers(keys, 0, np.maximum(counts - 1, 0))
    return np.where(counts > 0, columns[np.cumsum(counts) - counts + nth], -1)


def _heads(keys: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """int64 [E]: how many of `tosses`, int [E], fair coins fall heads."""
    most = int(tosses.max())
    return ((rng.uniform(keys, most) < 0.5) & valid_positions(tosses, most)).sum(axis=1)


def _side_by_side(tokens: np.ndarray, others: Sequences | None = None) -> np.ndarray:
    """int32 [E, W + V]: each window and, after it, what it may be paired with."""
    return tokens if others is None else np.concatenate([tokens, others.tokens], axis=1)


def _joined(tokens: np.ndarray, pair: Pair, vocab: Vocab) -> tuple[Sequences, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP], and for each of its positions, int [E, W]: its place in `tokens`, -1 for the special ones
    and beyond the end; int32 [E, W]: its token type."""
    first_sep = pair.first_lengths[:, None] + 1
    last_sep = first_sep + pair.second_lengths[:, None] + 1
    lengths = last_sep[:, 0] + 1
    at = np.arange(int(lengths.max()))
    in_first = at < first_sep
    places = at + np.where(in_first, pair.first_begins[:, None] - 1, pair.second_begins[:, None] - first_sep - 1)
    is_text = (at > 0) & (at != first_sep) & (at < last_sep)
    places = np.where(is_text, places, -1)
    joined = take(tokens, np.maximum(places, 0))
    joined[~is_text] = vocab.sep
    joined[:, 0] = vocab.cls
    return Sequences(joined, lengths), places, (at > first_sep).astype(np.int32)
