"""Initializes a Flax module's parameters as a nested dict, and binds such a dict to the module.

Modules are read in NNX's graph mode, whatever flax.config's nnx_graph_mode is: a Transformer whose stacks share their
layers (model.share_stacks) has modules with two parents, which the tree mode refuses.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from flax import nnx
from jax import Array

Params = dict[str, Any]  # nested dict of arrays
Module = TypeVar("Module", bound=nnx.Module)


def init_module(module: Callable[..., Module], *args: Any, key: Array) -> Params:
    """Returns float32 parameters of `module(*args, rngs=...)`, drawn from `key`.

    Under `jax.eval_shape`, with everything but `key` bound, returns only shapes and allocates nothing.
    """
    return nnx.to_pure_dict(nnx.state(module(*args, rngs=nnx.Rngs(key)), nnx.Param, graph=True))


def bind_module(module: Callable[..., Module], *args: Any, params: Params) -> Module:
    """Returns `module(*args, rngs=...)` with the parameters `params`. `args` must be hashable. Free inside jit."""
    return nnx.merge(_graphdef(module, *args), params)


@functools.cache
def _graphdef(module: Callable[..., Module], *args: Any) -> nnx.GraphDef[Module]:
    """Returns the module's structure without parameters. Allocates nothing."""
    return nnx.graphdef(nnx.eval_shape(lambda: module(*args, rngs=nnx.Rngs(0)), graph=True), graph=True)
