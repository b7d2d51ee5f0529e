"""Span corruption (Raffel et al. 2020, section 3.3.4): sentinels replace spans, and the targets are the spans."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.errors import ConfigError
from objectives.algebra.noise import random_spans_noise_mask, span_counts
from objectives.algebra.views import SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS
from objectives.denoising import Denoising
from objectives.objective import check_density


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Denoising):
    """T5's algorithm, with its rounding: one sentinel per span, no closing sentinel, EOS after inputs and targets.

    noise_density: share of the tokens that are noise.
    mean_noise_span_length: mean tokens of a span.
    random_roll: rotate the mask by a random offset. One span may then wrap around the ends and count as two, so lengths
        have room for one more sentinel. Without random_roll the last token of every window is noise, and a single span
        is always at the end of the window.
    """

    noise_density: float
    mean_noise_span_length: float
    random_roll: bool

    inputs_view: ClassVar = SENTINEL_PER_SPAN
    targets_view: ClassVar = SPANS_AFTER_SENTINELS

    def check(self, field):
        check_density(self.noise_density, f"{field}.noise_density")
        if self.mean_noise_span_length < 1:
            raise ConfigError(
                f"{field}.mean_noise_span_length={self.mean_noise_span_length} must be 1 or more tokens; T5 uses 3"
            )
        return []

    def noise_bounds(self, raw):
        noise, _ = span_counts(raw, self.noise_density, self.mean_noise_span_length)
        return np.where(raw < 2, 0, noise), noise

    def most_spans(self, raw, noise):
        _, spans = span_counts(raw, self.noise_density, self.mean_noise_span_length)
        return np.where(noise > 0, spans + self.random_roll, 0)

    def noise_mask(self, lengths, keys, width):
        return random_spans_noise_mask(
            keys,
            lengths,
            width,
            noise_density=self.noise_density,
            mean_noise_span_length=self.mean_noise_span_length,
            random_roll=self.random_roll,
        )

    def expected(self):
        return {"corrupted": self.noise_density, "span_length": self.mean_noise_span_length}
