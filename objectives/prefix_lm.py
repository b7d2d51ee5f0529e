"""Prefix language modeling (Raffel et al. 2020, section 3.3.1): read the start of a text, predict the rest."""

import dataclasses
from typing import Annotated, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra.noise import valid_positions
from objectives.algebra.views import NOISE_TOKENS, NONNOISE_TOKENS, SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS
from objectives.denoising import Denoising
from objectives.prompting import ContinueInputs


@dataclasses.dataclass(frozen=True)
class PrefixLM(Denoising):
    """The text after a prefix is noise: a single span, which is the targets.

    target_fraction: d, the expected share of the text that is target; in (0, 0.5] for "uniform", (0, 1) for "fixed".
    split: "uniform": T5's `random_prefix_noise_mask`. The prefix length is uniform over min..L-1 for a text of L
               tokens, min = round((1 - 2d)(L - 1)), at least 1. d = .5 is T5's objective. d = .25 is UL2's S-denoiser
               as its table describes it; UL2's appendix code uses d = .5.
           "fixed": the targets are the last round(dL) tokens, at least one.
    sentinel: whether the first sentinel ends the inputs and starts the targets, as in span corruption.

    A text of one token is all target.
    """

    target_fraction: Annotated[float, "(0, 1)"]
    split: Literal["uniform", "fixed"]
    sentinel: bool

    @property
    def inputs_view(self):
        return SENTINEL_PER_SPAN if self.sentinel else NONNOISE_TOKENS

    @property
    def targets_view(self):
        return SPANS_AFTER_SENTINELS if self.sentinel else NOISE_TOKENS

    @property
    def prompting(self):
        return ContinueInputs(self.sentinel)

    def check(self, field):
        if self.split == "uniform" and self.target_fraction > 0.5:
            raise ConfigError(
                f"{field}.target_fraction={self.target_fraction} must be 0.5 or less with {field}.split='uniform'; T5 "
                "uses 0.5"
            )
        return super().check(field)

    def prefix_lengths(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest prefix, int64 [n] each, of texts of raw lengths, int [n]."""
        raw = np.asarray(raw)
        longest = raw - 1
        if self.split == "fixed":
            targets = np.maximum(np.rint(raw * self.target_fraction).astype(np.int64), 1)
            return np.maximum(raw - targets, 0), np.maximum(raw - targets, 0)
        shortest = np.rint((1 - 2 * self.target_fraction) * longest).astype(np.int64)
        return np.minimum(np.maximum(shortest, 1), longest), longest

    def noise_bounds(self, raw):
        shortest, longest = self.prefix_lengths(raw)
        return raw - longest, raw - shortest

    def most_spans(self, raw, noise):
        return np.ones_like(noise)

    def noise_mask(self, lengths, keys, width):
        is_noise = valid_positions(lengths, width)
        is_noise &= ~valid_positions(rng.integers(keys, *self.prefix_lengths(lengths)), width)
        return is_noise

    def restore(self, inputs, targets, vocab):
        special = 1 + self.sentinel
        return np.concatenate([inputs[:-special], targets[int(self.sentinel) : -1]])

    def variants(self, count):
        if self.split == "fixed":
            return (self,)
        return tuple(_PrefixLMVariant(**vars(self), variant=k, count=count) for k in range(count))

    def expected(self):
        return {"corrupted": self.target_fraction, "spans": 1.0}


@dataclasses.dataclass(frozen=True)
class _PrefixLMVariant(PrefixLM):
    """PrefixLM whose prefix lengths are uniform over range number `variant` of `count` ranges of lengths.

    If the lengths do not divide evenly, each length of a shorter range is drawn more often: with ranges of 4 and 5
    lengths, by a quarter.
    """

    variant: int
    count: int

    def prefix_lengths(self, raw):
        shortest, longest = super().prefix_lengths(raw)
        choices = longest - shortest + 1
        first = shortest + choices * self.variant // self.count
        return first, np.maximum(shortest + choices * (self.variant + 1) // self.count - 1, first)
