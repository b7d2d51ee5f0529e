"""The train and evaluation steps: one body, plain functions of a pytree state, ready for `jax.jit`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models.config import ModelConfig
from models.transformer import Params, apply, init_params
from objectives.losses import LossSums, batch_cross_entropy
from train.config import LossConfig

Batch = Mapping[str, jax.Array]


class TrainState(NamedTuple):
    """All that a checkpoint holds of a run; `step` is also its position in the data."""

    step: jax.Array  # int32 []: batches consumed
    params: Params  # float32
    opt_state: Any
    skipped_count: jax.Array  # int32 []: updates left out because a gradient was not finite
    skipped_in_a_row_count: jax.Array  # int32 []: of those, the ones since the last good update


def init_state(model: ModelConfig, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step: parameters drawn from `seed`."""
    params = init_params(model, jax.random.key(seed))
    step, skipped, in_a_row = jnp.zeros((3,), jnp.int32)  # arrays of their own: a donated state may not share any
    return TrainState(step, params, optimizer.init(params), skipped, in_a_row)


def make_train_step(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    loss: LossConfig,
    *,
    num_sources: int,
    grad_accum_steps: int,
    seed: int,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """(state, batch) -> (state, metrics): one update from one global batch, [B, ...] arrays.

    Gradients are of the *sum* of the loss over scored tokens, added up over `grad_accum_steps` microbatches and
    divided once by the weights of the whole batch, so the update does not depend on how the batch is cut up. An update
    whose gradients are not finite leaves parameters and optimizer state as they were. Metrics are LossSums' fields,
    grad_norm, useful_token_fraction (positions that are not padding) and the skipped counts.
    """

    def loss_sum(params: Params, batch: Batch, dropout_key: jax.Array | None) -> tuple[jax.Array, LossSums]:
        logits = apply(model, params, batch, dropout_key=dropout_key)
        sums = batch_cross_entropy(
            logits, batch, num_sources=num_sources, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing
        )
        return sums.objective_sum, sums

    def gradients(params: Params, batch: Batch, key: jax.Array) -> tuple[Params, LossSums]:
        dropout_key = key if model.dropout_rate else None
        grads, sums = jax.grad(loss_sum, has_aux=True)(params, batch, dropout_key)
        return grads, sums

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, sums = _accumulate(functools.partial(gradients, state.params), batch, key, grad_accum_steps)
        grads = jax.tree.map(lambda g: g / jnp.maximum(sums.weight_sum, 1.0), grads)
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
        metrics = sums._asdict() | {
            "grad_norm": grad_norm,
            "useful_token_fraction": useful_token_fraction(batch),
            "skipped_count": state.skipped_count,
            "skipped_in_a_row_count": state.skipped_in_a_row_count,
        }
        return state, metrics

    return train_step


def make_eval_step(
    model: ModelConfig, *, num_sources: int, bytes_of_token: jax.Array | None
) -> Callable[[Params, Batch], dict[str, jax.Array]]:
    """(params, batch) -> sums over the batch: LossSums' fields of the plain cross-entropy, no dropout.

    `bytes_of_token`, int32 [V]: raw bytes that a token stands for; adds `bytes_sum`, those of the scored targets.
    """

    def eval_step(params: Params, batch: Batch) -> dict[str, jax.Array]:
        logits = apply(model, params, batch)
        sums = batch_cross_entropy(logits, batch, num_sources=num_sources, z_loss=0.0, label_smoothing=0.0)._asdict()
        if bytes_of_token is not None:
            scored = batch["decoder_loss_weights"] > 0
            sums["bytes_sum"] = jnp.sum(bytes_of_token[batch["decoder_target_tokens"]] * scored)
        return sums

    return eval_step


def useful_token_fraction(batch: Batch) -> jax.Array:
    """float32 []: the share of a batch's positions, of both stacks together, that are not padding."""
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return sum(jnp.sum(array > 0) for array in segments) / sum(array.size for array in segments)


def _accumulate(gradients: Callable, batch: Batch, key: jax.Array, steps: int) -> tuple[Params, LossSums]:
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
