"""Parameters as a nested dict: how they are drawn, bound to a Flax module, and named.

Modules are read in NNX's graph mode, whatever flax.config's nnx_graph_mode is: a Transformer whose stacks share their
layers (model.share_stacks) has modules with two parents, which the tree mode refuses.

Names of leaves, such as `encoder/layers/mlp/wi_0/kernel`, are what the regular expressions of the decay mask and of the
sharding table match.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
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


def leaf_name(path) -> str:
    """Returns a key path of jax.tree_util as a string, such as `encoder/layers/mlp/wi_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def stacks_layers(name: str) -> bool:
    """Returns whether the leaf `name` is [N, ...], one slice for each scanned layer."""
    return "/layers/" in name


def array_types(tree: Any) -> dict[str, str]:
    """Returns name -> dtype and shape of each leaf, such as `float32[128, 256]`."""
    return {
        leaf_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def array_difference(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Returns how two trees' `array_types` differ, as a part of a message; "" if they are equal."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if not names:
        return ""
    types = f"{names[0]} is {there.get(names[0], 'missing')} there and {here.get(names[0], 'missing')} here"
    return types + f", and {len(names) - 1} more arrays differ" * (len(names) > 1)
