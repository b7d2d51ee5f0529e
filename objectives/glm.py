"""GLM's autoregressive blank infilling (Du et al. 2022, arXiv 2103.10360): read a text with blanks, write them."""

import dataclasses
import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import draw_span_ends, most_spans, take, valid_positions
from objectives.algebra.sentences import SentenceEnds, first_tokens, sentence_ends, sentences_of
from objectives.algebra.sequences import Sequences, append, compact
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import FillBlank

_LENGTHS, _PLACES, _ORDER, _AT_END, _SHUFFLE = range(5)  # tags of keys


class Blanks(NamedTuple):
    """The tokens that blanks replace, bool [E, W] each."""

    starts: np.ndarray  # the first token of each blank
    hidden: np.ndarray


@dataclasses.dataclass(frozen=True)
class GLM(Objective):
    """[MASK] replaces each blank of the inputs; the targets are the blanks in random order, with an EOS after each.

        text      x1 x2 x3 x4 x5 x6, blanks x3 and x5 x6
        read      <s> x1 x2 [M] x4 [M] EOS x5 x6 EOS x3        <s>: the decoder's start token
        targets                        x5  x6 EOS x3 EOS
        position   0  1  2   3  4   5   5   6  7   3  4

    blanks: "spans": of Poisson lengths without 0, drawn until they hold mask_rate of the tokens, the last one cut, with
        at least one token between two of them; all places equally likely. "sentences": whole sentences in random order,
        until they hold mask_rate of the tokens or more. "document": one span of uniform length, from mask_rate of the
        tokens to all of them, with even odds at the end of the text or at a uniformly drawn place.
    mask_rate: the paper's is .15, and .5 for "document".
    poisson_lambda: of "spans", as in the paper: 3, with which spans have 3.16 tokens on average before
        the last one drawn is cut.
    sentence_ends: of "sentences" (objectives/algebra/sentences.py).

    The paper's part A is the inputs, whose tokens attend to each other; part B, the targets, attends to part A and to
    what is before it.

    Deviations:
    - Positions. The paper adds two embeddings: of the place of the token's [MASK] in part A, and of its place in the
      span. A row has one position for each token here, so these two are added: the first token of a span is predicted
      at the position of its [MASK], and the others at the next ones, which tokens after the [MASK] have too. GLM-130B
      (Zeng et al. 2022, arXiv 2210.02414) has one position too: that of the [MASK], and of a blank at the end those
      that continue the text, as here. No position tells how long a blank is, as in the paper.
    - One token, EOS, ends a span, and begins the next, so that inputs are targets shifted; the EOS of the inputs begins
      the first. The paper's are [END] and [START]. Its [CLS] before the text is the decoder's start token here.
    - All blanks have one [MASK]; the authors' released models have others for sentences and for documents.
    - The paper does not cut the last span, and restricts spans to documents: set data.documents="split" for the latter.
    - In the authors' code ";" and ":" end sentences too, and so does a stop within a token or without white space after
      it. Its numbers of hidden tokens, of the text with [CLS], are rounded down.
    - The authors' code draws the place of each span by itself, and sorts them: a single token between two spans is then
      half as frequent. It draws the length of a "document" blank once for a batch, and has no [END] after a blank at
      the end of a text.
    """

    blanks: Literal["spans", "sentences", "document"]
    mask_rate: Annotated[float, "(0, 1)"]
    poisson_lambda: Annotated[float, "(0, 100]"]
    sentence_ends: SentenceEnds

    architectures: ClassVar = frozenset({"decoder_only"})
    has_positions: ClassVar = True
    prompting: ClassVar = FillBlank("mask", "tokens", offset=1)

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        raw = np.asarray(raw)
        least = self._budget(raw)
        if self.blanks == "spans":
            num_blanks = self._most_spans(raw, least)
            return OutputLengths(raw - least + num_blanks + 1, least + num_blanks, raw + 2 * num_blanks + 1)
        if self.blanks == "document":
            return OutputLengths(raw - least + 2, raw + 1, raw + 3)
        # All but the last hold fewer tokens than the budget, and two each, unless they begin or end the text.
        num_blanks = np.minimum(1 + (least + 1) // 2, raw // 2 + 1)
        return OutputLengths(raw + 1, raw + num_blanks, raw + 2 * num_blanks + 1)

    def corrupt(self, tokens, lengths, keys, vocab):
        blanks = self._blanks(tokens, lengths, keys, vocab)
        shown = np.where(blanks.starts, np.int32(vocab.mask), tokens)
        keep = valid_positions(lengths, tokens.shape[1]) & (blanks.starts | ~blanks.hidden)
        targets, positions = _in_random_order(tokens, blanks, np.cumsum(keep, axis=1), rng.fold_in(keys, _ORDER), vocab)
        return InputsTargets(append(compact(shown, keep), vocab.eos), targets, positions=positions)

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return self._blanks(tokens, lengths, keys, vocab).hidden

    def restore(self, inputs, targets, vocab):
        """As in the base class. None for several blanks: positions alone tell which span is whose."""
        masks = np.flatnonzero(inputs == vocab.mask)
        if len(masks) > 1:
            return None
        return np.concatenate([inputs[: masks[0]], targets[:-1], inputs[masks[0] + 1 : -1]])

    def expected(self):
        shares = {"spans": self.mask_rate, "document": (1 + self.mask_rate) / 2}
        return {"corrupted": shares[self.blanks]} if self.blanks in shares else {}

    def _budget(self, raw: np.ndarray) -> np.ndarray:
        """int64 [n]: the tokens in blanks, or the fewest, of texts of raw lengths, int [n]."""
        raw = np.asarray(raw)
        if self.blanks == "spans":
            return np.clip(np.rint(raw * self.mask_rate).astype(np.int64), 1, np.maximum(raw - 1, 1))
        return np.ceil(raw * self.mask_rate).astype(np.int64)

    def _most_spans(self, raw: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.minimum(most_spans(noise, "poisson", self._mean_length), raw - noise + 1)

    @property
    def _mean_length(self) -> float:
        """Of a Poisson law without 0."""
        return self.poisson_lambda / -math.expm1(-self.poisson_lambda)

    def _blanks(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> Blanks:
        width, budgets = tokens.shape[1], self._budget(lengths)
        if self.blanks == "sentences":
            ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
            number, sizes, count = sentences_of(ends)
            order = rng.draw(rng.fold_in(keys, _PLACES), valid_positions(count, sizes.shape[1] - 1), count)
            in_order = take(sizes, order)
            chosen = np.zeros(sizes.shape, bool)
            np.put_along_axis(chosen, order, np.cumsum(in_order, axis=1) - in_order < budgets[:, None], axis=1)
            hidden = take(chosen, number) & valid_positions(lengths, width)
            return Blanks(hidden & first_tokens(ends), hidden)
        if self.blanks == "document":
            size = rng.integers(rng.fold_in(keys, _LENGTHS), budgets, lengths)
            first = rng.integers(rng.fold_in(keys, _PLACES), 0, lengths - size)
            at_end = rng.uniform(rng.fold_in(keys, _AT_END), 1)[:, 0] < 0.5
            first = np.where(at_end, lengths - size, first)
            hidden = valid_positions(first + size, width) & ~valid_positions(first, width)
            return Blanks(hidden & (np.arange(width) == first[:, None]), hidden)
        most = self._most_spans(lengths, budgets)
        drawn, count = draw_span_ends(rng.fold_in(keys, _LENGTHS), budgets, most, "poisson", self._mean_length)
        exists = valid_positions(count, drawn.shape[1])
        # In another order: the last one, which is cut, may be anywhere. `draw` gives absent spans the place after all.
        sizes = np.pad(np.diff(drawn, axis=1, prepend=0), ((0, 0), (0, 1)))
        ends = np.cumsum(take(sizes, rng.draw(rng.fold_in(keys, _SHUFFLE), exists, count)), axis=1)
        # A span is in one of the gaps before, between and after the other tokens, and no two in the same.
        gaps = valid_positions(lengths - budgets + 1, width + 1)
        gaps = rng.choose(rng.fold_in(keys, _PLACES), gaps, count)
        stops = gaps + ends
        first = stops - np.diff(ends, axis=1, prepend=0)
        toggles = np.zeros((len(tokens), width + 1), bool)
        for places in (first, stops):
            rows, columns = np.nonzero(exists)
            toggles[rows, places[rows, columns]] = True
        hidden = (np.cumsum(toggles[:, :width], axis=1) & 1).astype(bool)
        return Blanks(hidden & toggles[:, :width], hidden)


def _in_random_order(
    tokens: np.ndarray, blanks: Blanks, places: np.ndarray, keys: np.ndarray, vocab: Vocab
) -> tuple[Sequences, np.ndarray]:
    """The tokens of the blanks, each blank followed by an EOS, in random order, and their positions, int32 [E, W].

    places: int64 [E, W], the position of each blank's [MASK] at the blank's first token, and at its other tokens.
    """
    starts, hidden = blanks
    count, number = starts.sum(axis=1), np.cumsum(starts, axis=1) - 1
    rows, columns = np.nonzero(hidden)
    of_token = number[rows, columns]
    sizes = np.full((len(tokens), int(count.max()) + 1), -1)  # with the EOS; of blanks that do not exist, none
    exists = valid_positions(count, sizes.shape[1])
    sizes[exists] = 0
    np.add.at(sizes, (rows, of_token), 1)
    of_blank = np.zeros(sizes.shape, np.int64)
    of_blank[rows, of_token] = places[rows, columns]

    order = rng.draw(keys, exists[:, :-1], count)
    in_order = take(sizes, order) + 1
    begins = np.zeros(sizes.shape, np.int64)
    np.put_along_axis(begins, order, np.cumsum(in_order, axis=1) - in_order, axis=1)

    totals = count + hidden.sum(axis=1)
    targets = np.full((len(tokens), int(totals.max())), vocab.eos, np.int32)
    positions = np.zeros(targets.shape, np.int32)
    is_first = starts[rows, columns]
    run = np.arange(len(rows))
    inside = run - np.maximum.accumulate(np.where(is_first, run, 0))
    at = begins[rows, of_token] + inside
    targets[rows, at], positions[rows, at] = tokens[rows, columns], of_blank[rows, of_token] + inside
    rows, columns = np.nonzero(exists)
    positions[rows, begins[rows, columns] + sizes[rows, columns]] = (of_blank + sizes)[rows, columns]
    return Sequences(targets, totals), positions
