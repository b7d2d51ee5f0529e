"""Prefix language modelling: read the start of a text, predict the rest."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra import sequences, views
from objectives.algebra.noise import valid_positions
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
    """Where to split a text of L tokens, and how the split shows.

    target_fraction d, in (0, 0.5] for "uniform" and (0, 1) for "fixed": the expected share of the text that is target.
    split: "uniform" - T5's `random_prefix_noise_mask`: prefix length uniform over min..L-1 with
               min = round((1 - 2d)(L - 1)), at least 1. d = .5 is T5's objective; d = .25 UL2's S-denoiser as its
               table has it, where UL2's appendix code runs d = .5.
           "fixed" - the last round(dL) tokens, at least one.
    sentinel: whether the first sentinel ends the inputs and starts the targets, as if the rest were one noise span.
    A text of one token is all target.
    """

    target_fraction: float
    split: Literal["uniform", "fixed"]
    sentinel: bool

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, field: str) -> list[str]:
        most = 0.5 if self.split == "uniform" else 1.0
        if not 0 < self.target_fraction <= most or self.target_fraction == 1.0:
            bounds = "0 < d <= 0.5 with split='uniform'" if self.split == "uniform" else "0 < d < 1"
            raise ConfigError(f"{field}.target_fraction={self.target_fraction} must hold {bounds}; T5 uses 0.5")
        return []

    def prefix_lengths(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest prefix, int64 [n] each, of texts of raw lengths, int [n]."""
        raw = np.asarray(raw)
        longest = raw - 1
        if self.split == "fixed":
            targets = np.maximum(np.rint(raw * self.target_fraction).astype(np.int64), 1)
            return np.maximum(raw - targets, 0), np.maximum(raw - targets, 0)
        shortest = np.rint((1 - 2 * self.target_fraction) * longest).astype(np.int64)
        return np.minimum(np.maximum(shortest, 1), longest), longest

    def output_lengths(self, raw):
        shortest, longest = self.prefix_lengths(raw)
        added = 1 + self.sentinel  # on either side
        return OutputLengths(longest + added, raw - shortest + added, raw + 2 * added)

    def parts(self, count):
        if self.split == "fixed":
            return (self,)
        return tuple(_PrefixLMPart(**vars(self), part=part, count=count) for part in range(count))

    def num_sentinels(self, raw):
        return np.full_like(raw, int(self.sentinel))

    def expected(self):
        return {"corrupted": self.target_fraction, "spans": 1.0}

    def hidden(self, tokens, lengths, keys, vocab):
        valid = valid_positions(lengths, tokens.shape[1])
        valid &= ~valid_positions(rng.integers(keys, *self.prefix_lengths(lengths)), tokens.shape[1])
        return valid

    def corrupt(self, tokens, lengths, keys, vocab):
        rest = self.hidden(tokens, lengths, keys, vocab)
        inputs = views.drop_noise_tokens(tokens, rest, lengths, vocab)
        targets = views.drop_nonnoise_tokens(tokens, rest, lengths, vocab)
        if self.sentinel:
            inputs = sequences.append(inputs, vocab.sentinel(0))
            targets = sequences.prepend(targets, vocab.sentinel(0))
        return InputsTargets(sequences.append(inputs, vocab.eos), sequences.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        ends = 1 + self.sentinel
        return np.concatenate([inputs[:-ends], targets[int(self.sentinel) : -1]])


@dataclasses.dataclass(frozen=True)
class _PrefixLMPart(PrefixLM):
    """Uniform prefix lengths, of all there are only the `part`-th of `count` ranges. Where the lengths do not divide
    evenly, one of a shorter range comes up more often: by a quarter where ranges are of 4 and 5 lengths."""

    part: int
    count: int

    def prefix_lengths(self, raw):
        shortest, longest = super().prefix_lengths(raw)
        choices = longest - shortest + 1
        first = shortest + choices * self.part // self.count
        return first, np.maximum(shortest + choices * (self.part + 1) // self.count - 1, first)
