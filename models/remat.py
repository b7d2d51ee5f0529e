"""What the backward pass of a layer finds in memory, and what it works out again."""

from collections.abc import Callable

import jax

from models.config import ModelConfig

_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def rematerialized(config: ModelConfig, body: Callable) -> Callable:
    """`body`, a function of `jax.lax.scan` over layers, as `config.remat` has it:

      none  everything that the backward pass needs is kept;
      dots  the results of products with kernels are, and attention's scores and elementwise functions made again;
      full  only what goes into a layer is, and its forward pass runs twice.

    Values and gradients are the same. Inside a scan CSE cannot undo this, so nothing is done to prevent it.
    """
    if config.remat == "none":
        return body
    return jax.checkpoint(body, policy=_POLICIES[config.remat], prevent_cse=False)
