"""Span corruption (Raffel et al. 2020, section 3.3.4): sentinels replace spans, and the targets are the spans."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from contract.errors import ConfigError
from objectives.algebra.noise import SpanLengthDistribution, random_spans_noise_mask, span_bounds
from objectives.algebra.views import SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS
from objectives.denoising import Denoising


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Denoising):
    """T5's algorithm, with its rounding: one sentinel per span, no closing sentinel, EOS after inputs and targets.

    noise_density: share of the tokens that are noise.
    mean_noise_span_length: mean tokens of a span.
    random_roll: rotate the mask by a random offset. One span may then wrap around the ends and count as two, so lengths
        have room for one more sentinel. Without random_roll the last token of every window is noise, and a single span
        is always at the end of the window.
    span_length_distribution: of the lengths of spans.
        "composition": T5's. The number of spans is fixed, and all ways to divide the noise tokens among them are
        equally likely. Lengths are nearly geometric.
        "fixed", "geometric", "normal", "poisson", "uniform": lengths are drawn until they sum to the number of
        noise tokens, and the last is cut. See objectives/algebra/noise.py for each distribution.

    The number of noise tokens is the same for every distribution. The number of spans varies except with "composition",
    and rows have room, and need sentinels, for the most spans (`span_bounds`): windows are shorter than T5's, and
    data.num_sentinels may have to be larger.
    """

    noise_density: Annotated[float, "(0, 1)"]
    mean_noise_span_length: Annotated[float, "[1, 1e7]"]
    random_roll: bool
    span_length_distribution: SpanLengthDistribution

    inputs_view: ClassVar = SENTINEL_PER_SPAN
    targets_view: ClassVar = SPANS_AFTER_SENTINELS

    def check(self, field):
        super().check(field)
        return [] if self.mean_noise_span_length >= self._least_mean_length else [self._too_short(field)]

    def _too_short(self, field: str) -> str:
        """Returns a warning about spans that would touch. Raises ConfigError for other distributions than T5's."""
        message = (
            f"{field}.mean_noise_span_length={self.mean_noise_span_length} is too short for {field}.noise_density="
            f"{self.noise_density}: there are fewer other tokens than spans"
        )
        if self.span_length_distribution == "composition":
            return f"{message}, so spans have {self._least_mean_length:.4g} tokens on average"
        raise ConfigError(
            f"{message} of {field}.span_length_distribution={self.span_length_distribution!r}; set it to "
            f"{self._least_mean_length:.4g} or more, or the distribution to 'composition'"
        )

    @property
    def _least_mean_length(self) -> float:
        """With as many spans as there are other tokens: a token between any two spans."""
        return self.noise_density / (1 - self.noise_density)

    def noise_bounds(self, raw):
        noise, _ = self._span_bounds(raw)
        return np.where(raw < 2, 0, noise), noise

    def most_spans(self, raw, noise):
        _, spans = self._span_bounds(raw)
        return np.where(noise > 0, spans + self.random_roll, 0)

    def _span_bounds(self, raw):
        return span_bounds(raw, self.noise_density, self.mean_noise_span_length, self.span_length_distribution)

    def noise_mask(self, lengths, keys, width):
        return random_spans_noise_mask(
            keys,
            lengths,
            width,
            noise_density=self.noise_density,
            mean_noise_span_length=self.mean_noise_span_length,
            random_roll=self.random_roll,
            distribution=self.span_length_distribution,
        )

    def expected(self):
        expected = {"corrupted": self.noise_density}
        if self.span_length_distribution == "composition":
            expected["span_length"] = max(self.mean_noise_span_length, self._least_mean_length)
        # Otherwise the last span is cut to the number of noise tokens, so the mean depends on the rows.
        return expected
