"""--probe=continuation: nats and bits per byte of the true continuation of held-out text, given half of the text."""

import dataclasses
from typing import ClassVar

from evaluation.probes.probe import interval_fields
from evaluation.probes.scorer import hide
from evaluation.probes.text import TextProbe, score_windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continuation(TextProbe):
    """Hides the second half of each window, and scores it teacher-forced.

    The model reads the first half as it reads a text to continue in training: a causal model as the start of the
    targets, prefix LM and encoder-decoders as inputs, with the objective's mode token and sentinel. The text alone is
    scored, not the sentinel before it or an EOS after it, so all models are scored on the same tokens.
    """

    name: ClassVar = "continuation"
    sides: ClassVar = ("left",)

    def measure(self, model, documents):
        denoiser, vocab = self.denoisers(model.experiment)["left"], model.experiment.vocab

        def hidden_half(window):
            text = window.tokens
            return [hide(denoiser, text, len(text) // 2, len(text), vocab)]

        windows = self.windows(documents, shortest=2)
        result = score_windows(model, windows, hidden_half, per_window=1, text_only=self.text_only)
        fields = {"denoiser": denoiser.name, "length": self.length, "text_only": self.text_only} | result.counts()
        return fields | result.per_byte() | interval_fields("documents")
