"""Optimizers: AdamW and those that scale its step matrix by matrix, Adafactor, Lion and Muon, composed of optax's."""

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from contract.errors import ConfigError
from experiment.config import OptimizerConfig
from experiment.schedules import make_schedule
from models.complete_p import factors
from models.config import ModelConfig
from models.parameters import leaf_name, stacks_layers

MUON_RMS = 0.2  # RMS of Muon's step before the learning rate, about that of Adam's
MIN_PARAMETER_RMS = 1e-3  # lower bound of the RMS that scales a matrix's step: a matrix of zeros can still change


def make_optimizer(config: OptimizerConfig, steps: int, model: ModelConfig) -> optax.GradientTransformation:
    """Returns the optimizer of `config` for a run of `steps` updates.

    model: whose parameters are updated, for model.parameterization.

    Parameters, gradients and updates are trees of float32 arrays. An update has four parts:

    1. Gradients are clipped to a global norm of `clip_norm`; 0 does not clip. With CompleteP the norm is that of the
       paper's parameters (models/complete_p.py).
    2. A step is computed from them, by one of
      adamw             Adam with bias correction, from optax.
      rms_scaled_adamw  Adam's step times max(RMS(parameter), 1e-3), separately for each matrix, as in Adafactor
                        (nanoT5's AdamWScale). Two differences from nanoT5: eps is added after the bias correction, as
                        in Adam's paper, and weight decay uses the parameter before the step.
      adafactor         T5X's settings: no momentum; second moments factored for matrices whose two largest dimensions
                        are 128 or more; decay 1 - n^-0.8; update clipped to an RMS of 1, times max(RMS(parameter),
                        1e-3). b1, b2 and eps are not used. T5X selects the factored axes by name, which for
                        matrices gives the same axes.
      lion              Chen et al. (2023), from optax: the sign of b1 * momentum + (1 - b1) * gradient; the momentum
                        decays by b2; eps is not used. The authors use a learning rate that is 3 to 10 times lower than
                        AdamW's, and a weight decay that is higher by the same factor.
      muon              For the kernels of layers: Nesterov momentum of 0.95, made orthogonal by five Newton-Schulz
                        steps (Jordan 2024), times 0.2 * sqrt(larger dimension). The RMS of the step is then about 0.2,
                        as Adam's, so that one learning rate and one weight decay suit all parameters (Moonlight, Liu et
                        al. 2025). For all other parameters: adamw, with b1, b2 and eps. Query, key, value and output
                        are one matrix each, with all heads. Unlike Jordan's code, optax's corrects the bias of the
                        momentum. optax.contrib.muon itself is not used: it would also update embeddings, position
                        tables and the output head, and it would not update stacked layers.
      lamb              LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2): the sum of Adam's step and part 3, times
                        the norm of the parameter over the norm of the sum, separately for each matrix; 1 where one of
                        both is 0. As in the authors' code, parameters that match `no_decay` have Adam's step.
      stable_adamw      StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2), as in ModernBERT: the sum of
                        Adam's step and part 3, over max(1, RMS(gradient / sqrt(second moment))), separately for each
                        matrix. The second moment is bias-corrected, has this gradient, and is eps^2 or more.
    3. weight_decay * parameter is added, for parameters whose path matches none of `no_decay` (re.search). The decay is
       not scaled by any RMS, but for lamb and stable_adamw.
    4. The sum is multiplied by the learning rate (experiment.schedules.make_schedule).

    In a leaf that stacks layers (`per_matrix`), each layer's matrix is scaled, factored, clipped and made orthogonal
    separately. In the optimizer state, the path of an array ends in the path of its parameter. The exceptions are
    counters, which end in `count`, and Muon's three coefficients, which end in `ns_coeffs`.

    Raises ConfigError as `make_schedule` does, for a pattern of `no_decay` that is none, and for a parameterization of
    another optimizer.
    """
    for pattern in config.no_decay:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"optimizer.no_decay: {pattern!r} is not a regular expression: {error}") from error
    scale_by_parameter = optax.scale_by_param_block_rms(MIN_PARAMETER_RMS)
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    adam = optax.scale_by_adam(config.b1, config.b2, config.eps)
    decay = optax.add_decayed_weights(config.weight_decay, mask=lambda tree: decay_mask(tree, config.no_decay))
    if model.parameterization == "complete_p":
        clip, direction = _complete_p(config, clip, adam, model)
    elif config.name == "adamw":
        direction = adam
    elif config.name == "rms_scaled_adamw":
        direction = optax.chain(adam, per_matrix(scale_by_parameter))
    elif config.name == "muon":
        direction = optax.partition({"hidden": _orthogonal_momentum(), "other": adam}, _muon_labels)
    elif config.name == "adafactor":
        factored = optax.scale_by_factored_rms(min_dim_size_to_factor=128, decay_rate=0.8, epsilon=1e-30)
        direction = per_matrix(optax.chain(factored, optax.clip_by_block_rms(1.0), scale_by_parameter))
    elif config.name == "lion":
        direction = optax.scale_by_lion(config.b1, config.b2)
    else:
        direction, decay = _rescaled(config, optax.chain(adam, decay)), optax.identity()
    return optax.chain(clip, direction, decay, optax.scale_by_learning_rate(make_schedule(config, steps)))


