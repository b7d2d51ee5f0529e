"""CLM with masked inputs: every token is predicted, from a context in which some of the tokens are hidden."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.clm import CLM
from objectives.mlm import check_uniform_rate
from objectives.objective import Masked, OutputLengths

_SELECT, _COUNT, _RATE = range(3)  # tags of keys


@dataclasses.dataclass(frozen=True)
class MaskedInputs(CLM):
    """CLM that reads [MASK] in place of some tokens, in training alone. All tokens are targets, the hidden ones too.

    MEAP (Zhuang et al. 2025, arXiv 2502.07490), whose rate is 0.15. Gao et al. (2025, arXiv 2510.04071) find that such
    masks are most of what masked diffusion gains where text is repeated; Ni et al. (2025, arXiv 2511.03276) find that
    noise of the inputs helps CLM there, and less than diffusion does.

    mask_rate: expected share of hidden tokens among those that the model reads, which are all tokens of a text but the
        last. 0.0: CLM.
    mask_count: how many of the m tokens that are read are hidden. "probabilistic": int(rate * m + U[0, 1)). "uniform":
        the same, but the rate is drawn for each example, uniform from 0 to 2 * mask_rate. mask_rate is then at most
        0.5, with which the rates are those of masked diffusion.

    Evaluations hide nothing: their loss and their bits per byte are those of CLM on the same text.

    Deviations from MEAP: its number of masks is rounded down, and all rows of a batch have them at the same positions.
    """

    mask_rate: Annotated[float, "[0, 1]"]
    mask_count: Literal["probabilistic", "uniform"] = "probabilistic"

    architectures: ClassVar = frozenset({"decoder_only"})
    in_place: ClassVar = True
    causal: ClassVar = True
    masks_inputs: ClassVar = True
    has_inputs: ClassVar = False
    byte_metric: ClassVar = CLM.byte_metric  # of evaluations, which hide nothing
    prompting: ClassVar = CLM.prompting

    def check(self, field):
        if self.mask_count == "uniform":
            check_uniform_rate(field, self.mask_rate)
        return super().check(field)

    def heldout(self):
        return dataclasses.replace(self, mask_rate=0.0)

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        return OutputLengths(raw, np.zeros_like(raw), raw)

    def corrupt(self, tokens, lengths, keys, vocab):
        shown = np.where(self.hidden_mask(tokens, lengths, keys, vocab), np.int32(vocab.mask), tokens)
        every, scored = np.ones(len(tokens), bool), valid_positions(lengths, tokens.shape[1])
        return Masked(Sequences(shown, lengths), tokens, scored, shifted=every, causal=every)

    def hidden_mask(self, tokens, lengths, keys, vocab):
        rates, read = np.full(len(keys), self.mask_rate), lengths - 1
        if self.mask_count == "uniform":
            rates = 2 * rates * rng.uniform(rng.fold_in(keys, _RATE), 1)[:, 0]
        counts = np.floor(rates * read + rng.uniform(rng.fold_in(keys, _COUNT), 1)[:, 0]).astype(np.int64)
        return rng.choose_mask(rng.fold_in(keys, _SELECT), valid_positions(read, tokens.shape[1]), counts)

    def restore(self, inputs, targets, vocab):
        return targets

    def expected(self):
        return {"selected": 1.0, "masked": self.mask_rate, "random": 0.0, "kept": 1 - self.mask_rate}
