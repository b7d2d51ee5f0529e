"""SimCSE (Gao et al. 2021; princeton-nlp/SimCSE): contrastive learning of sentence embeddings."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.errors import ConfigError
from objectives.mlm import MLM
from objectives.objective import Masked


@dataclasses.dataclass(frozen=True)
class SimCSE(MLM):
    """[CLS] text [SEP], read twice; dropout alone makes the two readings differ. Each first reading is to be nearest,
    of all second ones of the batch, to that of its own text.

    temperature: similarities are cosines, divided by it. SimCSE: 0.05.
    mlm_weight: what MLM's loss counts beside this one. 0: alone, no token is masked. SimCSE's option has 0.1.
    The other fields are MLM's. The two readings are of the unmasked text either way; MLM's is a third, as in SimCSE.
    """

    temperature: float
    mlm_weight: float

    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    one_example_per_row: ClassVar = True
    device_note: ClassVar = "each text is read twice, under two draws of dropout; the batch's other texts are negatives"

    def check(self, field: str) -> list[str]:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"{field}.temperature={self.temperature} must be above 0; SimCSE uses 0.05")
        if not 0 <= self.mlm_weight < float("inf"):
            raise ConfigError(f"{field}.mlm_weight={self.mlm_weight} must be 0 (no masks) or more; SimCSE's is 0.1")
        return super().check(field) if self.mlm_weight else []

    def expected(self):
        return super().expected() if self.mlm_weight else {}

    def corrupt(self, tokens, lengths, keys, vocab):
        if self.mlm_weight:
            return super().corrupt(tokens, lengths, keys, vocab)
        text = self._text(tokens, lengths, vocab)
        return Masked(text, text.tokens, np.zeros(text.tokens.shape, bool))

    def hidden(self, tokens, lengths, keys, vocab):
        return super().hidden(tokens, lengths, keys, vocab) if self.mlm_weight else np.zeros(tokens.shape, bool)
