"""Names of the leaves of a tree, which the regular expressions of the decay mask and the sharding table match."""

from typing import Any

import jax


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
