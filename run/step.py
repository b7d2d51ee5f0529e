"""The training and evaluation steps: one body each, pure functions of a pytree state, to be compiled by `jax.jit`.

Below the steps are dynamic loss scaling for float16, in which small gradients underflow to 0, and the exponential
moving average of the parameters (Polyak averaging), which evaluations read in their place.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from learners.learner import Batch, Learner, Sums
from models.transformer import Params
from objectives.losses.cross_entropy import target_side

INITIAL_FACTOR = 2.0**15
MIN_FACTOR, MAX_FACTOR = 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # updates in a row with finite gradients before the factor grows


class LossScale(NamedTuple):
    """float16: the loss is multiplied by `factor` before differentiation, and the gradients are divided by it.

    In float16, gradients below 2^-25 round to 0 and gradients above 65,504 to infinity; the factor moves gradients
    between these limits. The factor is a power of two, so multiplication and division do not round. As in Micikevicius
    et al. (2018), an update whose gradients are not finite is skipped and halves the factor; 2,000 updates in a row
    with finite gradients double the factor. Deviation from flax's DynamicScale, which checks the gradients of a single
    value_and_grad: microbatches are summed before the check.
    """

    factor: jax.Array  # float32 [], from 1 to 2^24
    good_count: jax.Array  # int32 []: finite updates since the factor last changed or would have exceeded its maximum


class TrainState(NamedTuple):
    """The state of a run, as a checkpoint holds it. `step` is also the position in the data."""

    step: jax.Array  # int32 []: batches consumed
    params: Params  # float32
    opt_state: Any
    skipped_count: jax.Array  # int32 []: updates skipped because a gradient was not finite
    # int32 []: updates skipped since the last good one, without those after which the loss scale could still shrink
    skipped_in_a_row_count: jax.Array
    loss_scale: LossScale | None = None  # float16 only
    ema_params: Params | None = None  # float32, the average of `params`; None: not averaged

    @property
    def eval_params(self) -> Params:
        """The parameters that evaluations, samples and other runs read: the averaged ones, if there are any."""
        return self.params if self.ema_params is None else self.ema_params

    def starting_with(self, params: Params) -> "TrainState":
        """Returns a state before the first step with other parameters, with which their average starts too."""
        average = None if self.ema_params is None else initial_average(params)
        return self._replace(params=params, ema_params=average)


def init_state(
    learner: Learner,
    optimizer: optax.GradientTransformation,
    seed: int | jax.Array,
    precision: str = "float32",
    ema_decay: float = 0.0,
    params: Params | None = None,
) -> TrainState:
    """Returns the state before the first step.

    Args:
      learner: initializes the parameters.
      optimizer: initializes its state.
      seed: of the parameters; an int or an int32 [], which may be traced.
      precision: "float16" adds a loss scale.
      ema_decay: `train.ema_decay`; above 0, adds the average of the parameters.
      params: in place of those that the learner initializes.
    """
    params = params or learner.init_params(jax.random.key(seed))
    step, skipped, in_a_row = jnp.zeros((3,), jnp.int32)  # separate arrays: a donated state may not contain one twice
    average = initial_average(params) if ema_decay else None
    return TrainState(step, params, optimizer.init(params), skipped, in_a_row, initial_loss_scale(precision), average)


def make_train_step(
    learner: Learner,
    optimizer: optax.GradientTransformation,
    *,
    grad_accum_steps: int,
    seed: int | jax.Array,
    axis_name: str | Sequence[str] | None = None,
    per_part: Callable[[Callable], Callable] | None = None,
    ema_decay: float = 0.0,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """Returns (state, batch, frozen) -> (state, metrics): one update from one global batch, [B, ...] arrays.

    `frozen` has further entries of the parameters, which the loss reads and no update changes: those of
    `learner.frozen_shapes`. By default it is empty.

    Without `axis_name`, gradients and metrics are sums over all rows of `batch`, and the compiler adds the parts of the
    devices wherever the program has such a sum. With `axis_name`, each part of the rows has its own sums, and the parts
    are added explicitly: the weights before the loss, and gradients, in float32, and metrics once, after the last
    microbatch.

    The loss of each of `grad_accum_steps` microbatches is divided by the weights of the whole batch, and the gradients
    are summed, so the update does not depend on the number of microbatches. An update whose gradients are not finite
    leaves parameters, optimizer state and averaged parameters unchanged. If the state has a loss scale (float16), the
    gradients are those of the scaled loss, and every update adjusts the scale. If the state has averaged parameters,
    they follow the parameters with `ema_decay`.

    Args:
      learner: has the loss.
      optimizer: makes an update of gradients.
      grad_accum_steps: the number of microbatches.
      seed: of the step's random draws, such as dropout; an int or an int32 [], which may be traced.
      axis_name: the mesh axes, or the axis of jax.pmap, whose parts of the rows have their own sums.
      per_part: maps the function (parameters, loss scale, batch, key) -> sums to one that runs on each part of the rows
        of `axis_name` (run.sharding.per_part). None: under jax.pmap the whole step runs on one part.
      ema_decay: `train.ema_decay`.

    The metrics are the learner's Sums, grad_norm, useful_token_fraction (the share of positions that are not padding),
    scored_tokens (int32 [], the number of positions with a loss weight), both skipped counts, and loss_scale if the
    state has one.
    """

    def gradients(trees: tuple, loss_scale: LossScale | None, weights: Sums, batch: Batch, key: jax.Array):
        params, frozen = trees

        def loss(params):
            loss, sums = learner.loss({**params, **frozen}, batch, weights, key=key, train=True)
            return scaled(loss, loss_scale), sums

        return jax.grad(loss, has_aux=True)(params)

    def summed_gradients(trees: tuple, loss_scale: LossScale | None, batch: Batch, key: jax.Array):
        weights, useful, scored = learner.weights(batch), useful_token_fraction(batch), count_scored(batch)
        if axis_name is not None:
            weights, useful = jax.lax.psum(weights, axis_name), jax.lax.pmean(useful, axis_name)
            scored = jax.lax.psum(scored, axis_name)
        of_microbatch = functools.partial(gradients, trees, loss_scale, weights)
        grads, sums = _accumulate(of_microbatch, batch, key, grad_accum_steps)
        if axis_name is not None:
            grads, sums = jax.lax.psum((grads, sums), axis_name)
        return grads, sums | {"useful_token_fraction": useful, "scored_tokens": scored}

    def train_step(state: TrainState, batch: Batch, frozen: Params | None = None) -> tuple[TrainState, dict[str, Any]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        of_rows = summed_gradients if per_part is None else per_part(summed_gradients)
        grads, sums = of_rows((state.params, frozen or {}), state.loss_scale, batch, key)
        state, metrics = updated(state, grads, optimizer, ema_decay)
        return state, sums | metrics

    return train_step


def updated(
    state: TrainState, grads: Params, optimizer: optax.GradientTransformation, ema_decay: float
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the state after an update by `grads`, the gradients of the scaled loss, and the update's metrics."""
    grads = unscaled(grads, state.loss_scale)
    grad_norm = optax.tree.norm(grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    finite = jnp.isfinite(grad_norm)
    skipped_count = state.skipped_count + ~finite
    params, ema_params = optax.apply_updates(state.params, updates), None
    if state.ema_params is not None:
        num_updates = state.step + 1 - skipped_count
        ema_params = averaged(state.ema_params, params, decay=ema_decay, num_updates=num_updates)
    params, opt_state, ema_params = jax.tree.map(
        functools.partial(jnp.where, finite),
        (params, opt_state, ema_params),
        (state.params, state.opt_state, state.ema_params),
    )
    # Otherwise a smaller factor may make the gradients finite.
    is_at_minimum_scale = True if state.loss_scale is None else state.loss_scale.factor <= MIN_FACTOR
    skipped_in_a_row_count = jnp.where(finite, 0, state.skipped_in_a_row_count + is_at_minimum_scale)
    loss_scale = None if state.loss_scale is None else adjusted(state.loss_scale, finite)
    counts = {"skipped_count": skipped_count, "skipped_in_a_row_count": skipped_in_a_row_count}
    state = TrainState(state.step + 1, params, opt_state, **counts, loss_scale=loss_scale, ema_params=ema_params)
    scale = {} if loss_scale is None else {"loss_scale": loss_scale.factor}
    return state, {"grad_norm": grad_norm} | counts | scale


def make_eval_step(learner: Learner, *, bytes_of_token: jax.Array | None, unk: int) -> Callable[[Params, Batch], Sums]:
    """Returns (params, batch) -> the learner's Sums over the batch, without dropout and with the same key every time.

    bytes_of_token: int32 [V], the bytes that each token spells; adds `bytes_sum_by_group`, those of all targets: an
      objective with a byte metric scores every token of its text, or a random part with weights, as masked diffusion.
    unk: the id of unknown tokens; adds the ratio `unknown_fraction`, their share of the scored targets, if the learner
      predicts tokens.
    """

    def eval_step(params: Params, batch: Batch) -> Sums:
        _, sums = learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)
        if bytes_of_token is not None:
            side = target_side(batch)
            num_bytes = bytes_of_token[batch[f"{side}_target_tokens"]] * (batch[f"{side}_segment_ids"] > 0)
            sums["bytes_sum_by_group"] = jax.ops.segment_sum(
                num_bytes.ravel(), batch["example_source"].ravel(), num_segments=learner.setup.num_groups
            )
        if learner.language_model(params) is not None:
            pair = count_scored(batch, unk), count_scored(batch)
            sums["ratios"] = sums.get("ratios", {}) | {"unknown_fraction": pair}
        return sums

    return eval_step


