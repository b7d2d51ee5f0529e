"""Denoising of single tokens (Raffel et al. 2020, section 3.3): T5's objectives without spans."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra.noise import iid_counts, iid_noise_mask
from objectives.algebra.views import (
    ALL_TOKENS,
    NOISE_TOKENS,
    NONNOISE_TOKENS,
    SENTINEL_PER_SPAN,
    SPANS_AFTER_SENTINELS,
    sentinel_or_random,
)
from objectives.denoising import Denoising

_MASK, _VIEW = range(2)  # tags of keys


@dataclasses.dataclass(frozen=True)
class IIDDenoising(Denoising):
    """Each token is noise with the same probability; the fields choose how inputs and targets show the noise.

    noise_density: share of the tokens that are noise.
    inputs: "unique_sentinels": a different sentinel replaces each run of noise tokens.
            "sentinels": the first sentinel or, with probability `random_token_rate`, a random ordinary token replaces
            each noise token.
            "drop": noise tokens are dropped.
    random_token_rate: share of the noise tokens that random tokens replace, for inputs="sentinels"; otherwise 0.
    targets: "noise_spans": each run of noise tokens after its sentinel. "noise_tokens": the noise tokens. "full": the
            whole text.

    T5's names for these settings (t5/models/gin/objectives), all at density .15:
    | iid_15_u_u | unique_sentinels | noise_spans | the paper's baseline |
    | iid_15_d_d | drop | noise_tokens | drop corrupted tokens |
    | iid_15_m_f | sentinels | full | MASS-style (Song et al. 2019) |
    | iid_15_r10s90_f | sentinels, random_token_rate .1 | full | BERT-style |

    Deviations: the number of noise tokens does not vary (see `iid_noise_mask`), so rows have room for the longest
    possible example and nothing is cut. Each run in the targets follows its own sentinel; T5's targets lose the first
    sentinel where a text starts with noise, and gain a sentinel without a span where a text ends without noise. Random
    tokens are ordinary tokens; T5 also draws special ids.
    """

    noise_density: Annotated[float, "(0, 1)"]
    inputs: Literal["unique_sentinels", "sentinels", "drop"]
    random_token_rate: Annotated[float, "[0, 1]"]
    targets: Literal["noise_spans", "noise_tokens", "full"]

    view_tag: ClassVar = _VIEW

    @property
    def inputs_view(self):
        if self.inputs == "sentinels":
            return sentinel_or_random(self.random_token_rate)
        return {"unique_sentinels": SENTINEL_PER_SPAN, "drop": NONNOISE_TOKENS}[self.inputs]

    @property
    def targets_view(self):
        return {"noise_spans": SPANS_AFTER_SENTINELS, "noise_tokens": NOISE_TOKENS, "full": ALL_TOKENS}[self.targets]

    def check(self, field):
        super().check(field)
        if self.random_token_rate and self.inputs != "sentinels":
            raise ConfigError(
                f"{field}.random_token_rate={self.random_token_rate} does not go with {field}.inputs={self.inputs!r}: "
                "set it to 0.0, or inputs='sentinels'"
            )
        return []

    def noise_bounds(self, raw):
        return iid_counts(raw, self.noise_density)

    def output_lengths(self, raw):
        """As Denoising's, except that inputs have room for every raw token, as if no token were noise.

        So an encoder-decoder row of n inputs has a window of n - 1 tokens for every setting, as in T5, whose number of
        noise tokens may be 0. Dropped tokens leave the rest of the row empty: at density .15, 435 of 512 inputs are
        used.
        """
        lengths = super().output_lengths(raw)
        return lengths._replace(inputs=np.maximum(lengths.inputs, np.asarray(raw) + 1))

    def noise_mask(self, lengths, keys, width):
        return iid_noise_mask(rng.fold_in(keys, _MASK), lengths, width, noise_density=self.noise_density)

    def expected(self):
        return {"corrupted": self.noise_density, "span_length": 1 / (1 - self.noise_density)}
