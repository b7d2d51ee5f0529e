"""--probe=infilling: exact match and nats per byte of one hidden span of held-out text, both sides of it visible."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from contract.errors import ConfigError
from data.tokenizers.tokenizer import Tokenizer
from evaluation.probes.heldout import Window
from evaluation.probes.probe import interval_fields
from evaluation.probes.scorer import hide
from evaluation.probes.text import TextProbe, score_windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infilling(TextProbe):
    """Hides one span of each window, of each of the lengths `spans`, in the form that the objective hides spans.

    Span corruption and UL2 show a sentinel, BART its mask, FIM the suffix before the middle. exact_match is the share
    of windows in which greedy decoding writes the true span; whether the model then ends the span is not measured.

    whitespace_span_fraction is the share of the hidden spans that are whitespace only, such as indentation. Such spans
    are easy to fill in, so a model that has learned little else has about this exact match. The fraction depends on the
    text and the tokenizer, not on the model.

    Encoders show one mask for each token and predict the hidden tokens independently of each other, so the sum of their
    nats is not the likelihood of the span. It is named masked_nats_per_byte, and their exact match is that of the
    likeliest token at each mask.
    """

    spans: tuple[int, ...] = (3, 8, 32)

    name: ClassVar = "infilling"
    sides: ClassVar = ("both",)

    def check(self, experiment):
        super().check(experiment)
        if not self.spans or min(self.spans) < 1:
            raise ConfigError(f"--spans={','.join(map(str, self.spans))} must be lengths of 1 or more tokens")
        if max(self.spans) + 2 > self.length:
            raise ConfigError(
                f"--length={self.length} has no room for a hidden span of {max(self.spans)} tokens and a token on each "
                f"side: set --length={max(self.spans) + 2} or more, or shorter --spans"
            )

    def measure(self, model, documents):
        denoiser, vocab = self.denoisers(model.experiment)["both"], model.experiment.vocab
        prefix = "" if model.experiment.model.has_decoder else "masked_"
        by_length = {}
        for length in self.spans:

            def hidden_span(window, length=length):
                return [hide(denoiser, window.tokens, *window.span(length), vocab)]

            windows = self.windows(documents, shortest=length + 2)
            result = score_windows(model, windows, hidden_span, per_window=1, text_only=self.text_only)
            fields = result.counts() | result.exact_match()
            fields["whitespace_span_fraction"] = _whitespace_span_fraction(windows, length, model.experiment.tokenizer)
            by_length[str(length)] = fields | result.per_byte(prefix)
        fields = {"denoiser": denoiser.name, "length": self.length, "text_only": self.text_only, "spans": by_length}
        return fields | interval_fields("documents")


def _whitespace_span_fraction(windows: Sequence[Window], length: int, tokenizer: Tokenizer) -> float:
    """Returns the share of `windows` whose span of `length` tokens is whitespace only."""
    spans = [window.tokens[slice(*window.span(length))] for window in windows]
    # SentencePiece drops a space at the start of the decoded text, so a span that is one space decodes to "".
    return sum(not tokenizer.decode(span).strip() for span in spans) / len(spans)
