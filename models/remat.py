"""Rematerialization: which results of a layer are saved for the backward pass, and which are recomputed."""

from collections.abc import Callable
from typing import Any

import jax

from models.config import ModelConfig

_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
# The gather of keys and values (models.placement.whole_rows), and what kernels make of the result before they save it.
_GATHER = ("all_gather", "pad", "optimization_barrier")


def rematerialized(config: ModelConfig, body: Callable) -> Callable:
    """Returns `body`, the function of a `jax.lax.scan` over layers, under the policy `config.remat`.

      none: everything that the backward pass needs is saved;
      dots: products with kernels are saved; attention scores and elementwise functions are recomputed;
      full: only a layer's inputs are saved, and its forward pass runs twice;
      auto: as none. It is for models that are not trained; a train step has one of the others.

    Values and gradients are the same. `prevent_cse` is not needed inside a scan.
    """
    if config.remat in ("auto", "none"):
        return body
    return jax.checkpoint(body, policy=_POLICIES[config.remat], prevent_cse=False)


def gathering_again(attend: Callable) -> Callable:
    """Returns `attend`, which gathers keys and values and attends, with another gather in the backward pass.

    So a device saves the keys and values of its own positions, and not those of the devices that share its rows.
    """

    def is_saved(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name not in _GATHER

    return jax.checkpoint(attend, policy=is_saved, prevent_cse=False)
