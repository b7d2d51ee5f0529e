"""ELECTRA (Clark et al. 2020; google-research/electra): a small generator fills in masks, a discriminator finds where.

`ELECTRA` makes what the generator reads. What the discriminator reads is made from the generator's predictions as the
step runs: `sample_tokens`, then `replace_tokens`; `replaced_token_loss` is what it pays.
"""

import dataclasses
import math
from typing import ClassVar

from contract.errors import ConfigError
from objectives.mlm import MLM
from objectives.objective import Objective


@dataclasses.dataclass(frozen=True)
class ELECTRA(Objective):
    """[CLS] text [SEP]; a fixed share of the positions is selected, shown masked or kept, and scored by the generator.

    mask_rate: selected share of the sequence's length, [CLS] and [SEP] counted: max(1, round(rate * n)).
    mask_token_rate: of the selected; the rest is kept, none is random. ELECTRA: 0.85.
    generator_size: the generator's share of the discriminator's d_model, heads and d_ff; it has as many layers.
    generator_weight, discriminator_weight: of the two losses, each a mean over its own tokens. ELECTRA: 1, 50.
    temperature: of the generator's predictions where they are sampled; their loss knows none.
    Deviations from ELECTRA: positions are drawn without replacement, so their number is exact (the reference draws with
    replacement and lets repeated ones fall together, which at 15% selects about 14%); a text is one segment, with
    nothing in token types.
    """

    mask_rate: float
    mask_token_rate: float
    generator_size: float
    generator_weight: float
    discriminator_weight: float
    temperature: float

    architectures: ClassVar = MLM.architectures
    documents: ClassVar = MLM.documents
    eos_in_windows: ClassVar = MLM.eos_in_windows
    device_note: ClassVar = (
        "this is what the generator reads; the discriminator reads the original text with the generator's samples at "
        "the scored positions, and each of its tokens is scored as original or replaced"
    )

    @property
    def _mlm(self) -> MLM:
        return MLM(
            self.mask_rate,
            self.mask_token_rate,
            random_token_rate=0.0,
            mask_count="rounded",
            mask_unit="token",
            ngram_weights=(1.0,),
        )

    def check(self, field: str) -> list[str]:
        for name in ("generator_size", "generator_weight", "discriminator_weight", "temperature"):
            value, most = getattr(self, name), 1.0 if name == "generator_size" else math.inf
            if not (0 < value <= most and value < math.inf):
                limits = "lie above 0 and not above 1" if name == "generator_size" else "be a positive number"
                raise ConfigError(f"{field}.{name}={value} must {limits}")
        return self._mlm.check(field)

    def most_selected(self, length: int, examples: int) -> int:
        """The most positions that are selected in a row of `length` that holds as many `examples`."""
        return min(length, math.ceil(length * self.mask_rate) + examples)  # each rounds up by less than 1

    def output_lengths(self, raw):
        return self._mlm.output_lengths(raw)

    def num_sentinels(self, raw):
        return self._mlm.num_sentinels(raw)

    def expected(self):
        return self._mlm.expected()

    def corrupt(self, tokens, lengths, keys, vocab):
        return self._mlm.corrupt(tokens, lengths, keys, vocab)

    def hidden(self, tokens, lengths, keys, vocab):
        return self._mlm.hidden(tokens, lengths, keys, vocab)

    def restore(self, inputs, targets, vocab):
        return self._mlm.restore(inputs, targets, vocab)
