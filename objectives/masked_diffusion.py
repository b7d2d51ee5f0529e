"""Masked diffusion of text: a random number of tokens is hidden, weighted so that the loss bounds the likelihood."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.in_place import InPlace

_COUNT, _SELECT = 3, 0  # tags of keys; `mask_selected` uses 1 and 2


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(InPlace):
    """Of a text of n tokens k are hidden, k uniform in 1..n, and each hidden token has the loss weight n / k.

    The expected loss of a text is an upper bound of its negative log-likelihood in nats: the mean over all orders of
    its tokens of the chain rule, which is also the integral over t of the 1 / t weighted loss of masked diffusion (Ou
    et al. 2025, arXiv 2406.03736; Sahoo et al. 2024, arXiv 2406.07524). The weights of a text add up to n, so nats per
    token and bits per byte are of the same tokens as those of a causal language model.

    alignment: "same": a token is predicted at its own position. "next": where the token before it is read, as by a
        causal language model, whose parameters may be the start (DiffuLLaMA, Gong et al. 2025; Dream).

    Every token of the window may be hidden, EOS too, since a causal language model predicts EOS too.

    Deviation: LLaDA (Nie et al. 2025) draws t, hides each token with probability t, and weights by 1 / t. The
    expectation is the same, and the number of hidden tokens alone makes that loss of a text vary, by 21% at n = 128.
    """

    alignment: Literal["same", "next"]

    byte_metric: ClassVar = "bits_per_byte"  # the bound, of the text in its order, with the EOS of documents

    @property
    def shifted(self):
        return self.alignment == "next"

    def select(self, text, keys, vocab):
        lengths = np.asarray(text.lengths, np.int64)
        counts = rng.integers(rng.fold_in(keys, _COUNT), 1, lengths)
        selected = rng.choose_mask(rng.fold_in(keys, _SELECT), valid_positions(lengths, text.tokens.shape[1]), counts)
        return selected, (selected * (lengths / counts)[:, None]).astype(np.float32)

    def most_scored(self, raw):
        return raw

    def expected(self):
        return {"masked": 1.0, "random": 0.0, "kept": 0.0}  # the share of a text of n tokens is (n + 1) / (2 n)
