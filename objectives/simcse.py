"""SimCSE (Gao et al. 2021; princeton-nlp/SimCSE): contrastive learning of sentence embeddings."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from objectives.mlm import MLM
from objectives.objective import Masked, Objective


@dataclasses.dataclass(frozen=True)
class SimCSE(MLM):
    """[CLS] text [SEP], encoded twice under different dropout; the two encodings of a text are a positive pair.

    Each first encoding is trained to be nearest to the second encoding of its own text among all texts of the batch.

    temperature: divides the cosine similarities. SimCSE: 0.05.
    mlm_weight: weight of MLM's loss relative to the contrastive loss. 0: no token is masked. SimCSE's option: 0.1.

    The other fields are MLM's. The contrastive pair always encodes the unmasked text; MLM's loss takes a further
    forward pass over the masked text.

    Deviation: SimCSE masks both copies of a text, each with masks of its own, and selects each token by itself.
    """

    temperature: Annotated[float, "(0, inf)"]
    mlm_weight: Annotated[float, "[0, inf)"]

    architectures: ClassVar = frozenset({"encoder_only"})
    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    one_example_per_row: ClassVar = True
    learner: ClassVar = "contrastive"
    device_note: ClassVar = (
        "each text is encoded twice under different dropout; the other texts of the batch are negatives"
    )

    @property
    def prompting(self):
        return super().prompting if self.mlm_weight else None

    def special_tokens(self, architecture):
        return ("cls", "sep", "mask") if self.mlm_weight else ("cls", "sep")

    def check(self, field):
        return super().check(field) if self.mlm_weight else Objective.check(self, field)

    def corrupt(self, tokens, lengths, keys, vocab):
        if self.mlm_weight:
            return super().corrupt(tokens, lengths, keys, vocab)
        text = self.with_special_tokens(tokens, lengths, vocab)
        return Masked(text, text.tokens, np.zeros(text.tokens.shape, bool))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return super().hidden_mask(tokens, lengths, keys, vocab) if self.mlm_weight else np.zeros(tokens.shape, bool)

    restore = MLM.restore

    def most_scored(self, raw):
        return super().most_scored(raw) if self.mlm_weight else np.zeros_like(raw)

    def expected(self):
        return super().expected() if self.mlm_weight else {}
