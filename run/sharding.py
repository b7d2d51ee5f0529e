"""The device mesh, the sharding of each array of the training state, and functions that devices run on their own rows.

Models never name a mesh axis: the path of an array determines its sharding, by the ordered table RULES.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from contract.batch import Batch
from contract.errors import ConfigError
from experiment.config import MeshConfig
from models.parameters import leaf_name
from models.placement import placed

# "data" splits the rows of a batch; "fsdp" splits rows, and one dimension of each matrix; "tensor" splits the other
# dimension of each matrix: the one of attention heads, feed-forward units or the vocabulary.
AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")

# (regular expression for the end of a leaf's path, spec); the first match counts. The table covers parameters, Adam's
# moments, whose paths end in the path of the parameter, and the rest of the optimizer state. The file of a learner
# outside this repository appends the rows of its own parameters.
RULES: list[tuple[str, P]] = [
    # [] or [N]: counters
    (r"(^|/)count", P()),
    # [3]: the coefficients of Muon's polynomial
    (r"(^|/)ns_coeffs", P()),
    # [D], [F], [N, D], [N, F], ..., [1]: Adafactor's row and column means, and `v`, the full moments of small matrices
    (r"(^|/)v(_row|_col)?/.*", P()),
    # [V, D]
    (r"token_embedder/embedding", P("tensor", "fsdp")),
    # [D, V]
    (r"logits_dense/kernel", P("fsdp", "tensor")),
    # [L, D]
    (r"position_embedder/embedding", P(None, "fsdp")),
    # [2, D]
    (r"token_type_embedder/embedding", P(None, "fsdp")),
    # [E, D]: for embeddings narrower than the model; [K, E]
    (r"(input|offset)_projection/kernel", P("fsdp", "tensor")),
    # [D, D] or [D, E]
    (r"(prediction|discriminator)_head/dense/kernel", P("fsdp", "tensor")),
    # [2 * D, D] or [D, D]
    (r"latent_dynamics/dense_\d/kernel", P("fsdp", "tensor")),
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
    # [D], [N, D], [N, F], [V], ...: small
    (r"norm/scale", P()),
    (r"/bias", P()),
]


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh with axes AXES of `devices` (default: those of all processes), in the order of `order_devices`.

    Raises ConfigError if the product of the sizes is not the number of devices, for mesh.backend="pmap" in several
    processes, and if TPU slices do not divide mesh.data.
    """
    if config.backend == "pmap" and jax.process_count() > 1:
        # Each process has a state of its own, and Orbax writes only arrays that the processes share.
        raise ConfigError("mesh.backend='pmap' must be 'jit' for several processes: checkpoints need one state of all")
    shape = mesh_shape(config, jax.device_count() if devices is None else len(devices))
    ordered = order_devices(shape, jax.devices() if devices is None else devices)
    return Mesh(ordered, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def order_devices(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> np.ndarray:
    """Returns `devices`, [*AXES] of the sizes `shape`, so that the devices of an axis are near each other.

    An axis may get a part of an axis of a TPU's torus: (2, 32, 1) on 4 x 4 x 4 chips. Slices of TPUs, which only a data
    center network connects, are parts of "data", whose devices communicate once per step. Raises ConfigError if the
    number of slices does not divide the size of "data".
    """
    slices = len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"})
    data, *others = shape
    if slices <= 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    if data % slices:
        raise ConfigError(
            f"mesh.data={data} must be a multiple of {slices}, the number of TPU slices: set mesh.data={slices} and "
            "mesh.fsdp=-1 to shard the training state within a slice"
        )
    return mesh_utils.create_hybrid_device_mesh(
        (data // slices, *others), (slices, 1, 1), devices, allow_split_physical_axes=True
    )


def make_reading_mesh(tree: Any, *, batch_size: int | None = None) -> Mesh:
    """Returns a mesh of this machine's devices for a model that is evaluated or sampled, whatever its run trained on.

    "fsdp" is the largest size that divides the sharded dimensions of all arrays, so that several devices share the
    parameters, and "data" takes the rest of the devices.

    Args:
      tree: arrays or jax.ShapeDtypeStruct.
      batch_size: rows of a batch. The mesh has as many devices as divide them. By default it has all devices.
    """
    count = next(n for n in range(jax.device_count(), 0, -1) if (batch_size or n) % n == 0)
    fsdp = next((n for n in range(count, 1, -1) if count % n == 0 and _divides(tree, n)), 1)
    return make_mesh(MeshConfig("jit", data=count // fsdp, fsdp=fsdp, tensor=1), jax.devices()[:count])


def mesh_shape(config: MeshConfig, count: int) -> tuple[int, ...]:
    """Returns the sizes of AXES for `count` devices. An axis of size -1 takes the devices that the others leave.

    Raises ConfigError if the product of the sizes is not `count`.
    """
    sizes = [getattr(config, name) for name in AXES]
    given = ", ".join(f"mesh.{name}={size}" for name, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1:
        raise ConfigError(f"{given}: only one of them may be -1, which takes the devices that the others leave")
    if -1 in sizes:
        others = -math.prod(sizes)
        sizes[sizes.index(-1)] = max(1, count // others)
    if math.prod(sizes) != count:
        raise ConfigError(f"{given}: the product must be the number of devices, {count}")
    return tuple(sizes)


def shardings(mesh: Mesh | AbstractMesh, tree: Any) -> Any:
    """Returns a NamedSharding for each leaf of `tree`. Leaves have a shape: arrays or jax.ShapeDtypeStruct.

    Leaves without dimensions are replicated. Raises ConfigError for a path that no rule matches, and if a dimension is
    not a multiple of the size of its mesh axis; such an array is never replicated silently.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(leaf_name(path), tuple(leaf.shape), mesh)), tree
    )


def put_params(params: Any, mesh: Mesh) -> Any:
    """Returns `params`, host arrays that are the same in all processes, on the devices of `mesh`."""

    def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, params, shardings(mesh, params))


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Returns the sharding of a batch's arrays, [B, ...]: rows are split over "data" and "fsdp"."""
    return NamedSharding(mesh, P(ROW_AXES))


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Returns the rows of a batch that this process's devices hold, ascending, int64 [local rows].

    This process reads these rows, in this order. The rows need not be adjacent, because a mesh follows a TPU's torus
    and not its hosts. Processes that differ only along "tensor" hold the same rows.

    Raises ConfigError if `batch_size`, the rows of the global batch, cannot be divided among the devices.
    """
    parts = sharding.mesh.shape["data"] * sharding.mesh.shape["fsdp"]
    if batch_size % parts:
        raise ConfigError(f"train.batch_size={batch_size} must be a multiple of mesh.data * mesh.fsdp = {parts}")
    held = np.zeros(batch_size, bool)
    for (rows,) in sharding.addressable_devices_indices_map((batch_size,)).values():
        held[rows] = True
    return np.flatnonzero(held)


def to_global(batch: Batch, sharding: NamedSharding) -> dict[str, jax.Array]:
    """Returns the global batch on the devices, [B, ...]. batch: this process's rows, in the order of `local_rows`."""
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


def _divides(tree: Any, fsdp: int) -> bool:
    """Returns whether `fsdp` devices can share each array of `tree`."""
    try:
        shardings(AbstractMesh((1, fsdp, 1), AXES), tree)
    except ConfigError:
        return False
    return True


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
    """Returns the spec of the leaf `name` (models.parameters.leaf_name). Raises as `shardings`."""
    if not shape:
        return P()
    spec = next((spec for pattern, spec in RULES if re.search(f"(?:{pattern})$", name)), None)
    if spec is None:
        raise ConfigError(f"{name}, shape {list(shape)}, has no row in run.sharding.RULES: docs/adding_a_learner.md")
    if len(spec) > len(shape):
        raise ValueError(f"{name} has shape {list(shape)}, but its rule in run/sharding.py is {spec}")
    for dimension, axis in enumerate(spec):
        if axis is not None and shape[dimension] % mesh.shape[axis]:
            raise ConfigError(
                f"mesh.{axis}={mesh.shape[axis]} does not divide dimension {dimension} of {name}, shape {list(shape)}: "
                f"{shape[dimension]} must be a multiple of {mesh.shape[axis]}"
            )
    return spec


# Functions that each device, or each part of a mesh axis, runs on its own rows (jax.shard_map). Gradients are added on
# a device first, over microbatches or chunks, and then over the devices, once.


def per_part(function: Callable[..., Any], *, mesh: Mesh) -> Callable[..., Any]:
    """Returns `function`(parameters, loss scale, batch, key) -> sums, run on each part of the rows that "data" makes.

    Within `function` this axis is manual (jax.shard_map): nothing is added over it but by jax.lax.psum, so that
    gradients of several microbatches, or of several chunks of a loss, are added on each device first. The other axes
    remain the compiler's. The sums that `function` returns must be the same in all parts.
    """

    return _shard_map(of_part(function), mesh, (P(), P(), P("data"), P()), P(), ("data",))


def of_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` for one part of the rows along the axis "data" of jax.shard_map or jax.pmap.

    Random draws are those of the rows' places in the whole batch.
    """

    def run(*arguments: Any) -> Any:
        with placed(first_row=lambda count: jax.lax.axis_index("data") * count):
            return function(*arguments)

    return run


def per_device(function: Callable[..., tuple[Any, Any]], *, mesh: Mesh) -> Callable[..., tuple[Any, Any]]:
    """Returns `function`(parameters, arrays [B, ...]) -> (sums, arrays [B, ...]), run by each device on its own rows.

    Each device gathers the parameters over the axes that split rows, and the sums are added over these axes once. The
    axis "tensor" remains the compiler's.
    """

    def run(parameters: Any, rows: Any) -> tuple[Any, Any]:
        context, all_axes = row_axes(mesh)
        axes = tuple(axis for axis in all_axes if context.shape[axis] > 1)
        if not axes:
            return function(parameters, rows)

        def of_part(parameters: Any, rows: Any) -> tuple[Any, Any]:
            sums, of_rows = function(parameters, rows)
            return jax.lax.psum(sums, axes), of_rows

        return _shard_map(of_part, context, (P(), P(axes)), (P(), P(axes)), axes)(parameters, rows)

    return run


def over_devices(
    function: Callable[..., jax.Array], arguments: Sequence[str], result: str, *, mesh: Mesh
) -> Callable[..., jax.Array]:
    """Returns `function` under jax.shard_map: takes and returns global arrays, and each device computes its part.

    For kernels that the compiler cannot partition. Rows (B) are split like the rows of a batch. Heads (H and G) are
    split over "tensor" if its size divides the number of heads of every argument, and are replicated otherwise.

    Args:
      function: takes arrays and returns one array.
      arguments: for each argument its dimensions as letters, such as "BHQK".
      result: the dimensions of the result.
      mesh: the devices.
    """
    if mesh.size == 1:
        return function

    def run(*arrays: jax.Array) -> jax.Array:
        dimensions = [
            pair for names, x in zip(arguments, arrays, strict=True) for pair in zip(names, x.shape, strict=True)
        ]
        heads = all(size % mesh.shape["tensor"] == 0 for name, size in dimensions if name in "HG")
        context, rows = row_axes(mesh)
        axes = {"B": rows, "H": "tensor" if heads else None, "G": "tensor" if heads else None}
        *in_specs, out_specs = (P(*(axes.get(name) for name in names)) for names in (*arguments, result))
        manual = set(AXES) - set(jax.sharding.get_abstract_mesh().manual_axes)  # no axis is the compiler's
        return _shard_map(function, context, tuple(in_specs), out_specs, manual)(*arrays)

    return run


def splits_rows(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether `per_part` can divide a train step on `mesh`.

    Not if "fsdp" and "tensor" both split the output table: XLA's partitioner (jax 0.10.2) ends the process at a gather
    from the table in a program with a manual axis.
    """
    return mesh.shape["data"] > 1 and 1 in (mesh.shape["fsdp"], mesh.shape["tensor"])


def row_axes(mesh: Mesh | AbstractMesh) -> tuple[Mesh | AbstractMesh, tuple[str, ...]]:
    """Returns the mesh of the current context, by default `mesh`, and its axes that split the rows.

    Within `per_part` these are the mesh and the axes that are not manual.
    """
    context = jax.sharding.get_abstract_mesh()
    manual = context.manual_axes
    return context if manual else mesh, tuple(axis for axis in ROW_AXES if axis not in manual)


def constrain_rows(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Returns `x`, [B, ...], with rows split as in `sharding`; the compiler shards the other dimensions."""
    mesh, axes = row_axes(sharding.mesh)
    rest = [P.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(axes, *rest)))


def _shard_map(function: Callable, mesh: Mesh | AbstractMesh, in_specs: Any, out_specs: Any, axes: Any) -> Callable:
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(axes),
        check_vma=False,  # with it, JAX would add the gradients of replicated parameters in every microbatch
    )
