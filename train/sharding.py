"""The device mesh, where each array of the training state lives on it, and which rows of a batch a process reads.

Models never name a mesh axis: arrays get their place from their path, by the one ordered table below.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from contract.batch import Batch
from contract.errors import ConfigError
from train.config import MeshConfig
from train.paths import leaf_name

AXES = ("data", "fsdp", "tensor")  # rows only; rows and one dimension of each matrix; the other dimension

# (regular expression that ends where the leaf's path does, spec), the first that matches counts. For parameters, for
# Adam's moments, whose paths end in their parameter's, and for the rest of the optimizer state. The dimension of a
# matrix that is split over "tensor" is the one that attention heads, feed-forward units or vocabulary run along.
RULES: tuple[tuple[str, P], ...] = (
    # [] or [N]: counters
    (r"(^|/)count", P()),
    # [3]: the coefficients of Muon's polynomial
    (r"(^|/)ns_coeffs", P()),
    # [D], [F], [N, D], [N, F], ..., [1]: Adafactor's row and column means, and `v`, whole only where a matrix is small
    (r"(^|/)v(_row|_col)?/.*", P()),
    # [V, D]
    (r"token_embedder/embedding", P("tensor", "fsdp")),
    # [D, V]
    (r"logits_dense/kernel", P("fsdp", "tensor")),
    # [L, D]
    (r"position_embedder/embedding", P(None, "fsdp")),
    # [2, D]
    (r"token_type_embedder/embedding", P(None, "fsdp")),
    # [E, D]: from narrower tables
    (r"input_projection/kernel", P("fsdp", "tensor")),
    # [D, D] or [D, E]
    (r"(prediction|discriminator)_head/dense/kernel", P("fsdp", "tensor")),
    # [D, D]
    (r"pooler/dense/kernel", P("fsdp", "tensor")),
    # [D, C]
    (r"classes_dense/kernel", P("fsdp", None)),
    # [D, 1]
    (r"discriminator_head/logits/kernel", P()),
    # [H, 32]
    (r"relative_position_bias/embedding", P()),
    # [N, D, H*K]
    (r"/layers/\w*attention/(query|key|value)/kernel", P(None, "fsdp", "tensor")),
    # [N, H*K, D]
    (r"/layers/\w*attention/out/kernel", P(None, "tensor", "fsdp")),
    # [N, D, F]
    (r"/layers/mlp/wi(_[01])?/kernel", P(None, "fsdp", "tensor")),
    # [N, F, D]
    (r"/layers/mlp/wo/kernel", P(None, "tensor", "fsdp")),
    # [N, 2 * D, D]
    (r"/layers/projection/kernel", P(None, "fsdp", "tensor")),
    # [D], [N, D], [N, F], [V], ...: too small to be worth splitting
    (r"norm/scale", P()),
    (r"/bias", P()),
)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """`devices` (default: all of all processes) as a mesh with axes ("data", "fsdp", "tensor"), in an order that suits
    the network. Raises ConfigError where the sizes of `mesh_shape` do not multiply to their number."""
    shape = mesh_shape(config, jax.device_count() if devices is None else len(devices))
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def mesh_shape(config: MeshConfig, count: int) -> tuple[int, int, int]:
    """The sizes of the axes for `count` devices; the axis of size -1, if there is one, takes those that others leave.

    Raises ConfigError where they do not multiply to `count`.
    """
    sizes = [getattr(config, name) for name in AXES]
    for name, size in zip(AXES, sizes, strict=True):
        if size < 1 and size != -1:
            raise ConfigError(f"config.mesh.{name}={size} must be at least 1 or -1 (the rest)")
    expected = ", ".join(f"config.mesh.{name}={size}" for name, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1:
        raise ConfigError(f"{expected}: only one of them may be -1, which takes all devices that the others leave")
    if -1 in sizes:
        others = -math.prod(sizes)
        sizes[sizes.index(-1)] = max(1, count // others)
    if math.prod(sizes) != count:
        raise ConfigError(f"{expected}: the product must be the number of devices, {count}")
    return tuple(sizes)


def shardings(mesh: Mesh | AbstractMesh, tree: Any) -> Any:
    """A tree of NamedSharding like `tree`, whose leaves have a shape (arrays or jax.ShapeDtypeStruct).

    Leaves without dimensions are on every device. Raises ValueError for a path that no rule matches, and ConfigError
    where a dimension does not divide by the mesh axis that should split it: never a silent replication.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(leaf_name(path), tuple(leaf.shape), mesh)), tree
    )


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Of a batch's arrays, [B, ...]: rows split over "data" and "fsdp"."""
    return NamedSharding(mesh, P(("data", "fsdp")))


