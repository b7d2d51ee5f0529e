"""Cross-entropy from hidden states in chunks of positions, without logits [B, L, V] in memory."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from objectives.losses.cross_entropy import LossOptions, LossSums, ScoredTokens, cross_entropy

_add = functools.partial(jax.tree.map, jnp.add)


def chunked_cross_entropy(
    logits_of: Callable[[jax.Array], jax.Array],
    hidden_BxLxD: jax.Array,
    scored: ScoredTokens,
    options: LossOptions,
    *,
    chunk_size: int,
) -> LossSums:
    """`cross_entropy` of `logits_of(hidden_BxLxD)`, which materializes only [B, chunk_size, V] of the logits.

    When differentiated, each chunk's gradients are computed right after the chunk's loss, while the chunk's logits
    exist, and are accumulated, as in Liger Kernel's fused linear cross-entropy. So the logits are computed once, in the
    forward pass, and the backward pass only scales. Gradients accumulate in the dtype of their parameters. Only
    `minimized_sum` is differentiable, with respect to the hidden states and to what `logits_of` closes over. All other
    results and arguments are treated as constants.

    Chunks are cut along the length, which no mesh axis shards, so sharded rows stay on their devices. Each chunk reads
    the whole output table: if the table is sharded, use few chunks.

    Args:
      logits_of: float [B, C, D] -> float32 [B, C, V], position by position. Closed-over parameters get gradients.
      hidden_BxLxD: float [B, L, D], the hidden states.
      scored: the targets.
      options: static options of the loss.
      chunk_size: positions per chunk; 0: the whole length, without a scan.
    """
    if not chunk_size:
        return cross_entropy(logits_of(hidden_BxLxD), scored, options)
    C = min(chunk_size, hidden_BxLxD.shape[1])
    logits_of, closed_over = jax.closure_convert(logits_of, hidden_BxLxD[:, :C])

    def chunk_loss(closed_over, hidden_BxCxD, scored_BxC):
        sums = cross_entropy(logits_of(hidden_BxCxD, *closed_over), scored_BxC, options)
        return sums.minimized_sum, sums

    @jax.custom_vjp
    def sums_of(closed_over, hidden_chunks, scored_chunks):
        def add_chunk(sums, chunk):
            return _add(sums, chunk_loss(closed_over, *chunk)[1]), None

        return jax.lax.scan(add_chunk, _zero_sums(options.num_groups), (hidden_chunks, scored_chunks))[0]

    def sums_and_gradients(closed_over, hidden_chunks, scored_chunks):
        def add_chunk(totals, chunk):
            gradients, sums = jax.grad(chunk_loss, argnums=(0, 1), has_aux=True)(closed_over, *chunk)
            return _add(totals, (sums, gradients[0])), gradients[1]

        zeros = _zero_sums(options.num_groups), jax.tree.map(jnp.zeros_like, closed_over)
        (sums, closed_gradient), hidden_gradient = jax.lax.scan(add_chunk, zeros, (hidden_chunks, scored_chunks))
        return sums, (closed_gradient, hidden_gradient)

    def scale_gradients(gradients, cotangents):
        scaled = jax.tree.map(lambda g: (g * cotangents.minimized_sum).astype(g.dtype), gradients)
        return (*scaled, None)

    sums_of.defvjp(sums_and_gradients, scale_gradients)
    return sums_of(closed_over, _chunks(hidden_BxLxD, C), ScoredTokens(*(_chunks(x, C) for x in scored)))


def _zero_sums(num_groups: int) -> LossSums:
    by_group = {name: jnp.zeros(num_groups) for name in LossSums._fields if name.endswith("_by_group")}
    return LossSums(**{name: jnp.zeros(()) for name in LossSums._fields} | by_group)


def _chunks(x_BxLx: jax.Array, chunk_size: int) -> jax.Array:
    """[chunks, B, chunk_size, ...]; the last chunk is padded with zeros, so the padding's loss weight is 0."""
    B, L, *rest = x_BxLx.shape
    num = -(-L // chunk_size)
    padded = jnp.pad(x_BxLx, [(0, 0), (0, num * chunk_size - L)] + [(0, 0)] * len(rest))
    return jnp.moveaxis(padded.reshape(B, num, chunk_size, *rest), 1, 0)
