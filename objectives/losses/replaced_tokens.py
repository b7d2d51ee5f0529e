"""ELECTRA's replaced token detection (Clark et al. 2020): sampling, replacement and the discriminator's loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from contract.rng import mix32


class Texts(NamedTuple):
    """The fields of a batch that identify its examples, int32 [B, L] each."""

    tokens: jax.Array  # the original text
    inputs: jax.Array  # the same text with masks
    segment_ids: jax.Array  # a segment is an example; 0 is padding
    positions: jax.Array  # within the segment


def sampling_keys(key: jax.Array, texts: Texts, positions_BxK: jax.Array) -> jax.Array:
    """Returns a random key for each of the positions `positions_BxK`, int32 [B, K], of rows: keys [B, K].

    A key is a function of `key`, of the example at the position (its tokens and its masks) and of the position in the
    example. So it does not depend on the example's row, batch or device, nor on the other examples of the row. Two
    copies of a text with the same masks have the same keys.
    """
    segments_BxK = jnp.take_along_axis(texts.segment_ids, positions_BxK, axis=1)
    hashes_BxL = jnp.zeros(texts.tokens.shape, jnp.uint32)
    for field in (texts.positions, texts.inputs, texts.tokens):
        hashes_BxL = mix32(hashes_BxL + field.astype(jnp.uint32))
    same_BxKxL = segments_BxK[:, :, None] == texts.segment_ids[:, None, :]
    examples_BxK = jnp.sum(jnp.where(same_BxKxL, hashes_BxL[:, None], 0), axis=2, dtype=jnp.uint32)

    def key_at(example: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, example), position)

    return jax.vmap(jax.vmap(key_at))(examples_BxK, jnp.take_along_axis(texts.positions, positions_BxK, axis=1))


def sample_tokens(logits_BxKxV: jax.Array, keys_BxK: jax.Array, temperature: float) -> jax.Array:
    """Samples tokens, int32 [B, K], from softmax(logits / temperature), logits float [B, K, V], without a gradient.

    As in ELECTRA, any id below V can be sampled, including special tokens and ids that only pad the vocabulary.

    keys: JAX random keys [B, K]. temperature: above 0.
    """
    logits_BxKxV = jax.lax.stop_gradient(logits_BxKxV).astype(jnp.float32)
    return jax.vmap(jax.vmap(jax.random.categorical))(keys_BxK, logits_BxKxV / temperature).astype(jnp.int32)


def replace_tokens(
    tokens_BxL: jax.Array, samples_BxK: jax.Array, positions_BxK: jax.Array, scored_BxK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the discriminator's inputs, int32 [B, L], and where they differ from the original text, bool [B, L].

    A sample that equals the original token counts as original.

    Args:
      tokens_BxL: int32 [B, L], the original text, without masks.
      samples_BxK: int32 [B, K], the generator's samples.
      positions_BxK: int32 [B, K], different positions of each row.
      scored_BxK: bool [B, K], the positions whose token the sample replaces.
    """
    originals_BxK = jnp.take_along_axis(tokens_BxL, positions_BxK, axis=1)
    values_BxK = jnp.where(scored_BxK, samples_BxK, originals_BxK)
    inputs_BxL = jax.vmap(lambda row, positions, values: row.at[positions].set(values))(
        tokens_BxL, positions_BxK, values_BxK
    )
    return inputs_BxL, inputs_BxL != tokens_BxL


class ReplacedTokenSums(NamedTuple):
    """Sums over the tokens of a batch, float32 []."""

    loss_sum: jax.Array  # nats
    weight_sum: jax.Array  # tokens
    correct_sum: jax.Array  # tokens classified correctly
    replaced_sum: jax.Array  # tokens that are replaced
    predicted_sum: jax.Array  # tokens that are predicted as replaced
    true_positive_sum: jax.Array  # tokens that are replaced and predicted as replaced


def replaced_token_loss(logits_BxL: jax.Array, replaced_BxL: jax.Array, weights_BxL: jax.Array) -> ReplacedTokenSums:
    """Returns the sums of the sigmoid cross-entropy of "this token is replaced", computed in float32.

    logits: float [B, L]; above 0 predicts "replaced". replaced: bool [B, L]. weights: float32 [B, L]; in ELECTRA 1 for
    every token except padding, [CLS] and [SEP] included.
    """
    logits_BxL, is_replaced_BxL = logits_BxL.astype(jnp.float32), replaced_BxL.astype(jnp.float32)
    predicted_BxL = (logits_BxL > 0).astype(jnp.float32)
    return ReplacedTokenSums(
        loss_sum=jnp.sum(weights_BxL * (jax.nn.softplus(logits_BxL) - is_replaced_BxL * logits_BxL)),
        weight_sum=jnp.sum(weights_BxL),
        correct_sum=jnp.sum(weights_BxL * (predicted_BxL == is_replaced_BxL)),
        replaced_sum=jnp.sum(weights_BxL * is_replaced_BxL),
        predicted_sum=jnp.sum(weights_BxL * predicted_BxL),
        true_positive_sum=jnp.sum(weights_BxL * predicted_BxL * is_replaced_BxL),
    )
