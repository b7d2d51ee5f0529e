"""Cross-entropy from hidden states, a chunk of positions at a time: logits [B, L, V] are never all there at once."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from objectives.losses.cross_entropy import LossSums, cross_entropy, target_side

_add = functools.partial(jax.tree.map, jnp.add)


def batch_cross_entropy_of_hidden(
    logits_of: Callable[[jax.Array], jax.Array],
    hidden_BxLxD: jax.Array,
    batch: Mapping[str, jax.Array],
    *,
    num_denoisers: int,
    z_loss: float,
    label_smoothing: float,
    chunk_size: int,
) -> LossSums:
    """`cross_entropy` of `logits_of(hidden_BxLxD)` on a batch of contract/batch.py.

    chunk_size: positions of each row whose logits are there at a time, see `chunked_cross_entropy`; 0: all of them.
    """
    side = target_side(batch)
    scored = batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"], batch["example_source"]
    options = {"num_denoisers": num_denoisers, "z_loss": z_loss, "label_smoothing": label_smoothing}
    if chunk_size:
        return chunked_cross_entropy(logits_of, hidden_BxLxD, *scored, **options, chunk_size=chunk_size)
    return cross_entropy(logits_of(hidden_BxLxD), *scored, **options)


def chunked_cross_entropy(
    logits_of: Callable[[jax.Array], jax.Array],
    hidden_BxLxD: jax.Array,
    targets_BxL: jax.Array,
    weights_BxL: jax.Array,
    denoiser_BxL: jax.Array,
    *,
    num_denoisers: int,
    z_loss: float,
    label_smoothing: float,
    chunk_size: int,
) -> LossSums:
    """What `cross_entropy` gives for `logits_of(hidden_BxLxD)`, holding [B, chunk_size, V] of the logits and no more.

    logits_of: [B, C, D] -> float32 [B, C, V], position by position; the parameters in its closure get their gradient.

    When differentiated, a chunk's gradients are worked out right after its loss, while its logits are there, and added
    up (as Liger's fused loss does): the logits are made once, in the forward pass, and the backward pass only scales.
    Gradients add up in their parameters' dtype. Only `objective_sum` can be differentiated, and only for the hidden
    states and what `logits_of` closes over; everything else counts as constant.

    Chunks are cut along the length, which no mesh axis splits, so a batch whose rows are split over devices stays so.
    Each chunk reads the whole output table: of a table that is split over devices, chunks should be few.
    """
    C = min(chunk_size, hidden_BxLxD.shape[1])
    options = {"num_denoisers": num_denoisers, "z_loss": z_loss, "label_smoothing": label_smoothing}
    logits_of, closed_over = jax.closure_convert(logits_of, hidden_BxLxD[:, :C])

    def objective(closed_over, hidden_BxCxD, scored_BxC):
        sums = cross_entropy(logits_of(hidden_BxCxD, *closed_over), *scored_BxC, **options)
        return sums.objective_sum, sums

    @jax.custom_vjp
    def sums_of(closed_over, hidden_chunks, scored_chunks):
        def add_chunk(sums, chunk):
            return _add(sums, objective(closed_over, *chunk)[1]), None

        return jax.lax.scan(add_chunk, _zero_sums(num_denoisers), (hidden_chunks, scored_chunks))[0]

    def sums_and_gradients(closed_over, hidden_chunks, scored_chunks):
        def add_chunk(so_far, chunk):
            gradients, sums = jax.grad(objective, argnums=(0, 1), has_aux=True)(closed_over, *chunk)
            return _add(so_far, (sums, gradients[0])), gradients[1]

        start = _zero_sums(num_denoisers), jax.tree.map(jnp.zeros_like, closed_over)
        (sums, closed_gradient), hidden_gradient = jax.lax.scan(add_chunk, start, (hidden_chunks, scored_chunks))
        return sums, (closed_gradient, hidden_gradient)

    def scale_gradients(gradients, cotangents):
        scaled = jax.tree.map(lambda g: (g * cotangents.objective_sum).astype(g.dtype), gradients)
        return (*scaled, None)

    sums_of.defvjp(sums_and_gradients, scale_gradients)
    scored = (targets_BxL, weights_BxL, denoiser_BxL)
    return sums_of(closed_over, _chunks(hidden_BxLxD, C), tuple(_chunks(x, C) for x in scored))


def _zero_sums(num_denoisers: int) -> LossSums:
    by_denoiser = {name: jnp.zeros(num_denoisers) for name in LossSums._fields if name.endswith("_by_denoiser")}
    return LossSums(**{name: jnp.zeros(()) for name in LossSums._fields} | by_denoiser)


def _chunks(x_BxLx: jax.Array, chunk_size: int) -> jax.Array:
    """[chunks, B, chunk_size, ...]; the last chunk ends in zeros, whose loss weight is then 0."""
    B, L, *rest = x_BxLx.shape
    num = -(-L // chunk_size)
    padded = jnp.pad(x_BxLx, [(0, 0), (0, num * chunk_size - L)] + [(0, 0)] * len(rest))
    return jnp.moveaxis(padded.reshape(B, num, chunk_size, *rest), 1, 0)
