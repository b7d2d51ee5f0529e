"""What makes a run fit that does not: fields to change, tried one after another."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from objectives.errors import ConfigError
from train.hardware import GIB
from train.plan_estimate import Estimate
from train.topology import Topology


def find_remedy(config: dict[str, Any], topology: Topology, estimate_of: Callable[[dict], Estimate]) -> str:
    """A line with the first change that fits: remat, then parameters split over the devices, then smaller microbatches.

    Each is tried on top of those before it, cheapest in time first. A change that cannot be made (rows or dimensions
    that do not divide) is passed over.
    """
    best = None
    for overrides in _changes(config, topology):
        fields = copy.deepcopy(config)
        for name, value in overrides.items():
            section, field = name.split(".")
            fields[section][field] = value
        try:
            plan = estimate_of(fields)
        except ConfigError:
            continue
        flags = " ".join(f"--config.{name}={value}" for name, value in overrides.items())
        if plan.fits:
            return f"  would fit with     {flags}: {plan.total_bytes / GIB:.2f} GiB a device"
        if best is None or plan.total_bytes < best[0]:
            best = plan.total_bytes, flags
    if best is None:
        return "  would fit with     nothing that was tried: take a larger topology"
    return f"  would fit with     a larger topology: {best[1]} still takes {best[0] / GIB:.2f} GiB a device"


def _changes(config: dict[str, Any], topology: Topology) -> Iterator[dict[str, Any]]:
    changes: dict[str, Any] = {}
    if config["model"]["remat"] != "full":
        changes["model.remat"] = "full"
        yield dict(changes)
    sharded = config["mesh"]["fsdp"] * config["mesh"]["tensor"]
    if sharded < topology.num_devices:
        changes |= {"mesh.data": 1, "mesh.fsdp": topology.num_devices // config["mesh"]["tensor"]}
        yield dict(changes)
    rows = config["train"]["batch_size"] // max(topology.num_devices // config["mesh"]["tensor"], 1)
    for parts in (4, 16, 64):
        if config["train"]["grad_accum_steps"] < parts <= rows:
            yield changes | {"train.grad_accum_steps": parts}
    if rows > 1 and rows not in (4, 16, 64):
        yield changes | {"train.grad_accum_steps": rows}
