"""BART's denoising (Lewis et al. 2020; fairseq data/denoising_dataset.py): read a corrupted text, write the text."""

import dataclasses
from typing import Annotated, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import Vocab
from objectives.algebra.infilling import Cover, cover, covered_share, insert, span_lengths
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, permuted_sentences, sentence_ends
from objectives.algebra.sequences import Sequences, append, compact, random_tokens
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Rewrite

# Tags of keys.
_PERMUTE, _MASK, _COVER, _SPAN_MASKS, _INSERTED_MASKS, _INSERT, _ROTATE = range(7)


@dataclasses.dataclass(frozen=True)
class BART(Objective):
    """Sentences are permuted, then masks replace spans, then the text is rotated. Targets are the original text.

    permute_sentences: share of the sentences that are permuted among themselves, rounded up; 0 is off.
    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py).
        A text without a sentence end is one sentence.
    mask_rate: share of the tokens that are masked, rounded up; 0 is off.
    mask_length: "span_poisson": spans of Poisson(poisson_lambda) tokens. "token": single tokens.
    poisson_lambda: mean length of spans, empty spans included. An empty span inserts a mask at a random place.
    replace_length: 1: a mask replaces each span. 0: spans are deleted.
    mask_random: probability that a mask is a random ordinary token instead.
    rotate: probability that the text is rotated to begin with a uniformly drawn token, possibly its first.

    Token masking, token deletion, text infilling, sentence permutation and document rotation are settings of these
    fields (configs/bart.py names them). Combined, they apply in fairseq's order. The defaults of fairseq's options are
    not the values with which BART was trained.

    Deviations from fairseq:
    - Spans are counted in tokens, as in fairseq without a word map; BART was trained with a word map.
    - A sentence ends at ".", "!" or "?" before white space, and in the presets at a line break; in fairseq at the one
      token "." alone. It ends at the last of several consecutive full stops, not at the first.
    - At most as many masks are inserted as tokens are removed, so no input is longer than its text. With
      poisson_lambda 3 this affects only windows of a few tokens.
    - Each inserted mask is replaced by a random token independently; fairseq replaces a fixed share, rounded up.
    - Random tokens are ordinary tokens.
    - The rotation follows the paper; in fairseq two more offsets leave the text unchanged.
    - There is no BOS.
    """

    permute_sentences: Annotated[float, "[0, 1]"]
    sentence_ends: SentenceEnds
    mask_rate: Annotated[float, "[0, 1]"]
    mask_length: Literal["span_poisson", "token"]
    poisson_lambda: Annotated[float, "(0, 10000]"]
    replace_length: Literal[1, 0]
    mask_random: Annotated[float, "[0, 1]"]
    rotate: Annotated[float, "[0, 1]"]

    @property
    def prompting(self):
        if not self.mask_rate:
            return Rewrite()
        if self.replace_length == 0:
            return Rewrite(hidden_as="gap")
        return Rewrite(hidden_as="mask" if self.mask_length == "span_poisson" else "masks")

    def special_tokens(self, architecture):
        return ("mask",) if self.mask_rate and self.replace_length else ()

    def check(self, field):
        super().check(field)
        if not self.permute_sentences + self.mask_rate + self.rotate:
            raise ConfigError(
                f"{field}.permute_sentences, {field}.mask_rate and {field}.rotate are all 0, so inputs would be the "
                "text: set one"
            )
        if self.poisson_lambda < 1.5 and self.mask_length == "span_poisson" and self.mask_rate:
            return [
                f"{field}.poisson_lambda={self.poisson_lambda} is below 1.5, where about as many spans are empty as "
                "tokens are masked: no more masks are inserted than tokens are removed"
            ]
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, raw + 1, 2 * (raw + 1))

    def corrupt(self, tokens, lengths, keys, vocab):
        inputs = Sequences(tokens, lengths)
        if self.permute_sentences:
            inputs = Sequences(take(tokens, self._order(tokens, lengths, keys, vocab)), lengths)
        if self.mask_rate:
            inputs = self._infill(inputs, keys, vocab)
        if self.rotate:
            inputs = self._rotate(inputs, rng.fold_in(keys, _ROTATE))
        return InputsTargets(append(inputs, vocab.eos), append(Sequences(tokens, lengths), vocab.eos))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        covered, _ = self._cover(lengths, keys, tokens.shape[1])
        covered = covered.heads | covered.tails
        if self.permute_sentences:
            hidden = np.empty_like(covered)
            np.put_along_axis(hidden, self._order(tokens, lengths, keys, vocab), covered, axis=1)
            return hidden
        return covered

    def restore(self, inputs, targets, vocab):
        return targets[:-1]

    def expected(self):
        if not self.mask_rate:
            return {}
        if self.mask_length == "span_poisson":
            return {"corrupted": covered_share(self.mask_rate, self.poisson_lambda)}
        # With a mask for each token all others are at their places, if they are in order.
        in_order = not (self.permute_sentences or self.rotate)
        return {"corrupted": self.mask_rate} if in_order or not self.replace_length else {}

    def _order(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
        ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
        return permuted_sentences(rng.fold_in(keys, _PERMUTE), ends, self.permute_sentences)

    def _cover(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> tuple[Cover, np.ndarray]:
        """The masked tokens, and the number of masks that are inserted in addition, int64 [E]."""
        budgets = np.ceil(lengths.astype(np.float32) * np.float32(self.mask_rate)).astype(np.int64)  # as in fairseq
        if self.mask_length == "token":
            tokens = rng.choose_mask(rng.fold_in(keys, _MASK), valid_positions(lengths, width), budgets)
            return Cover(tokens, np.zeros_like(tokens)), np.zeros_like(budgets)
        spans, empty = span_lengths(rng.fold_in(keys, _MASK), budgets, self.poisson_lambda)
        covered = cover(rng.fold_in(keys, _COVER), spans, lengths, width)
        removed = covered.tails.sum(axis=1)
        if self.replace_length == 0:
            removed += covered.heads.sum(axis=1)
        return covered, np.minimum(empty, removed)

    def _infill(self, text: Sequences, keys: np.ndarray, vocab: Vocab) -> Sequences:
        width = text.tokens.shape[1]
        (heads, tails), num_inserted = self._cover(text.lengths, keys, width)
        keep = valid_positions(text.lengths, width) & ~tails
        if self.replace_length == 0:
            inputs = compact(text.tokens, keep & ~heads)
        else:
            shown, per_row = text.tokens.copy(), heads.sum(axis=1)
            masks = self._masks(rng.fold_in(keys, _SPAN_MASKS), int(per_row.max()), vocab)
            shown.ravel()[np.flatnonzero(heads)] = masks[valid_positions(per_row, masks.shape[1])]
            inputs = compact(shown, keep)
        if num_inserted.any():
            masks = self._masks(rng.fold_in(keys, _INSERTED_MASKS), int(num_inserted.max()), vocab)
            inputs = insert(rng.fold_in(keys, _INSERT), inputs, masks, num_inserted)
        return inputs

    def _masks(self, keys: np.ndarray, n: int, vocab: Vocab) -> np.ndarray:
        """int32 [E, n]: masks, some of which are random tokens instead."""
        is_random = rng.uniform(rng.fold_in(keys, 0), n) < self.mask_random
        randoms = random_tokens(rng.bits(rng.fold_in(keys, 1), n), vocab)
        return np.where(is_random, randoms, np.int32(vocab.mask))

    def _rotate(self, text: Sequences, keys: np.ndarray) -> Sequences:
        first = rng.integers(rng.fold_in(keys, 0), 0, np.maximum(text.lengths, 1) - 1)
        first = np.where(rng.uniform(rng.fold_in(keys, 1), 1)[:, 0] < self.rotate, first, 0)
        source = np.arange(text.tokens.shape[1]) + first[:, None]
        source -= np.where(source < text.lengths[:, None], 0, text.lengths[:, None])
        return Sequences(take(text.tokens, source), text.lengths)
