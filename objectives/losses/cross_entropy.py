"""Cross-entropy of the scored tokens. Pure functions that return sums and denominators: the caller divides once."""

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp


class ScoredTokens(NamedTuple):
    """What is predicted at each position of a batch."""

    targets_BxL: jax.Array  # int32
    weights_BxL: jax.Array  # float32, the loss weights; 0 where a position is not scored
    group_ids_BxL: jax.Array  # int32, in 0, ..., num_groups - 1: the group whose sums include the position


class LossOptions(NamedTuple):
    """Static options of `cross_entropy`.

    num_groups: groups of positions with separate sums: denoisers in training, examples in evaluation.
    z_loss: coefficient of log(Z)^2. T5: 1e-4.
    label_smoothing: s, in [0, 1). The target distribution is (1 - s) on the target token, plus s spread evenly over
        all V rows of the output table, as in Mesh TensorFlow. Deviation from T5X, which excludes the target token from
        the spread and subtracts the entropy of the target distribution, a constant.
    """

    num_groups: int
    z_loss: float
    label_smoothing: float


class LossSums(NamedTuple):
    """Sums over scored tokens, float32. Add them over microbatches and devices, then divide by weight_sum."""

    minimized_sum: jax.Array  # [] cross-entropy with label smoothing, plus the z-loss
    weight_sum: jax.Array  # [] the denominator: the sum of the loss weights, unless `with_denominators` replaces it
    loss_sum: jax.Array  # [] negative log-likelihood, nats
    correct_sum: jax.Array  # [] tokens whose most likely prediction is the target
    loss_sum_by_group: jax.Array  # [num_groups]
    weight_sum_by_group: jax.Array  # [num_groups]
    correct_sum_by_group: jax.Array  # [num_groups]
    ratios: dict[str, tuple[jax.Array, jax.Array]] = {}  # noqa: RUF012  name -> (sum, weight), float32 [] each

    def reported(self) -> dict[str, Any]:
        """Returns all sums except `minimized_sum`, by name; `ratios` if there are any."""
        unreported = {"minimized_sum"} if self.ratios else {"minimized_sum", "ratios"}
        return {name: value for name, value in self._asdict().items() if name not in unreported}


class _TokenLosses(NamedTuple):
    minimized_BxL: jax.Array
    nll_BxL: jax.Array
    is_correct_BxL: jax.Array  # bool