def useful_token_fraction(batch: Batch) -> jax.Array:
    """Returns the share of the positions of all stacks of a batch that are not padding, float32 []."""
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return sum(jnp.sum(array > 0) for array in segments) / sum(array.size for array in segments)


def count_scored(batch: Batch, target: int | None = None) -> jax.Array:
    """Returns the number of positions with a loss weight, and with the target `target` if it is given, int32 []."""
    count = jnp.zeros((), jnp.int32)
    for name, weights in batch.items():
        if name.endswith("_loss_weights"):
            scored = weights > 0
            if target is not None:
                scored &= batch[name.replace("_loss_weights", "_target_tokens")] == target
            count += jnp.sum(scored, dtype=jnp.int32)
    return count


def _accumulate(gradients: Callable, batch: Batch, key: jax.Array, steps: int) -> tuple[Params, Sums]:
    """Returns gradients and Sums, summed over `steps` microbatches; row r is in microbatch r % steps.

    With strided rows every device keeps its rows when the batch is sharded over rows.
    """
    if steps == 1:
        return gradients(batch, key)
    microbatches = jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]).swapaxes(0, 1), dict(batch))

    def add(total, scanned):
        index, microbatch = scanned
        return jax.tree.map(jnp.add, total, gradients(microbatch, jax.random.fold_in(key, index))), None

    shapes = jax.eval_shape(gradients, jax.tree.map(lambda x: x[0], microbatches), key)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, zeros, (jnp.arange(steps), microbatches))[0]


