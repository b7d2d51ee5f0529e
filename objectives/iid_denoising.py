"""Denoising of single tokens (Raffel et al. 2020, section 3.3): T5's objectives without spans, by how noise shows."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra import sequences, views
from objectives.algebra.noise import iid_counts, iid_noise_mask
from objectives.objective import InputsTargets, Objective, check_density
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class IIDDenoising(Objective):
    """A share of the tokens is noise, each for itself; how inputs and targets show it is for the fields to say.

    inputs: "unique_sentinels" - each run of noise tokens becomes a sentinel of its own;
            "sentinels" - each noise token becomes the first sentinel or, with probability `random_token_rate`, a random
            ordinary token;
            "drop" - noise tokens are left out.
    targets: "noise_spans" - the noise, each run after its sentinel; "noise_tokens" - only the noise; "full" - all.

    T5's names for them (t5/models/gin/objectives), all at density .15:
    | iid_15_u_u | unique_sentinels | noise_spans | the paper's baseline |
    | iid_15_d_d | drop | noise_tokens | drop corrupted tokens |
    | iid_15_m_f | sentinels | full | MASS-style (Song et al. 2019) |
    | iid_15_r10s90_f | sentinels, random_token_rate .1 | full | BERT-style |

    Deviations: the number of noise tokens does not vary (`iid_noise_mask` says what follows), so rows are planned for
    their worst case and nothing is ever cut; each run of the targets follows its own sentinel, where T5's targets lose
    the first one when a text starts in noise and gain one that stands for nothing when it ends clean; random tokens are
    ordinary ones, where T5 also draws special ids.
    """

    noise_density: float
    inputs: Literal["unique_sentinels", "sentinels", "drop"]
    random_token_rate: float
    targets: Literal["noise_spans", "noise_tokens", "full"]

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, field: str) -> list[str]:
        check_density(self.noise_density, f"{field}.noise_density")
        if not 0 <= self.random_token_rate <= 1:
            raise ConfigError(
                f"{field}.random_token_rate={self.random_token_rate} must lie between 0 and 1; T5 uses 0.1"
            )
        if self.random_token_rate and self.inputs != "sentinels":
            raise ConfigError(
                f"{field}.random_token_rate={self.random_token_rate} does not go with {field}.inputs={self.inputs!r}: "
                "set it to 0.0, or inputs='sentinels'"
            )
        return []

    def output_lengths(self, raw):
        noise, spans = self._counts(raw)
        text = np.stack([raw, raw])
        inputs = {"unique_sentinels": text - noise + spans, "sentinels": text, "drop": text - noise}[self.inputs] + 1
        targets = {"noise_spans": noise + spans, "noise_tokens": noise, "full": text}[self.targets] + 1
        return OutputLengths(inputs.max(axis=0), targets.max(axis=0), (inputs + targets).max(axis=0))

    def num_sentinels(self, raw):
        if self.inputs == "unique_sentinels" or self.targets == "noise_spans":
            return self._counts(raw)[1].max(axis=0)
        return np.full_like(raw, int(self.inputs == "sentinels"))

    def _counts(self, raw):
        """The noise tokens, and the most runs of them, of raw lengths, int [n]: int64 [2, n] each, fewest and most."""
        noise = np.stack(iid_counts(raw, self.noise_density))
        return noise, np.minimum(noise, raw - noise + 1)

    def expected(self):
        return {"corrupted": self.noise_density, "span_length": 1 / (1 - self.noise_density)}

    def hidden(self, tokens, lengths, keys, vocab):
        return iid_noise_mask(rng.fold_in(keys, 0), lengths, tokens.shape[1], noise_density=self.noise_density)

    def corrupt(self, tokens, lengths, keys, vocab):
        example = (tokens, self.hidden(tokens, lengths, keys, vocab), lengths, vocab)
        if self.inputs == "unique_sentinels":
            inputs = views.noise_span_to_unique_sentinel(*example)
        elif self.inputs == "sentinels":
            keys = rng.fold_in(keys, 1)
            inputs = views.noise_token_to_sentinel_or_random(*example, keys, self.random_token_rate)
        else:
            inputs = views.drop_noise_tokens(*example)
        if self.targets == "noise_spans":
            targets = views.noise_spans_after_sentinels(*example)
        elif self.targets == "noise_tokens":
            targets = views.drop_nonnoise_tokens(*example)
        else:
            targets = sequences.Sequences(tokens, lengths)
        return InputsTargets(sequences.append(inputs, vocab.eos), sequences.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        if self.targets == "full":
            return targets[:-1]
        if self.inputs == "unique_sentinels" and self.targets == "noise_spans":
            return views.fill_in_spans(inputs[:-1], targets[:-1], vocab)
        return None