def cross_entropy(logits_BxLxV: jax.Array, scored: ScoredTokens, options: LossOptions) -> LossSums:
    """Returns the sums of the weighted cross-entropy of logits, float [B, L, V], computed in float32."""
    targets_BxL, weights_BxL, group_ids_BxL = scored
    tokens = _token_losses(options, logits_BxLxV.astype(jnp.float32), targets_BxL)
    nll_BxL, correct_BxL = tokens.nll_BxL * weights_BxL, tokens.is_correct_BxL * weights_BxL

    def by_group(values_BxL):
        return jax.ops.segment_sum(values_BxL.reshape(-1), group_ids_BxL.reshape(-1), num_segments=options.num_groups)

    return LossSums(
        minimized_sum=(tokens.minimized_BxL * weights_BxL).sum(),
        weight_sum=weights_BxL.sum(),
        loss_sum=nll_BxL.sum(),
        correct_sum=correct_BxL.sum(),
        loss_sum_by_group=by_group(nll_BxL),
        weight_sum_by_group=by_group(weights_BxL),
        correct_sum_by_group=by_group(correct_BxL),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_losses(options: LossOptions, logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> _TokenLosses:
    """Returns the losses of each position, in nats, from float32 logits.

    The gradient of the logits is one function of each logit alone, without a scatter into an array of their size. So
    the compiler computes the gradient while it writes the array that the next product reads, in the dtype of that
    product (models/layers.py).
    """
    return _token_losses_forward(options, logits_BxLxV, targets_BxL)[0]


def _token_losses_forward(options, logits_BxLxV, targets_BxL):
    # Not log(Z) = maximum + log_sum, which large logits round coarsely, but both parts.
    maximum_BxLx1 = logits_BxLxV.max(axis=-1, keepdims=True)
    maximum_BxLx1 = jnp.where(jnp.isfinite(maximum_BxLx1), maximum_BxLx1, 0)
    log_sum_BxL = jnp.log(jnp.exp(logits_BxLxV - maximum_BxLx1).sum(axis=-1))
    log_z_BxL = maximum_BxLx1[..., 0] + log_sum_BxL
    target_logits_BxLx1 = jnp.take_along_axis(logits_BxLxV, targets_BxL[..., None], axis=-1)
    nll_BxL = minimized_BxL = log_sum_BxL - (target_logits_BxLx1 - maximum_BxLx1)[..., 0]
    if options.label_smoothing:
        uniform_BxL = log_sum_BxL - (logits_BxLxV - maximum_BxLx1).mean(axis=-1)
        minimized_BxL = (1 - options.label_smoothing) * nll_BxL + options.label_smoothing * uniform_BxL
    if options.z_loss:
        minimized_BxL += options.z_loss * jnp.square(log_z_BxL)
    # The target is the argmax, the first of equal logits. Comparisons need no pass of their own over the logits: they
    # are reduced together with the exponentials. An argmax is a reduction of another kind.
    is_at_or_after_BxLxV = _ids(logits_BxLxV) >= targets_BxL[..., None]
    is_behind_BxLxV = jnp.where(
        is_at_or_after_BxLxV, logits_BxLxV <= target_logits_BxLx1, logits_BxLxV < target_logits_BxLx1
    )
    losses = _TokenLosses(minimized_BxL, nll_BxL, is_behind_BxLxV.all(axis=-1))
    return losses, (logits_BxLxV, targets_BxL, maximum_BxLx1, log_sum_BxL)


def _token_losses_backward(options, residuals, losses_bar):
    logits_BxLxV, targets_BxL, maximum_BxLx1, log_sum_BxL = residuals
    minimized_bar_BxL, nll_bar_BxL, _ = losses_bar
    log_z_BxL = maximum_BxLx1[..., 0] + log_sum_BxL
    log_z_bar_BxL = minimized_bar_BxL * (1 + 2 * options.z_loss * log_z_BxL) + nll_bar_BxL
    target_bar_BxL = minimized_bar_BxL * (1 - options.label_smoothing) + nll_bar_BxL
    logits_bar_BxLxV = log_z_bar_BxL[..., None] * jnp.exp((logits_BxLxV - maximum_BxLx1) - log_sum_BxL[..., None])
    logits_bar_BxLxV -= jnp.where(_ids(logits_BxLxV) == targets_BxL[..., None], target_bar_BxL[..., None], 0)
    if options.label_smoothing:
        logits_bar_BxLxV -= (minimized_bar_BxL * options.label_smoothing / logits_BxLxV.shape[-1])[..., None]
    return logits_bar_BxLxV, None


_token_losses.defvjp(_token_losses_forward, _token_losses_backward)


def _ids(logits_BxLxV: jax.Array) -> jax.Array:
    """Returns the token id of each logit, int32 [1, 1, V]."""
    return jnp.arange(logits_BxLxV.shape[-1], dtype=jnp.int32)[None, None]


def target_side(batch: Mapping[str, jax.Array]) -> Literal["decoder", "encoder"]:
    """Returns the stack whose positions are scored: the decoder if the batch has one, else the encoder."""
    return "decoder" if "decoder_target_tokens" in batch else "encoder"


def scored_tokens(batch: Mapping[str, jax.Array]) -> ScoredTokens:
    """Returns the targets and loss weights of a batch, with `example_source` as groups (contract/batch.py)."""
    side = target_side(batch)
    return ScoredTokens(batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"], batch["example_source"])


def denominators(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns what each position of a batch adds to the denominator of the loss, float32 [B, L]."""
    side = target_side(batch)
    return batch.get(f"{side}_loss_denominators", batch[f"{side}_loss_weights"])


def with_denominators(sums: LossSums, batch: Mapping[str, jax.Array]) -> LossSums:
    """Returns the sums of a batch with the sums of its `denominators` in place of those of its loss weights."""
    if f"{target_side(batch)}_loss_denominators" not in batch:
        return sums
    by_position, groups = denominators(batch), batch["example_source"]
    by_group = jax.ops.segment_sum(by_position.ravel(), groups.ravel(), num_segments=len(sums.weight_sum_by_group))
    return sums._replace(weight_sum=by_position.sum(), weight_sum_by_group=by_group)


def scored_positions(weights_BxL: jax.Array, num_positions: int) -> jax.Array:
    """Returns K = `num_positions` different positions of each row, int32 [B, K]: scored ones first, then unscored ones.

    weights: loss weights, float32 [B, L].
    """
    # A sort keeps sharded rows on their devices; jax.lax.top_k gathers them.
    return jnp.argsort(weights_BxL == 0, axis=1, stable=True)[:, :num_positions]


def at_positions(x_BxLx: jax.Array, positions_BxK: jax.Array) -> jax.Array:
    """Returns [B, K, ...], the entries of x [B, L, ...] at different positions of each row, int32 [B, K]."""

    def of_row(row: jax.Array, positions: jax.Array) -> jax.Array:
        return row.at[positions].get(unique_indices=True, mode="promise_in_bounds")

    return jax.vmap(of_row)(x_BxLx, positions_BxK)


def scored_at(scored: ScoredTokens, positions_BxK: jax.Array) -> ScoredTokens:
    """Returns `scored` at the positions, int32 [B, K], of `scored_positions`: [B, K] each.

    A row with more than K scored positions gets loss weights of NaN: a loss that ignored some of them would be another
    loss than the objective's.
    """
    at = ScoredTokens(*(at_positions(x, positions_BxK) for x in scored))
    has_all_Bx1 = jnp.sum(scored.weights_BxL != 0, axis=1, keepdims=True) <= positions_BxK.shape[1]
    return at._replace(weights_BxL=jnp.where(has_all_Bx1, at.weights_BxL, jnp.nan))
