"""--probe=pseudo_log_likelihood, and the units that it hides one after another.

The pseudo-log-likelihood of a text (Salazar et al. 2020, "Masked Language Model Scoring") is the sum of the
log-probabilities of its tokens, each predicted from all other tokens. It is not the logarithm of a probability of the
text and cannot be compared with a left-to-right model's likelihood.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from evaluation.probes.probe import interval_fields
from evaluation.probes.scorer import Example, hide
from evaluation.probes.text import TextProbe, score_windows
from objectives import Denoiser
from objectives.algebra.words import word_starts

Unit = Literal["token", "word"]


def hide_each_unit(denoiser: Denoiser, text: np.ndarray, unit: Unit, vocab: Vocab) -> Iterator[Example]:
    """Yields `text`, int32 [n], with one token or one word hidden at a time, from the first to the last one."""
    if unit == "token":
        starts = np.arange(len(text))
    else:
        is_ordinary = (text >= vocab.content_start) & (text < vocab.content_end)
        starts = np.union1d(np.flatnonzero(word_starts(text[None], is_ordinary[None], vocab)[0]), [0])
        starts = np.union1d(starts, np.flatnonzero(~is_ordinary))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(text)], strict=True):
        example = hide(denoiser, text, start, stop, vocab)
        assert example is not None  # the denoiser was chosen because it hides tokens within a text
        yield example


def check_unit(unit: str) -> None:
    """Raises ConfigError for an unknown unit."""
    if unit not in ("token", "word"):
        raise ConfigError(f"--unit={unit} must be token or word")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoLogLikelihood(TextProbe):
    """Hides one `unit` of a window at a time, and scores it given the rest of the window.

    unit: "token", as in Salazar et al., or "word": all tokens of a word at once (objectives/algebra/words.py), so that
        a token is not predicted from the rest of its own word. An encoder predicts the tokens of a word independently.
    """

    unit: Unit = "token"

    name: ClassVar = "pseudo_log_likelihood"
    sides: ClassVar = ("both",)

    def check(self, experiment):
        super().check(experiment)
        check_unit(self.unit)

    def measure(self, model, documents):
        denoiser, vocab = self.denoisers(model.experiment)["both"], model.experiment.vocab
        windows = self.windows(documents, shortest=2)
        result = score_windows(
            model,
            windows,
            lambda window: hide_each_unit(denoiser, window.tokens, self.unit, vocab),
            per_window=self.length,
            text_only=self.text_only,
        )
        fields = {"denoiser": denoiser.name, "unit": self.unit, "length": self.length, "text_only": self.text_only}
        return fields | result.counts() | result.per_byte("pseudo_") | interval_fields("documents")
