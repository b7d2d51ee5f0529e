"""ELECTRA's replaced token detection (Clark et al. 2020): samples, replacements and their loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


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