def keep_rows_apart(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """`x`, [B, ...], with its rows where the batch's are; the other dimensions stay as the compiler likes."""
    rest = [P.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, P(sharding.spec[0], *rest)))


def over_devices(
    function: Callable[..., jax.Array], arguments: Sequence[str], result: str, *, mesh: Mesh
) -> Callable[..., jax.Array]:
    """`function` of arrays whose dimensions are named by letters, such as "BHQK", run by each device on its own part.

    For kernels that the compiler cannot split itself. Rows, B, are split as the batch's are; heads, H and G, over
    "tensor" where all arguments' divide, and are whole on each of its devices where they do not.
    """
    if mesh.size == 1:
        return function

    def run(*arrays: jax.Array) -> jax.Array:
        sizes = [size for names, array in zip(arguments, arrays, strict=True) for size in _heads(names, array.shape)]
        heads = "tensor" if all(size % mesh.shape["tensor"] == 0 for size in sizes) else None
        axes = {"B": ("data", "fsdp"), "H": heads, "G": heads}
        *places, place = (P(*(axes.get(name) for name in names)) for names in (*arguments, result))
        return jax.shard_map(function, mesh=mesh, in_specs=tuple(places), out_specs=place, check_vma=False)(*arrays)

    return run


def _heads(names: str, shape: tuple[int, ...]) -> list[int]:
    return [size for name, size in zip(names, shape, strict=True) if name in "HG"]


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """int64 [rows here], ascending: the rows of a batch of `batch_size` rows that this process's devices hold.

    They are what this process must read, in this order. They need not be neighbours: a mesh follows a TPU's torus, not
    its hosts. Two processes that split only "tensor" between them hold the same rows. Raises ConfigError where the rows
    do not divide.
    """
    parts = sharding.mesh.shape["data"] * sharding.mesh.shape["fsdp"]
    if batch_size % parts:
        raise ConfigError(
            f"config.train.batch_size={batch_size} must be a multiple of config.mesh.data * config.mesh.fsdp = {parts}"
        )
    held = np.zeros(batch_size, bool)
    for (rows,) in sharding.addressable_devices_indices_map((batch_size,)).values():
        held[rows] = True
    return np.flatnonzero(held)


def to_global(batch: Batch, sharding: NamedSharding) -> dict[str, jax.Array]:
    """The global batch on the devices, [B, ...]; `batch` holds this process's `local_rows` of it, in order."""
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
    if not shape:
        return P()
    spec = next((spec for pattern, spec in RULES if re.search(f"(?:{pattern})$", name)), None)
    if spec is None:
        raise ValueError(f"no rule places {name}, shape {list(shape)}: add a row to RULES in train/sharding.py")
    if len(spec) > len(shape):
        raise ValueError(f"{name} has shape {list(shape)}, but its rule in train/sharding.py is {spec}")
    for dimension, axis in enumerate(spec):
        if axis is not None and shape[dimension] % mesh.shape[axis]:
            raise ConfigError(
                f"config.mesh.{axis}={mesh.shape[axis]} does not divide dimension {dimension} of {name}, "
                f"shape {list(shape)}: {shape[dimension]} / {mesh.shape[axis]} is not whole"
            )
    return spec