def _rescaled(config: OptimizerConfig, step: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns LAMB or StableAdamW. step: a chain of Adam and weight decay, of which each matrix is rescaled."""
    if config.name == "lamb":
        by_norms = per_matrix(optax.scale_by_trust_ratio())
        return optax.chain(step, optax.masked(by_norms, lambda tree: decay_mask(tree, config.no_decay)))

    def update(gradients, state, params):
        steps, state = step.update(gradients, state, params)
        moments = optax.tree.bias_correction(state[0].nu, config.b2, state[0].count)

        def clipped(step, gradient, moment):
            return step / jnp.maximum(1, jnp.sqrt(jnp.mean(gradient**2 / jnp.maximum(moment, config.eps**2))))

        return jax.tree.map(clipped, steps, gradients, moments), state

    return per_matrix(optax.GradientTransformation(step.init, update))


def _complete_p(
    config: OptimizerConfig, clip: optax.GradientTransformation, adam: optax.GradientTransformation, model: ModelConfig
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Returns `clip` and `adam`, optax.scale_by_adam, with the `factors` of each parameter.

    The gradient of the paper's parameter w is m times that of the parameter m w here, and the norm that clips is that
    of the paper's. Adam's step of a gradient that is divided by f is that of the gradient with f times the eps. Raises
    ConfigError for the config of another optimizer.
    """
    if config.name != "adamw":
        raise ConfigError(f"model.parameterization='complete_p' needs optimizer.name='adamw', not {config.name!r}")

    def scaled(factor):
        return optax.stateless(
            lambda updates, _: jax.tree_util.tree_map_with_path(
                lambda path, leaf: leaf * factor(factors(model, leaf_name(path))), updates
            )
        )

    return (
        optax.chain(scaled(lambda each: each.multiplier), clip, scaled(lambda each: 1 / each.multiplier)),
        optax.chain(scaled(lambda each: 1 / each.eps), adam, scaled(lambda each: each.step)),
    )


def _muon_labels(tree):
    """Returns a label for each leaf: "hidden" for the matrices of layers, which Muon updates, and "other"."""

    def label(path, _):
        name = leaf_name(path)
        return "hidden" if stacks_layers(name) and name.endswith("/kernel") else "other"

    return jax.tree_util.tree_map_with_path(label, tree)


def _orthogonal_momentum() -> optax.GradientTransformation:
    """Returns Muon's step, of RMS 0.2, for leaves [..., rows, columns]; leading axes enumerate separate matrices."""

    # A function, because optax.partition passes only a part of the tree.
    def dimensions(tree):
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), tree)

    return optax.chain(
        optax.contrib.scale_by_muon(beta=0.95, ns_steps=5, nesterov=True, weight_dimension_numbers=dimensions),
        optax.stateless_with_tree_map(lambda update, _: MUON_RMS * max(update.shape[-2:]) ** 0.5 * update),
    )


def per_matrix(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns `transform` applied to each layer separately in leaves that stack layers, and to other leaves directly.

    A leaf whose path contains `/layers/` is [N, ...], one slice for each layer. The transform is mapped over N, and its
    state gets the same leading axis. Transforms that use the RMS or the shape of a leaf would otherwise give other
    updates for stacked layers than for separate layers.
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
    """Returns `transform` mapped over the first axis of every leaf."""
    return optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))


def decay_mask(tree, no_decay: Sequence[str]):
    """Returns a tree of bools like `tree`: True if the leaf's path matches none of the regular expressions."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(re.search(pattern, leaf_name(path)) for pattern in no_decay), tree
    )
