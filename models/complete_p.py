"""CompleteP: initial parameters and steps with which one learning rate serves all widths and depths of a model.

Dey et al. (2025, arXiv 2505.01618), table 1 with alpha = 1. Its rules of the width are those of muP (Yang et al. 2022,
arXiv 2203.03466). The papers' multipliers of residual branches (1 / depth ratio) and of logits (1 / width ratio)
are not in the forward pass: a factor m of a product of Adam's parameter is the same as m times its initial values, m
times its step and 1 / m times its eps, if the norm that clips gradients has m times the parameter's gradient. So a
model has the same function, export and plan as any other.

The inputs of all kernels of layers are assumed to grow as d_model does: num_heads and d_ff by its ratio, with the
head_dim of the base. The config does not have the base's, so models.config refuses only a num_heads that no base has.
"""

import re
from typing import NamedTuple

from models.config import ModelConfig
from models.initializers import depth_ratio, width_ratio

_BRANCH = re.compile("/layers/.*(attention|mlp)")  # not the norms and the projection between heads (multi_token.py)
_BRANCH_OUTPUTS = ("attention/out/", "mlp/wo/")  # what is added to the residual stream
# What gives logits, of tokens, of classes or of replaced tokens (models/initializers.py, `output_table`).
_OUTPUTS = ("logits_dense/", "prediction_head/bias", "classes_dense/", "discriminator_head/logits/")


class Factors(NamedTuple):
    """The factors of Adam's step, after its normalization, and of its eps for one parameter."""

    step: float
    eps: float
    multiplier: float  # the paper's in the forward pass, which is in the parameter here


def factors(config: ModelConfig, name: str) -> Factors:
    """Returns the factors for the parameter `name`, 1 in a model of the base's width and depth.

    The factors of initial values are in models/initializers.py, by the same rules. The weight decay of a step has no
    factor, as in table 1, where the factors of the learning rate and of the decay cancel.
    """
    of_stack = config.of_decoder if "decoder/" in name else config
    width, depth = width_ratio(config), depth_ratio(of_stack)
    has_width_inputs = name.endswith("/kernel") and "offset_projection/" not in name  # whose inputs are head_dim
    step = 1 / width if has_width_inputs else 1.0
    if any(part in name for part in _OUTPUTS):
        return Factors(step, 1.0, step)  # a bias has no multiplier
    if not _BRANCH.search(name):
        return Factors(step, 1 / width, 1.0)
    if any(part in name for part in _BRANCH_OUTPUTS):
        return Factors(step / depth, 1 / width, 1 / depth)
    return Factors(step, 1 / width / depth, 1.0)
