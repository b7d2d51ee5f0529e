"""ELECTRA (Clark et al. 2020; google-research/electra): a small generator fills in masks, a discriminator finds where.

`ELECTRA` makes what the generator reads. What the discriminator reads is made from the generator's predictions as the
step runs: `sample_tokens`, then `replace_tokens`; `replaced_token_loss` is what it pays.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from objectives.errors import ConfigError
from objectives.examples import Corruption
from objectives.mlm import MLM


@dataclasses.dataclass(frozen=True)
class ELECTRA(Corruption):
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
    on_device: ClassVar = (
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

    def check(self, where: str) -> list[str]:
        for name in ("generator_size", "generator_weight", "discriminator_weight", "temperature"):
            value, most = getattr(self, name), 1.0 if name == "generator_size" else math.inf
            if not (0 < value <= most and value < math.inf):
                limits = "lie above 0 and not above 1" if name == "generator_size" else "be a positive number"
                raise ConfigError(f"{where}.{name}={value} must {limits}")
        return self._mlm.check(where)

    def most_selected(self, length: int, examples: int) -> int:
        """The most positions that are selected in a row of `length` that holds as many `examples`."""
        return min(length, math.ceil(length * self.mask_rate) + examples)  # each rounds up by less than 1

    def output_lengths(self, raw):
        return self._mlm.output_lengths(raw)

    def num_sentinels(self, raw):
        return self._mlm.num_sentinels(raw)

    def asked(self):
        return self._mlm.asked()

    def corrupt(self, tokens, lengths, keys, vocab):
        return self._mlm.corrupt(tokens, lengths, keys, vocab)

    def hidden(self, tokens, lengths, keys, vocab):
        return self._mlm.hidden(tokens, lengths, keys, vocab)

    def restore(self, inputs, targets, vocab):
        return self._mlm.restore(inputs, targets, vocab)


def scored_positions(weights_BxL: jax.Array, most: int) -> jax.Array:
    """int32 [B, K], K = `most`: the positions of a row's scored tokens, weights float32 [B, L]; then unscored ones.

    All different. A row that has more than K of them is not for this. (A sort keeps rows on their devices, which
    `jax.lax.top_k` gathers.)
    """
    return jnp.argsort(weights_BxL == 0, axis=1, stable=True)[:, :most]


def sample_tokens(logits: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    """int32 [...]: a token for each of float [..., V], drawn from softmax(logits / temperature) with no gradient.

    Any row of the table may come up, as in ELECTRA: special tokens, and rows that only pad the table.
    """
    logits = jax.lax.stop_gradient(logits).astype(jnp.float32)
    return jax.random.categorical(key, logits / temperature).astype(jnp.int32)


def replace_tokens(
    tokens_BxL: jax.Array, samples_BxK: jax.Array, positions_BxK: jax.Array, scored_BxK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What the discriminator reads, int32 [B, L], and where that differs from the original `tokens`, bool [B, L].

    Samples stand in the original text, not in the masked one: at the positions that are `scored`, bool. A sample that
    is the original token is an original.
    """
    originals_BxK = jnp.take_along_axis(tokens_BxL, positions_BxK, axis=1)
    shown_BxK = jnp.where(scored_BxK, samples_BxK, originals_BxK)
    inputs_BxL = jax.vmap(lambda row, at, shown: row.at[at].set(shown))(tokens_BxL, positions_BxK, shown_BxK)
    return inputs_BxL, inputs_BxL != tokens_BxL


class ReplacedTokenSums(NamedTuple):
    """Sums over the tokens of a batch, float32 []."""

    loss_sum: jax.Array  # nats
    weight_sum: jax.Array  # tokens
    correct_sum: jax.Array
    replaced_sum: jax.Array  # tokens that are not the original
    found_sum: jax.Array  # tokens said to be replaced
    found_replaced_sum: jax.Array  # of these, the ones that are


def replaced_token_loss(logits_BxL: jax.Array, replaced_BxL: jax.Array, weights_BxL: jax.Array) -> ReplacedTokenSums:
    """Sigmoid cross-entropy of "this token is not the original", in float32.

    logits: float [B, L]; replaced: bool [B, L]; weights: float32 [B, L], in ELECTRA 1 at every token but padding,
    [CLS] and [SEP] too. A logit above 0 says "replaced".
    """
    logits_BxL, is_replaced_BxL = logits_BxL.astype(jnp.float32), replaced_BxL.astype(jnp.float32)
    found_BxL = (logits_BxL > 0).astype(jnp.float32)
    return ReplacedTokenSums(
        loss_sum=jnp.sum(weights_BxL * (jax.nn.softplus(logits_BxL) - is_replaced_BxL * logits_BxL)),
        weight_sum=jnp.sum(weights_BxL),
        correct_sum=jnp.sum(weights_BxL * (found_BxL == is_replaced_BxL)),
        replaced_sum=jnp.sum(weights_BxL * is_replaced_BxL),
        found_sum=jnp.sum(weights_BxL * found_BxL),
        found_replaced_sum=jnp.sum(weights_BxL * found_BxL * is_replaced_BxL),
    )
