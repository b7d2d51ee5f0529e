"""BART's denoising (Lewis et al. 2020; fairseq data/denoising_dataset.py): read a spoilt text, write the text."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra import sequences
from objectives.algebra.infilling import Cover, cover, covered_share, insert, span_lengths
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, permuted_sentences, sentence_ends
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class BART(Objective):
    """Sentences change places, then spans give way to masks, then the text is rotated. Targets are the original text.

    permute_sentences: share of the sentences that change places among themselves, rounded up; 0 is off.
    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py). A
        text
        without any is one sentence.
    mask_rate: share of the tokens that are masked, rounded up; 0 is off.
    mask_length: "span_poisson" - spans of Poisson(poisson_lambda) tokens; "token" - single tokens.
    poisson_lambda: mean length of spans, those of no token counted. A span of no token is a mask put in somewhere.
    replace_length: 1 - a span becomes one mask; 0 - it is deleted.
    mask_random: probability that a mask is a random ordinary token instead.
    rotate: probability that the text is rotated to begin with another token, each as likely, its first included.

    Token masking, deletion, text infilling, sentence permutation and document rotation are settings of these fields
    (configs/bart.py has them by name), and go together in fairseq's order. Its defaults are not BART's.

    Deviations from fairseq: spans are counted in tokens, as there without a word map, where BART's runs had one; a
    sentence ends at the last of several full stops in a row, not at the first; never more masks are put in than tokens
    were taken out, so no input is longer than its text (with poisson_lambda 3 that concerns windows of a few tokens);
    masks that are put in turn random one by one, where there a whole number of them, rounded up, does; random tokens
    are ordinary ones; the rotation is the paper's, where there two more offsets leave the text as it is; no BOS.
    """

    permute_sentences: float
    sentence_ends: SentenceEnds
    mask_rate: float
    mask_length: Literal["span_poisson", "token"]
    poisson_lambda: float
    replace_length: Literal[1, 0]
    mask_random: float
    rotate: float

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, field: str) -> list[str]:
        for name in ("permute_sentences", "mask_rate", "mask_random", "rotate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{field}.{name}={getattr(self, name)} must lie between 0 and 1")
        if not self.permute_sentences + self.mask_rate + self.rotate:
            raise ConfigError(
                f"{field}.permute_sentences, mask_rate and rotate are all 0, so inputs would be the text: set one"
            )
        if not 0 < self.poisson_lambda < float("inf"):
            raise ConfigError(f"{field}.poisson_lambda={self.poisson_lambda} must be above 0; BART uses 3")
        if self.poisson_lambda < 1.5 and self.mask_length == "span_poisson" and self.mask_rate:
            return [
                f"{field}.poisson_lambda={self.poisson_lambda} is below 1.5, where about as many spans are empty as "
                "tokens are masked: no more masks are put in than tokens are taken out"
            ]
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, raw + 1, 2 * (raw + 1))

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        if not self.mask_rate:
            return {}
        in_spans = self.mask_length == "span_poisson"
        return {"corrupted": covered_share(self.mask_rate, self.poisson_lambda) if in_spans else self.mask_rate}

    def hidden(self, tokens, lengths, keys, vocab):
        covered, _ = self._masked(lengths, keys, tokens.shape[1])
        covered = covered.heads | covered.tails
        if self.permute_sentences:
            hidden = np.empty_like(covered)
            np.put_along_axis(hidden, self._order(tokens, lengths, keys, vocab), covered, axis=1)
            return hidden
        return covered

    def corrupt(self, tokens, lengths, keys, vocab):
        inputs = Sequences(tokens, lengths)
        if self.permute_sentences:
            inputs = Sequences(take(tokens, self._order(tokens, lengths, keys, vocab)), lengths)
        if self.mask_rate:
            inputs = self._infill(inputs, keys, vocab)
        if self.rotate:
            inputs = self._rotate(inputs, rng.fold_in(keys, 6))
        targets = Sequences(tokens, lengths)
        return InputsTargets(sequences.append(inputs, vocab.eos), sequences.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        return targets[:-1]

    def _order(self, tokens, lengths, keys, vocab):
        ends = sentence_ends(tokens, lengths, vocab, self.sentence_ends)
        return permuted_sentences(rng.fold_in(keys, 0), ends, self.permute_sentences)

    def _masked(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> tuple[Cover, np.ndarray]:
        """What is masked, and how many masks are put in besides, int64 [E]."""
        # In float32, as fairseq has it.
        budgets = np.ceil(lengths.astype(np.float32) * np.float32(self.mask_rate)).astype(np.int64)
        if self.mask_length == "token":
            tokens = rng.choose_mask(rng.fold_in(keys, 1), valid_positions(lengths, width), budgets)
            return Cover(tokens, np.zeros_like(tokens)), np.zeros_like(budgets)
        spans, empty = span_lengths(rng.fold_in(keys, 1), budgets, self.poisson_lambda)
        covered = cover(rng.fold_in(keys, 2), spans, lengths, width)
        taken_out = covered.tails.sum(axis=1)
        if self.replace_length == 0:
            taken_out += covered.heads.sum(axis=1)
        return covered, np.minimum(empty, taken_out)

    def _infill(self, text: Sequences, keys: np.ndarray, vocab) -> Sequences:
        width = text.tokens.shape[1]
        (heads, tails), counts = self._masked(text.lengths, keys, width)
        keep = valid_positions(text.lengths, width) & ~tails
        if self.replace_length == 0:
            inputs = sequences.compact(text.tokens, keep & ~heads)
        else:
            shown, per_row = text.tokens.copy(), heads.sum(axis=1)
            masks = self._masks(keys, 3, int(per_row.max()), vocab)
            shown.ravel()[np.flatnonzero(heads)] = masks[valid_positions(per_row, masks.shape[1])]
            inputs = sequences.compact(shown, keep)
        if counts.any():
            inputs = insert(rng.fold_in(keys, 5), inputs, self._masks(keys, 4, int(counts.max()), vocab), counts)
        return inputs

    def _masks(self, keys: np.ndarray, tag: int, n: int, vocab) -> np.ndarray:
        """int32 [E, n]: masks, some of them random tokens instead."""
        keys = rng.fold_in(keys, tag)
        is_random = rng.uniform(rng.fold_in(keys, 0), n) < self.mask_random
        randoms = sequences.random_tokens(rng.bits(rng.fold_in(keys, 1), n), vocab)
        return np.where(is_random, randoms, np.int32(vocab.mask))

    def _rotate(self, text: Sequences, keys: np.ndarray) -> Sequences:
        first = rng.integers(rng.fold_in(keys, 0), 0, np.maximum(text.lengths, 1) - 1)
        first = np.where(rng.uniform(rng.fold_in(keys, 1), 1)[:, 0] < self.rotate, first, 0)
        source = np.arange(text.tokens.shape[1]) + first[:, None]
        source -= np.where(source < text.lengths[:, None], 0, text.lengths[:, None])
        return Sequences(take(text.tokens, source), text.lengths)