def initial_loss_scale(precision: str) -> LossScale | None:
    """Returns a scale of 2^15 for "float16", and None for float32 and bfloat16, which have enough exponent bits.

    With None, `scaled` and `unscaled` return their argument.
    """
    if precision != "float16":
        return None
    return LossScale(jnp.full((), INITIAL_FACTOR, jnp.float32), jnp.zeros((), jnp.int32))


def scaled(loss: jax.Array, scale: LossScale | None) -> jax.Array:
    """Returns the loss to differentiate, float32 []."""
    return loss if scale is None else loss * scale.factor


def unscaled(grads, scale: LossScale | None):
    """Returns the gradients of the loss from those of the scaled loss, a float32 tree. NaN and infinity remain."""
    return grads if scale is None else jax.tree.map(lambda grad: grad / scale.factor, grads)


def adjusted(scale: LossScale, finite: jax.Array) -> LossScale:
    """Returns the scale after an update. finite: bool [], whether all gradients of the update were finite."""
    good_count = scale.good_count + 1
    grows = finite & (good_count == GROWTH_INTERVAL)
    factor = scale.factor * jnp.where(grows, 2.0, jnp.where(finite, 1.0, 0.5))
    return LossScale(
        factor=jnp.clip(factor, MIN_FACTOR, MAX_FACTOR), good_count=jnp.where(finite & ~grows, good_count, 0)
    )


def initial_average(params: Params) -> Params:
    """Returns the average before the first update: a copy of `params`, because a donated state has no array twice."""
    return jax.tree.map(jnp.copy, params)


def averaged(average: Params, params: Params, *, decay: float, num_updates: jax.Array) -> Params:
    """Returns the average after an update: d * average + (1 - d) * params, with d = min(decay, (1 + n) / (10 + n)).

    The warm-up of d is that of `num_updates` in TensorFlow's tf.train.ExponentialMovingAverage. Without it the initial
    parameters, which are random, would keep a weight of decay^n: 0.55 after 600 updates with a decay of 0.999. With it
    the average is over about the last tenth of the updates until d reaches `decay`, at n = 8,990 for 0.999. The average
    starts with the initial parameters, so no bias correction as in Adam, whose moments start at 0, is needed.

    Args:
      average, params: float32 arrays of the same shapes; `params` are those after the update.
      decay: `train.ema_decay`, in (0, 1).
      num_updates: n, int32 []: updates since the start of the run, this one included and skipped ones not.
    """
    # 1 - d, without the cancellation of a float32 d close to 1.
    step_size = jnp.maximum(1.0 - decay, 9.0 / (10.0 + num_updates))
    return optax.incremental_update(params, average, step_size)
