"""Span corruption (Raffel et al. 2020, section 3.3.4): spans give way to sentinels, and the targets tell them."""

import dataclasses
from typing import ClassVar

from contract.errors import ConfigError
from objectives.algebra import sequences, views
from objectives.algebra.noise import random_spans_noise_mask, span_counts
from objectives.objective import InputsTargets, Objective, check_density
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
    """T5's algorithm: its rounding, one sentinel a span, no closing sentinel, EOS after inputs and targets.

    With `random_roll` one span may wrap around the ends and count as two, so a place for one more sentinel is kept on
    either side. Without it the last token of every window is noise, and a window with one span only loses its tail.
    """

    noise_density: float
    mean_noise_span_length: float
    random_roll: bool

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, field: str) -> list[str]:
        check_density(self.noise_density, f"{field}.noise_density")
        if self.mean_noise_span_length < 1:
            raise ConfigError(
                f"{field}.mean_noise_span_length={self.mean_noise_span_length} must be 1 or more tokens; T5 uses 3"
            )
        return []

    def output_lengths(self, raw):
        noise, _ = span_counts(raw, self.noise_density, self.mean_noise_span_length)
        sentinels = self.num_sentinels(raw)
        return OutputLengths(raw - noise + sentinels + 1, noise + sentinels + 1, raw + 2 * (sentinels + 1))

    def num_sentinels(self, raw):
        _, spans = span_counts(raw, self.noise_density, self.mean_noise_span_length)
        return spans + self.random_roll

    def expected(self):
        return {"corrupted": self.noise_density, "span_length": self.mean_noise_span_length}

    def hidden(self, tokens, lengths, keys, vocab):
        return random_spans_noise_mask(
            keys,
            lengths,
            tokens.shape[1],
            noise_density=self.noise_density,
            mean_noise_span_length=self.mean_noise_span_length,
            random_roll=self.random_roll,
        )

    def corrupt(self, tokens, lengths, keys, vocab):
        noise = self.hidden(tokens, lengths, keys, vocab)
        inputs = views.noise_span_to_unique_sentinel(tokens, noise, lengths, vocab)
        targets = views.noise_spans_after_sentinels(tokens, noise, lengths, vocab)
        return InputsTargets(sequences.append(inputs, vocab.eos), sequences.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        return views.fill_in_spans(inputs[:-1], targets[:-1], vocab)
