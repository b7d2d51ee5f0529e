"""Objectives that hide tokens of a text and predict these in place, without [CLS] and [SEP]."""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from contract.vocab import Vocab
from contract.windows import DocumentHandling
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.mlm import mask_selected, replaced
from objectives.objective import Masked, Objective, OutputLengths
from objectives.prompting import FillMasks


@dataclasses.dataclass(frozen=True)
class InPlace(Objective):
    """A text of which some tokens are hidden, and predicted by a stack whose positions all see each other.

    Subclasses define `select` and `shifted`. A decoder reads the rows in both directions, whatever
    data.bidirectional_inputs is.
    """

    architectures: ClassVar = frozenset({"decoder_only", "encoder_only"})
    documents: ClassVar[tuple[DocumentHandling, ...]] = ("join", "pack", "split")
    in_place: ClassVar = True
    eos_in_windows: ClassVar = True

    @property
    @abc.abstractmethod
    def shifted(self) -> bool:
        """Whether a token is predicted where the token before it is read, as a causal language model predicts it.

        The first position then reads the decoder's start token. A decoder that was trained on CLM predicts in these
        places already (llm2vec, GPT-BERT, DiffuLLaMA). False: at the token's own position, as in BERT.
        """

    @abc.abstractmethod
    def select(
        self, text: Sequences, keys: np.ndarray, vocab: Vocab, **columns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the scored positions, bool [E, W], and their loss weights, float32 [E, W]; None: all 1.

        columns: those of `extra_columns`.
        """

    @property
    def shown_rates(self) -> tuple[float, float]:
        """The probabilities that a selected token is shown as [MASK] and as a random token; otherwise it is kept."""
        return 1.0, 0.0

    @property
    def prompting(self):
        return FillMasks(self.expected().get("selected", 0.5), shifted=self.shifted, has_ends=False)

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        return OutputLengths(raw, np.zeros_like(raw), raw)

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        selected, weights = self.select(Sequences(tokens, lengths), keys, vocab, **columns)
        shown = mask_selected(keys, tokens, selected, vocab, *self.shown_rates)
        shifted = np.full(len(tokens), self.shifted)
        return Masked(Sequences(shown, lengths), tokens, selected, weights=weights, shifted=shifted)

    def hidden_mask(self, tokens, lengths, keys, vocab, **columns):
        selected, _ = self.select(Sequences(tokens, lengths), keys, vocab, **columns)
        return replaced(keys, selected, *self.shown_rates) & valid_positions(lengths, tokens.shape[1])

    def restore(self, inputs, targets, vocab):
        return targets
