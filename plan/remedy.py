"""Finds a change of a config that makes a run fit: changes one field after another until the estimate fits."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from cluster.devices import GIB
from contract.errors import ConfigError
from experiment.config import MeshConfig
from plan.estimate import Estimate
from plan.topology import Topology, with_pool
from run.sharding import AXES, mesh_shape

# A compiled program can need less memory than the estimate from shapes, which was at most 1.41 times what XLA needed in
# the cases that were compared. A change is not compiled if its estimate exceeds the memory by more than this factor.
_COMPILED_LIMIT = 1.5
# The largest share of a GPU's memory that a pool can safely take: the CUDA context and libraries need the rest.
_LARGEST_POOL = 0.92


def find_remedy(config: dict[str, Any], topology: Topology, estimate_of: Callable[[dict, Topology], Estimate]) -> str:
    """Returns the first sufficient change with its memory, or the smallest memory if no change is sufficient.

    The changes, from the one that costs the least time: a larger memory pool on a GPU (an environment variable);
    recompute attention probabilities, split the state over the devices, use smaller microbatches, recompute whole
    layers, split the positions of rows over devices of a slice. Each of the latter is added to the previous ones, and
    is skipped if rows, positions or dimensions do not divide.

    Args:
      config: nested dicts of fields.
      topology: the machine.
      estimate_of: config and topology -> estimate. May raise ConfigError.
    """
    if topology.has_pool:
        larger = dataclasses.replace(topology, chip=with_pool(topology.chip, _LARGEST_POOL))
        plan = estimate_of(config, larger)
        if plan.fits and larger.chip.usable_bytes > topology.chip.usable_bytes:
            flags = f"XLA_PYTHON_CLIENT_MEM_FRACTION={_LARGEST_POOL} in the environment"
            return f"{flags}: {plan.total_bytes / GIB:.2f} GiB per device"
    smallest = None
    for overrides in _changes(config, topology):
        fields = copy.deepcopy(config)
        for name, value in overrides.items():
            section, field = name.split(".")
            fields[section][field] = value
        try:
            plan = estimate_of(fields, dataclasses.replace(topology, devices=()))
            if topology.devices and plan.total_bytes <= _COMPILED_LIMIT * topology.chip.usable_bytes:
                plan = estimate_of(fields, topology)
        except ConfigError:
            continue
        flags = " ".join(f"--config.{name}={value}" for name, value in overrides.items())
        if plan.fits and (plan.compiled is not None or not topology.devices):
            return f"{flags}: {plan.total_bytes / GIB:.2f} GiB per device"
        if smallest is None or plan.total_bytes < smallest[0]:
            smallest = plan.total_bytes, flags
    if smallest is None:
        return "a larger topology: no change of the config is possible"
    size, flags = smallest
    return f"a larger topology: {flags} still needs {size / GIB:.2f} GiB per device"


def _changes(config: dict[str, Any], topology: Topology) -> Iterator[dict[str, Any]]:
    """Yields changes, field -> value, from the one that costs the least time."""
    changes: dict[str, Any] = {}
    if config["model"]["remat"] == "none":
        changes["model.remat"] = "dots"
        yield dict(changes)
    data, fsdp, context, tensor = mesh_shape(MeshConfig(**config["mesh"]), topology.num_devices)
    slices = topology.num_slices  # each must be a part of "data" (run.sharding.order_devices)
    if data > slices:
        changes |= _mesh_fields(config, slices, data * fsdp // slices, context, tensor)
        yield dict(changes)
    accumulations = list(_larger_accumulations(config["train"], data * fsdp))
    for steps in accumulations:
        yield changes | {"train.grad_accum_steps": steps}
    if config["model"]["remat"] != "full":
        changes["model.remat"] = "full"
        yield dict(changes)
        for steps in accumulations:
            yield changes | {"train.grad_accum_steps": steps}
    for sizes in _meshes_with_more_context(data, fsdp, context, tensor, slices=slices):
        steps = config["train"]["batch_size"] // (sizes[0] * sizes[1])  # microbatches of one row for all parts of it
        yield changes | _mesh_fields(config, *sizes) | {"train.grad_accum_steps": steps}


def _meshes_with_more_context(
    data: int, fsdp: int, context: int, tensor: int, *, slices: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields sizes of AXES with a larger "context", the smallest first, for the devices of the given sizes."""
    within_slice = data * fsdp * context // slices
    for larger in range(context + 1, within_slice + 1):
        if within_slice % larger == 0:
            others = within_slice // larger
            yield slices, others, larger, tensor
            if others > 1:  # check_mesh refuses "fsdp" together with "tensor"
                yield slices * others, 1, larger, tensor


def _mesh_fields(config: dict[str, Any], *sizes: int) -> dict[str, Any]:
    """Returns the fields of a mesh whose axes, in the order of AXES, have these sizes."""
    fields: dict[str, Any] = {"mesh.backend": "jit"} if config["mesh"]["backend"] == "pmap" else {}
    return fields | {f"mesh.{axis}": size for axis, size in zip(AXES, sizes, strict=True)}


def _larger_accumulations(train: dict[str, Any], devices: int) -> Iterator[int]:
    """Yields twice as many microbatches, four times as many and so on, down to one row per device and microbatch."""
    rows = train["batch_size"] // devices
    steps = 2 * train["grad_accum_steps"]
    while steps <= rows:
        if rows % steps == 0:
            yield steps
        steps *= 2
