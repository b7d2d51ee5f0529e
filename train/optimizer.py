"""Optimizers: AdamW, AdamW with T5's per-matrix step size, Adafactor, Lion, Muon; made of optax's own pieces."""

import re

import jax
import optax
import optax.contrib

from contract.errors import ConfigError
from train.config import OptimizerConfig
from train.paths import leaf_name, stacks_layers
from train.schedules import make_schedule

MUON_RMS = 0.2  # of Muon's step: about what Adam's is
MIN_PARAMETER_RMS = 1e-3  # of a matrix, where its step is scaled by it: one that starts at 0 can still leave it


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of `config`, for a run of `steps` updates; its rate is `train.schedules.make_schedule`'s.

    Parameters, gradients and updates are trees of float32 arrays. Gradients are clipped to `clip_norm` by their global
    norm, turned into a step by one of

      adamw             optax's: Adam with bias correction;
      rms_scaled_adamw  Adam's step times max(RMS(parameter), 1e-3), matrix by matrix, as Adafactor does (nanoT5,
                        AdamWScale). Two differences from nanoT5: eps is added after the bias correction, as in Adam's
                        paper, and weight decay uses the parameter before the step;
      adafactor         T5X's settings: no momentum, second moments factored for matrices whose two largest dimensions
                        are at least 128, decay 1 - n^-0.8, update clipped to RMS 1, times max(RMS(parameter), 1e-3).
                        b1, b2 and eps are not used. T5X factors by axis name, which for a matrix is the same;
      lion              optax's (Chen et al. 2023): the sign of b1 * momentum + (1 - b1) * gradient, momentum of decay
                        b2; eps is not used. Its authors take a rate 3 to 10 times below AdamW's, and a weight decay as
                        much above it;
      muon              the kernels of layers: Nesterov momentum of 0.95, made orthogonal by five Newton-Schulz steps
                        (Jordan 2024), times 0.2 * sqrt(larger dimension), so that the step's RMS is about Adam's 0.2
                        and one learning rate and weight decay serve both groups (Moonlight, Liu et al. 2025). Every
                        other parameter: adamw, with b1, b2 and eps. optax.contrib.muon would take embeddings, position
                        tables and the output head too, and stacked layers not at all. Each of query, key, value and
                        output is one matrix, all heads together. optax corrects the momentum's bias, Jordan does not;

    then weight decay is added to the parameters whose path matches none of `no_decay` (re.search), and all of it is
    multiplied by the learning rate: the decay of one update is rate * weight_decay * parameter, unscaled by any RMS.

    In a leaf that stacks layers (`per_matrix`) each layer's matrix is scaled, factored, clipped and made orthogonal on
    its own. Every array of the state has a path that ends in its parameter's path; counters end in `count`, Muon's
    three coefficients in `ns_coeffs`.

    Raises ConfigError for a field out of range.
    """
    _check(config)
    scale_by_parameter = optax.scale_by_param_block_rms(MIN_PARAMETER_RMS)
    if config.name == "adafactor":
        direction = per_matrix(
            optax.chain(
                optax.scale_by_factored_rms(min_dim_size_to_factor=128, decay_rate=0.8, epsilon=1e-30),
                optax.clip_by_block_rms(1.0),
                scale_by_parameter,
            )
        )
    elif config.name == "lion":
        direction = optax.scale_by_lion(config.b1, config.b2)
    else:
        direction = optax.scale_by_adam(config.b1, config.b2, config.eps)
        if config.name == "rms_scaled_adamw":
            direction = optax.chain(direction, per_matrix(scale_by_parameter))
        elif config.name == "muon":
            direction = optax.partition({"hidden": _orthogonal_momentum(), "other": direction}, _muon_labels)
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        direction,
        optax.add_decayed_weights(config.weight_decay, mask=lambda tree: decay_mask(tree, config.no_decay)),
        optax.scale_by_learning_rate(make_schedule(config, steps)),
    )


def _muon_labels(tree):
    """What Muon is for, the matrices of layers, is "hidden". Whatever else a model has, or comes to have, is not."""

    def label(path, _):
        name = leaf_name(path)
        return "hidden" if stacks_layers(name) and name.endswith("/kernel") else "other"

    return jax.tree_util.tree_map_with_path(label, tree)


def _orthogonal_momentum() -> optax.GradientTransformation:
    """Muon's direction for leaves [..., rows, columns], the leading axes apart from one another, of RMS 0.2."""

    def dimensions(tree):  # of each leaf; called with the updates, whose structure a partition has thinned out
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), tree)

    return optax.chain(
        optax.contrib.scale_by_muon(beta=0.95, ns_steps=5, nesterov=True, weight_dimension_numbers=dimensions),
        optax.stateless_with_tree_map(lambda update, _: MUON_RMS * max(update.shape[-2:]) ** 0.5 * update),
    )


def per_matrix(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `transform` to each layer of the leaves that stack layers, and to every other leaf as it is.

    A leaf whose path contains `/layers/` is [N, ...], one slice a layer, and the transform is mapped over N; its state
    has the same leading axis. Transforms that look at a whole leaf (its RMS, its shape) need this to mean the same with
    scanned layers as without.
    """

    def partition(tree):
        depths = jax.tree_util.tree_map_with_path(
            lambda path, leaf: f"layers_{leaf.shape[0]}" if stacks_layers(leaf_name(path)) else "unstacked", tree
        )
        # Stacks of different depths cannot share one vmap.
        transforms = {
            label: transform if label == "unstacked" else _over_layers(transform) for label in jax.tree.leaves(depths)
        }
        return optax.partition(transforms, depths)

    return optax.GradientTransformation(
        lambda params: partition(params).init(params),
        lambda updates, state, params=None: partition(updates).update(updates, state, params),
    )


def _over_layers(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))


def decay_mask(tree, no_decay: tuple[str, ...]):
    """A tree of bools like `tree`: True where the leaf's path matches none of the regular expressions."""
    patterns = [re.compile(pattern) for pattern in no_decay]
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(pattern.search(leaf_name(path)) for pattern in patterns), tree
    )


def _check(config: OptimizerConfig) -> None:
    for field in ("b1", "b2"):
        if not 0 <= getattr(config, field) < 1:
            raise ConfigError(f"config.optimizer.{field}={getattr(config, field)} must be in [0, 1)")
    if not 0 < config.eps < float("inf"):
        raise ConfigError(f"config.optimizer.eps={config.eps} must be above 0")
    for field in ("weight_decay", "clip_norm"):
        if not 0 <= getattr(config, field) < float("inf"):
            raise ConfigError(f"config.optimizer.{field}={getattr(config, field)} must not be negative; 0 is off")
    for pattern in config.no_decay:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"config.optimizer.no_decay={config.no_decay!r}: {pattern!r} is not a regular expression: {error}"
            ) from error
