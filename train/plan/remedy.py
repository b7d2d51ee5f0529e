"""What makes a run fit that does not: fields to change, tried one after another."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from contract.errors import ConfigError
from train.config import MeshConfig
from train.hardware import GIB
from train.plan.estimate import Estimate
from train.plan.topology import Topology
from train.sharding import mesh_shape

_FUSED = 1.25  # a compiler may save some of what shapes add up to: this much too large is not worth its time


def find_remedy(config: dict[str, Any], topology: Topology, estimate_of: Callable[[dict, Topology], Estimate]) -> str:
    """A line with the first change that fits: attention's probabilities made again, state split over the devices,
    smaller microbatches, whole layers made again.

    Cheapest in time first, each on top of those before it. What is too large by its shapes is not compiled. A change
    that cannot be made (rows or dimensions that do not divide) is passed over.
    """
    best = None
    for overrides in _changes(config, topology):
        fields = copy.deepcopy(config)
        for name, value in overrides.items():
            section, field = name.split(".")
            fields[section][field] = value
        try:
            plan = estimate_of(fields, dataclasses.replace(topology, devices=()))
            if topology.devices and plan.total_bytes <= _FUSED * topology.chip.usable_bytes:
                plan = estimate_of(fields, topology)
        except ConfigError:
            continue
        flags = " ".join(f"--config.{name}={value}" for name, value in overrides.items())
        if plan.fits and (plan.compiled is not None or not topology.devices):
            return f"  would fit with     {flags}: {plan.total_bytes / GIB:.2f} GiB a device"
        if best is None or plan.total_bytes < best[0]:
            best = plan.total_bytes, flags
    if best is None:
        return "  would fit with     nothing that was tried: take a larger topology"
    return f"  would fit with     a larger topology: {best[1]} still takes {best[0] / GIB:.2f} GiB a device"


def _changes(config: dict[str, Any], topology: Topology) -> Iterator[dict[str, Any]]:
    changes: dict[str, Any] = {}
    if config["model"]["remat"] == "none":
        changes["model.remat"] = "dots"
        yield dict(changes)
    data, fsdp, tensor = mesh_shape(MeshConfig(**config["mesh"]), topology.num_devices)
    if data > 1:
        if config["mesh"]["backend"] == "pmap":
            changes["mesh.backend"] = "jit"
        changes |= {"mesh.data": 1, "mesh.fsdp": data * fsdp, "mesh.tensor": tensor}
        yield dict(changes)
    smaller = list(_accumulations(config["train"], data * fsdp))
    for parts in smaller:
        yield changes | {"train.grad_accum_steps": parts}
    if config["model"]["remat"] != "full":
        changes["model.remat"] = "full"
        yield dict(changes)
        for parts in smaller:
            yield changes | {"train.grad_accum_steps": parts}


def _accumulations(train: dict[str, Any], devices: int) -> Iterator[int]:
    """Twice as many microbatches, and so on, down to those of one row a device."""
    rows = train["batch_size"] // devices
    parts = 2 * train["grad_accum_steps"]
    while parts <= rows:
        if rows % parts == 0:
            yield parts
        parts *= 2
