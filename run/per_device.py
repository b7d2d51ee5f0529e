"""Functions that each device, or each part of a mesh axis, runs on its own rows (jax.shard_map).

Gradients are added on a device first, over microbatches or chunks, and then over the devices, once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models.placement import placed
from run.sharding import AXES, ROW_AXES


def per_part(function: Callable[..., Any], *, mesh: Mesh) -> Callable[..., Any]:
    """Returns `function`(params, loss scale, batch, key) -> sums, run on each part of the rows that "data" makes.

    Within `function` this axis is manual (jax.shard_map): nothing is added over it but by jax.lax.psum, so that
    gradients of several microbatches, or of several chunks of a loss, are added on each device first. The other axes
    remain the compiler's. The sums that `function` returns must be the same in all parts.
    """

    def of_part(*arguments: Any) -> Any:
        with placed(first_row=lambda count: jax.lax.axis_index("data") * count):
            return function(*arguments)

    return _shard_map(of_part, mesh, (P(), P(), P("data"), P()), P(), ("data",))


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
