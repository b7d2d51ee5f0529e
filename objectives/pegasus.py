"""PEGASUS' gap sentences (Zhang et al. 2020, arXiv 1912.08777): read a text without its main sentences, write them."""

import dataclasses
from typing import Annotated, Literal

import numpy as np

from contract import rng
from contract.vocab import BLANK, PUNCTUATION, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, Sentences, first_tokens, sentence_ends, sentences_of
from objectives.algebra.sequences import append, compact
from objectives.algebra.words import fitting
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Rewrite
from objectives.reverse import unit_starts


@dataclasses.dataclass(frozen=True)
class PEGASUS(Objective):
    """[MASK] replaces each of some whole sentences, and the targets are these sentences, in their order.

    select: which sentences are gaps. "principal": those with the highest ROUGE-1 F1 against the rest of the text, each
        scored by itself and repeated words counted each time (the paper's Ind-Orig, its best). "random". "lead": the
        first ones.
    gap_ratio: share of the sentences that are gaps, rounded down, but one at least.
    most_hidden: the greatest share of the tokens that gaps may hold. A sentence that does not fit is passed over, for
        the next one by `select`. A text of which no sentence fits has no gap, and its targets are an EOS.
    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py).

    With "principal" the choice of the gaps depends on what they hide, as in the paper.

    Words are compared by their tokens (objectives/reverse.py, `unit_starts`): with case, and a word after a space is
    not the word at the beginning of a text where the vocabulary joins spaces to words. White space and single tokens of
    punctuation are no words. F1 is twice the words that a sentence and the rest have in common, divided by the words of
    both, which are those of the text. So the sentences are ordered by their number of common words; of equal ones the
    first comes first.

    Deviations: the paper cuts targets at 256 tokens; `most_hidden` keeps them within the row instead. PEGASUS LARGE has
    a ratio of .45, of which a fifth of the sentences stay in the inputs, and noise in its scores. [MASK] is the paper's
    [MASK1]; masked words, its [MASK2], are not implemented, as its final models have none. The authors' code ignores
    stop words, and of equal sentences takes the last one.
    """

    select: Literal["principal", "random", "lead"]
    gap_ratio: Annotated[float, "(0, 1]"]
    most_hidden: Annotated[float, "(0, 1]"]
    sentence_ends: SentenceEnds

    prompting = Rewrite("mask", "tokens")

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        most_hidden = self._most_hidden(raw)
        most_gaps = np.minimum(self._num_gaps(raw // 2 + 1), most_hidden)  # a sentence in the middle has two tokens
        return OutputLengths(raw + 1, most_hidden + 1, raw + 2 + most_gaps)

    def corrupt(self, tokens, lengths, keys, vocab):
        hidden, starts = self._gaps(tokens, lengths, keys, vocab)
        shown = np.where(hidden, np.int32(vocab.mask), tokens)
        inputs = compact(shown, valid_positions(lengths, tokens.shape[1]) & (starts | ~hidden))
        return InputsTargets(append(inputs, vocab.eos), append(compact(tokens, hidden), vocab.eos))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return self._gaps(tokens, lengths, keys, vocab)[0]

    def restore(self, inputs, targets, vocab):
        return None  # nothing marks where one sentence of the targets ends

    def _most_hidden(self, raw: np.ndarray) -> np.ndarray:
        return _rounded_down(np.asarray(raw) * self.most_hidden)

    def _num_gaps(self, num_sentences: np.ndarray) -> np.ndarray:
        return np.maximum(_rounded_down(num_sentences * self.gap_ratio), 1)

    def _gaps(
        self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of gaps, and their first tokens, bool [E, W] each."""
        ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
        sentences = sentences_of(ends)
        order = self._order(tokens, lengths, sentences, keys, vocab)
        sizes = take(sentences.lengths, order).astype(np.int32)
        place = np.broadcast_to(np.arange(order.shape[1], dtype=np.int32), order.shape)
        fits = fitting(sizes, sizes, place, self._most_hidden(lengths))
        fits &= np.cumsum(fits, axis=1) <= self._num_gaps(sentences.counts)[:, None]
        chosen = np.zeros(sentences.lengths.shape, bool)
        np.put_along_axis(chosen, order, fits, axis=1)
        hidden = take(chosen, sentences.number)
        return hidden, hidden & first_tokens(ends)

    def _order(
        self, tokens: np.ndarray, lengths: np.ndarray, sentences: Sentences, keys: np.ndarray, vocab: Vocab
    ) -> np.ndarray:
        """int64 [E, S + 1]: the sentences of each example, those first that are gaps first; then those it lacks."""
        shape = sentences.lengths.shape
        exists = valid_positions(sentences.counts, shape[1])
        if self.select == "principal":
            ranks = -common_words(tokens, lengths, sentences, vocab).astype(np.float64)
        elif self.select == "random":
            ranks = rng.uniform(keys, shape[1])
        else:
            ranks = np.zeros(shape)
        return np.argsort(np.where(exists, ranks, np.inf), axis=1, kind="stable")


def _rounded_down(values: np.ndarray) -> np.ndarray:
    """int64: the integers below, where 100 * 0.29 is 29 and not the float below it."""
    return np.floor(values + 1e-9).astype(np.int64)


def common_words(tokens: np.ndarray, lengths: np.ndarray, sentences: Sentences, vocab: Vocab) -> np.ndarray:
    """int64 [E, S + 1]: how many words of each sentence its text has outside of it too, each word paired once.

    tokens: int32 [E, W]; lengths: int [E]. The number of a word's pairs is the smaller one of its numbers in the
    sentence and in the rest of the text: ROUGE-1's overlap.
    """
    valid = valid_positions(lengths, tokens.shape[1])
    begins = np.flatnonzero(unit_starts(np.where(valid, tokens, np.int32(vocab.pad)), vocab) & valid)
    places = np.flatnonzero(valid)
    flat, at = tokens.ravel()[places], np.searchsorted(places, begins)
    word = np.repeat(np.arange(len(at)), np.diff(at, append=len(places)))
    # A word's key: a sum of hashes of its tokens and their places in it, mixed with its row.
    inside = (np.arange(len(places)) - at[word]).astype(np.uint64)
    hashes = np.add.reduceat(rng.mix64(flat.astype(np.uint64) + inside * rng.GOLDEN), at)
    rows = begins // tokens.shape[1]
    hashes = rng.mix64(hashes ^ rng.mix64(rows.astype(np.uint64)))
    is_single = np.diff(at, append=len(places)) == 1
    is_word = ~(is_single & vocab.marked(flat[at], BLANK | PUNCTUATION))

    size = sentences.lengths.size
    # Of its last token: a line break that is joined to the word after it ends the sentence before.
    stops = places[np.append(at[1:], len(places)) - 1]
    sentence = rows * sentences.lengths.shape[1] + sentences.number.ravel()[stops]
    _, key, totals = np.unique(hashes[is_word], return_inverse=True, return_counts=True)
    pairs, counts = np.unique(key * size + sentence[is_word], return_counts=True)
    common = np.minimum(counts, totals[pairs // size] - counts)
    return np.bincount(pairs % size, common, minlength=size).astype(np.int64).reshape(sentences.lengths.shape)
