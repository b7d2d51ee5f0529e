"""Functions that each device, or each part of a mesh axis, runs on its part of the rows, with sums over the devices.

Their gradients are added on a device first, over microbatches or chunks, and then over the devices, once. The axis
"data" divides the rows of a batch, and "context" divides the positions of each row.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from models.placement import PositionParts, part_of_positions, part_of_rows
from run.sharding import row_axes

Batch = Mapping[str, jax.Array]


def split_rows(function: Callable[..., Any], *, mesh: Mesh, axes: Sequence[str]) -> Callable[..., Any]:
    """Returns `function`(params, loss scale, batch, key) -> sums, run on each part of the rows that `axes` make.

    Within `function` these axes are manual (jax.shard_map): nothing is added over them but by jax.lax.psum, so that
    gradients of several microbatches, or of several chunks of a loss, are added on each device first. The other axes
    remain the compiler's. The sums that `function` returns must be the same in all parts.

    axes: "data", "context" or both. Along "context", `function` is traced for a part of the positions
      (models.placement.part_of_positions) of the arrays [B, L]. Arrays [B] are the same in all parts of a row.
    """
    rows = "data" if "data" in axes else None
    positions = ("context",) if "context" in axes else ()

    def of_part(*arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            if rows is not None:
                stack.enter_context(part_of_rows(lambda count: jax.lax.axis_index("data") * count))
            if positions:
                stack.enter_context(part_of_positions(_parts(mesh.shape["context"])))
            return function(*arguments)

    def run(params: Any, loss_scale: Any, batch: Batch, key: jax.Array) -> Any:
        batch = dict(batch)
        of_batch = {name: P(rows, *positions) if array.ndim > 1 else P(rows) for name, array in batch.items()}
        partitioned = jax.shard_map(
            of_part,
            mesh=mesh,
            in_specs=(P(), P(), of_batch, P()),
            out_specs=P(),
            axis_names=set(axes),
            check_vma=False,  # with it, JAX would add the gradients of replicated parameters in every microbatch
        )
        return partitioned(params, loss_scale, batch, key)

    return run


def _parts(count: int) -> PositionParts:
    """Returns the parts of positions that the manual axis "context" of this size makes."""

    return PositionParts(count, lambda: jax.lax.axis_index("context"), _gathered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gathered(x: jax.Array, axis: int) -> jax.Array:
    """Returns `x` with the parts of all devices of "context" along `axis`. Its gradients are added in float32."""
    return jax.lax.all_gather(x, "context", axis=axis, tiled=True)


def _gathered_forward(x: jax.Array, axis: int) -> tuple[jax.Array, None]:
    return _gathered(x, axis), None


def _gathered_backward(axis: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    summed = jax.lax.psum_scatter(gradient.astype(jnp.float32), "context", scatter_dimension=axis, tiled=True)
    return (summed.astype(gradient.dtype),)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def split_positions(step: Callable[[Any, Batch], Any], *, mesh: Mesh) -> Callable[[Any, Batch], Any]:
    """Returns `step`(params, batch) -> sums, run on each part of the positions and added, if "context" makes parts."""
    if mesh.shape["context"] == 1:
        return step

    def of_part(params: Any, _: None, batch: Batch, __: None) -> Any:
        return jax.lax.psum(step(params, batch), "context")

    of_parts = split_rows(of_part, mesh=mesh, axes=("context",))
    return lambda params, batch: of_parts(params, None, batch, None)


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


def split_axes(mesh: Mesh | AbstractMesh, *, rows_are_independent: bool) -> tuple[str, ...]:
    """Returns the axes of `split_rows` for a train step on `mesh`.

    "context", if it has several devices. "data" too, unless the compiler cannot partition the rest of the program: if
    "fsdp" and "tensor" both split the output table, XLA's partitioner (jax 0.10.2) ends the process at a gather from
    the table in a program with a manual axis.
    """
    sizes = mesh.shape
    can_split_data = sizes["data"] > 1 and 1 in (sizes["fsdp"], sizes["tensor"]) and rows_are_independent
    return ("data",) * can_split_data + ("context",) * (sizes["context"] > 1)
