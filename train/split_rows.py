"""Functions that each device, or each part of the mesh axis "data", runs on its own rows, with sums over the devices.

Their gradients are added on a device first, over microbatches or chunks, and then over the devices, once.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from models.placement import part_of_rows
from train.sharding import row_axes


def split_rows(function: Callable[..., Any], *, mesh: Mesh) -> Callable[..., Any]:
    """Returns `function`(params, loss scale, batch, key) -> sums, run on each part of the rows that "data" makes.

    Within `function` the axis "data" is manual (jax.shard_map): nothing is added over it but by jax.lax.psum, so that
    gradients of several microbatches, or of several chunks of a loss, are added on each device first. The other axes
    remain the compiler's. The sums that `function` returns must be the same in all parts.
    """

    def of_part(*arguments: Any) -> Any:
        with part_of_rows(lambda rows: jax.lax.axis_index("data") * rows):
            return function(*arguments)

    return jax.shard_map(
        of_part,
        mesh=mesh,
        in_specs=(P(), P(), P("data"), P()),
        out_specs=P(),
        axis_names={"data"},
        check_vma=False,  # with it, JAX would add the gradients of replicated parameters in every microbatch
    )


def by_rows(function: Callable[..., tuple[Any, Any]], *, mesh: Mesh) -> Callable[..., tuple[Any, Any]]:
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

        partitioned = jax.shard_map(
            of_part,
            mesh=context,
            in_specs=(P(), P(axes)),
            out_specs=(P(), P(axes)),
            axis_names=set(axes),
            check_vma=False,
        )
        return partitioned(parameters, rows)

    return run


def can_split_rows(mesh: Mesh) -> bool:
    """Returns whether `split_rows` has parts to make and the compiler can partition the rest of the program.

    If "fsdp" and "tensor" both split the output table, XLA's partitioner (jax 0.10.2) ends the process at a gather from
    the table in a program with a manual axis.
    """
    sizes = mesh.shape
    return sizes["data"] > 1 and 1 in (sizes["fsdp"], sizes["tensor"])
