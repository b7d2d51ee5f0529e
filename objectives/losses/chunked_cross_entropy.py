"""Losses of hidden states in chunks of positions, without logits [B, L, V] in memory; cross-entropy is one of them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from objectives.losses.cross_entropy import LossOptions, LossSums, ScoredTokens, cross_entropy

_add = functools.partial(jax.tree.map, jnp.add)


def chunked_cross_entropy(
    logits_of: Callable[[Any, jax.Array], jax.Array],
    parameters: Any,
    hidden_BxLxD: jax.Array,
    scored: ScoredTokens,
    options: LossOptions,
    *,
    chunk_size: int,
    per_device: Callable[[Callable], Callable] = lambda function: function,
) -> LossSums:
    """`cross_entropy` of `logits_of(parameters, hidden_BxLxD)`; materializes only [B, chunk_size, V] of the logits.

    What `logits_of` closes over is treated as a constant. See `chunked_sums`.

    Args:
      logits_of: parameters and float [B, C, D] -> float32 [B, C, V], position by position.
      parameters: those of which the logits are a function.
      hidden_BxLxD: float [B, L, D], the hidden states.
      scored: the targets.
      options: static options of the loss.
      chunk_size: positions per chunk; 0: the whole length, without a scan.
      per_device: as of `chunked_sums`.
    """
    if not chunk_size:
        return cross_entropy(logits_of(parameters, hidden_BxLxD), scored, options)

    def sums_of(parameters: Any, _: Any, hidden_BxCxD: jax.Array, scored: ScoredTokens) -> LossSums:
        return cross_entropy(logits_of(parameters, hidden_BxCxD), scored, options)

    return chunked_sums(sums_of, parameters, (), hidden_BxLxD, scored, chunk_size=chunk_size, per_device=per_device)


def chunked_sums(
    sums_of: Callable[[Any, Any, jax.Array, Any], LossSums],
    parameters: Any,
    frozen: Any,
    hidden_BxLxD: jax.Array,
    rows: Any,
    *,
    chunk_size: int,
    per_device: Callable[[Callable], Callable] = lambda function: function,
) -> LossSums:
    """`sums_of(parameters, frozen, hidden_BxLxD, rows)`, computed on chunks of the positions and added.

    When differentiated, each chunk's gradients are computed right after the chunk's loss, while the chunk's logits
    exist, and are accumulated, as in Liger Kernel's fused linear cross-entropy. So the logits are computed once, in the
    forward pass, and the backward pass only scales. Gradients accumulate in the dtype of their parameters. Only
    `minimized_sum` is differentiable, with respect to `parameters` and the hidden states. All other results and
    arguments, and what `sums_of` closes over, are treated as constants.

    Chunks are cut along the length, which no mesh axis shards, so sharded rows stay on their devices.

    Args:
      sums_of: the sums of some positions, C of each row.
      parameters: a tree of those that have a gradient.
      frozen: a tree of those that have none.
      hidden_BxLxD: float [B, L, D], the hidden states.
      rows: a tree of further arrays, [B, L, ...].
      chunk_size: positions per chunk, 1 or more.
      per_device: maps a function (parameters, arrays [B, ...]) -> (sums, arrays [B, ...]) to one in which each
        device calls the function with its own rows and the whole parameters, and the sums are added over the devices
        (models.placement.per_device). So the parameters are gathered once, and their gradients are added once, and
        not for each chunk.
    """
    L = hidden_BxLxD.shape[1]
    C = min(chunk_size, L)

    def chunk_loss(parameters, frozen, chunk):
        sums = sums_of(parameters, frozen, *chunk)
        return sums.minimized_sum, sums

    def sums_of_rows(both, rows):
        def add_chunk(sums, chunk):
            return _add(sums, chunk_loss(*both, chunk)[1]), None

        return jax.lax.scan(add_chunk, _zero_sums(chunk_loss, both, rows, C), _chunks(rows, C))[0], ()

    def sums_and_gradients_of_rows(both, rows):
        parameters, frozen = both

        def add_chunk(totals, chunk):
            def loss(parameters, hidden_BxCxD):
                return chunk_loss(parameters, frozen, (hidden_BxCxD, *chunk[1:]))

            gradients, sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(parameters, chunk[0])
            return _add(totals, (sums, gradients[0])), gradients[1]

        zeros = _zero_sums(chunk_loss, both, rows, C), jax.tree.map(jnp.zeros_like, parameters)
        totals, gradient_chunks = jax.lax.scan(add_chunk, zeros, _chunks(rows, C))
        gradient_BxNxCxD = jnp.moveaxis(gradient_chunks, 0, 1)
        B, N, C_, *rest = gradient_BxNxCxD.shape
        return totals, gradient_BxNxCxD.reshape(B, N * C_, *rest)[:, :L]

    @jax.custom_vjp
    def whole_sums(parameters, frozen, hidden_BxLxD, rows):
        return per_device(sums_of_rows)((parameters, frozen), (hidden_BxLxD, rows))[0]

    def sums_and_gradients(parameters, frozen, hidden_BxLxD, rows):
        (sums, parameter_gradient), hidden_gradient = per_device(sums_and_gradients_of_rows)(
            (parameters, frozen), (hidden_BxLxD, rows)
        )
        return sums, (parameter_gradient, hidden_gradient)

    def scale_gradients(gradients, cotangents):
        of_parameters, of_hidden = jax.tree.map(lambda g: (g * cotangents.minimized_sum).astype(g.dtype), gradients)
        return of_parameters, None, of_hidden, None

    whole_sums.defvjp(sums_and_gradients, scale_gradients)
    return whole_sums(parameters, frozen, hidden_BxLxD, rows)


def _zero_sums(chunk_loss: Callable, both: tuple, rows: Any, chunk_size: int) -> LossSums:
    """Returns zeros of the shapes of the sums of a chunk."""
    chunk = jax.tree.map(lambda x: jnp.zeros((x.shape[0], chunk_size, *x.shape[2:]), x.dtype), rows)
    shapes = jax.eval_shape(chunk_loss, *both, chunk)[1]
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


def _chunks(rows: Any, chunk_size: int) -> Any:
    """Returns each array [B, L, ...] of the tree `rows` as [chunks, B, chunk_size, ...].

    The last chunk is padded with zeros, so the padding's loss weight is 0.
    """

    def chunks(x_BxLx: jax.Array) -> jax.Array:
        B, L, *rest = x_BxLx.shape
        num = -(-L // chunk_size)
        padded = jnp.pad(x_BxLx, [(0, 0), (0, num * chunk_size - L)] + [(0, 0)] * len(rest))
        return jnp.moveaxis(padded.reshape(B, num, chunk_size, *rest), 1, 0)

    return jax.tree.map(chunks, rows)
