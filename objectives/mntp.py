"""Masked next-token prediction: MLM whose hidden tokens are predicted where a causal language model predicts them."""

import dataclasses
from typing import Annotated, Literal

import numpy as np

from contract import rng
from objectives.in_place import InPlace
from objectives.mlm import check_shown_rates, maskable

_SELECT = 0  # tag of keys; `mask_selected` uses 1 and 2


@dataclasses.dataclass(frozen=True)
class MNTP(InPlace):
    """Masked next-token prediction (BehnamGhader et al. 2024, llm2vec; Charpentier and Samuel 2024, GPT-BERT).

    mask_rate: selected share of the text's ordinary tokens: max(1, round(rate * n)) of n. EOS is never selected.
    mask_token_rate, random_token_rate: probabilities that a selected token is masked or random; otherwise it is kept.
        The code of GPT-BERT has 0.8 and 0.1, and that of llm2vec too, but 1.0 and 0.0 for Mistral, at a rate of 0.8.
    weighting: of the k selected of n ordinary tokens in training. "token": 1 each. "text": n / k each, so that a text
        has the weight of its length at any mask_rate, as a text of CLM does: the share of such rows in a mixture's loss
        does not fall with a rate that falls. In evaluations all are 1.

    Deviations from GPT-BERT: the number of hidden tokens is rounded, not drawn, and each token is hidden by itself; the
    authors' code hides one to three tokens together, which are masked, random or kept together, and prefers those that
    were hidden less often. The code of llm2vec selects each token with the rate as its probability, so their number
    varies.
    """

    mask_rate: Annotated[float, "(0, 1)"]
    mask_token_rate: Annotated[float, "[0, 1]"]
    random_token_rate: Annotated[float, "[0, 1]"]
    weighting: Literal["token", "text"]

    def check(self, field):
        super().check(field)
        check_shown_rates(field, self.mask_token_rate, self.random_token_rate)
        return []

    @property
    def shifted(self):
        return True

    @property
    def shown_rates(self):
        return self.mask_token_rate, self.random_token_rate

    def most_scored(self, raw):
        return np.minimum(np.maximum(np.rint(raw * self.mask_rate).astype(np.int64), 1), raw)

    def select(self, text, keys, vocab):
        candidates = maskable(text, vocab)
        totals = candidates.sum(axis=1)
        counts = self.most_scored(totals)
        selected = rng.choose_mask(rng.fold_in(keys, _SELECT), candidates, counts)
        if self.weighting == "token":
            return selected, None
        return selected, selected * (totals / np.maximum(counts, 1)).astype(np.float32)[:, None]

    def heldout(self):
        return dataclasses.replace(self, weighting="token")

    def expected(self):
        rates = {"masked": self.mask_token_rate, "random": self.random_token_rate}
        return {"selected": self.mask_rate, **rates, "kept": 1 - self.mask_token_rate - self.random_token_rate}
