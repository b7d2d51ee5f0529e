"""The train and evaluation steps: one body, plain functions of a pytree state, ready for `jax.jit`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models.transformer import Params
from train.learner import Batch, Learner, Sums


class TrainState(NamedTuple):
    """All that a checkpoint holds of a run; `step` is also its position in the data."""

    step: jax.Array  # int32 []: batches consumed
    params: Params  # float32
    opt_state: Any
    skipped_count: jax.Array  # int32 []: updates left out because a gradient was not finite
    skipped_in_a_row_count: jax.Array  # int32 []: of those, the ones since the last good update


def init_state(learner: Learner, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step: parameters drawn from `seed`."""
    params = learner.init_params(jax.random.key(seed))
    step, skipped, in_a_row = jnp.zeros((3,), jnp.int32)  # arrays of their own: a donated state may not share any
    return TrainState(step, params, optimizer.init(params), skipped, in_a_row)


def make_train_step(
    learner: Learner, optimizer: optax.GradientTransformation, *, grad_accum_steps: int, seed: int
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]:
    """(state, batch) -> (state, metrics): one update from one global batch, [B, ...] arrays.

    The loss of each of `grad_accum_steps` microbatches is divided by the weights of the whole batch, and their
    gradients added up, so the update does not depend on how the batch is cut up. An update whose gradients are not
    finite leaves parameters and optimizer state as they were. Metrics are the learner's Sums, grad_norm,
    useful_token_fraction (positions that are not padding) and the skipped counts.
    """

    def gradients(params: Params, weights: dict[str, jax.Array], batch: Batch, key: jax.Array) -> tuple[Params, Sums]:
        def loss(params):
            return learner.loss(params, batch, weights, key=key, train=True)

        return jax.grad(loss, has_aux=True)(params)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        gradients_of = functools.partial(gradients, state.params, learner.weights(batch))
        grads, sums = _accumulate(gradients_of, batch, key, grad_accum_steps)
        grad_norm = optax.global_norm(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        finite = jnp.isfinite(grad_norm)
        params, opt_state = jax.tree.map(
            functools.partial(jnp.where, finite),
            (optax.apply_updates(state.params, updates), opt_state),
            (state.params, state.opt_state),
        )
        skipped = 1 - finite.astype(jnp.int32)
        state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped_count=state.skipped_count + skipped,
            skipped_in_a_row_count=(state.skipped_in_a_row_count + 1) * skipped,
        )
        metrics = sums | {
            "grad_norm": grad_norm,
            "useful_token_fraction": useful_token_fraction(batch),
            "skipped_count": state.skipped_count,
            "skipped_in_a_row_count": state.skipped_in_a_row_count,
        }
        return state, metrics

    return train_step


def make_eval_step(learner: Learner, *, bytes_of_token: jax.Array | None) -> Callable[[Params, Batch], Sums]:
    """(params, batch) -> the learner's Sums over the batch. Without dropout; what is drawn is the same every time.

    `bytes_of_token`, int32 [V]: raw bytes that a token stands for; adds `bytes_sum`, those of the scored targets.
    """

    def eval_step(params: Params, batch: Batch) -> Sums:
        _, sums = learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)
        if bytes_of_token is not None:
            scored = batch["decoder_loss_weights"] > 0
            sums["bytes_sum"] = jnp.sum(bytes_of_token[batch["decoder_target_tokens"]] * scored)
        return sums

    return eval_step


def useful_token_fraction(batch: Batch) -> jax.Array:
    """float32 []: the share of a batch's positions, of both stacks together, that are not padding."""
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return sum(jnp.sum(array > 0) for array in segments) / sum(array.size for array in segments)


def _accumulate(gradients: Callable, batch: Batch, key: jax.Array, steps: int) -> tuple[Params, Sums]:
    """Gradients and loss sums added up over `steps` microbatches, row r going to microbatch r % steps.

    Strided rows keep every device's rows its own when the batch is sharded over rows.
    """
    if steps == 1:
        return gradients(batch, key)
    microbatches = jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]).swapaxes(0, 1), dict(batch))

    def add(total, numbered):
        number, microbatch = numbered
        return jax.tree.map(jnp.add, total, gradients(microbatch, jax.random.fold_in(key, number))), None

    shapes = jax.eval_shape(gradients, jax.tree.map(lambda x: x[0], microbatches), key)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, zeros, (jnp.arange(steps), microbatches))[0]
