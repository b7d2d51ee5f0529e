"""Writes an estimate as lines of text, or as the fields of a JSON object."""

from collections.abc import Iterator
from typing import Any

from cluster.devices import GIB
from plan.estimate import Estimate
from plan.memory_choice import describe


def report_lines(config: str, plan: Estimate) -> Iterator[str]:
    """Yields the lines that `python -m train.plan` prints for an estimate. config: name of the config."""
    topology, chip = plan.topology, plan.topology.chip
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    method = "from shapes, not compiled"
    if plan.compiled is not None:
        verb = "rejected by the compiler after" if plan.compiled.refused else "compiled in"
        method = f"{verb} {plan.compiled.seconds:.0f} s"
    devices = "1 device" if topology.num_devices == 1 else f"{topology.num_devices} devices"
    devices += f" in {topology.num_slices} slices" if topology.num_slices > 1 else ""
    yield f"{config} on {topology.name}: {devices}, mesh {mesh}; {method}"
    yield f"  parameters         {plan.num_params / 1e6:,.1f}M"
    yield "  attention          {} ({})".format(*plan.attention)
    yield f"  recomputation      {plan.chosen or describe(plan.remat, plan.grad_accum_steps)}"
    yield f"  positions per step {plan.positions_per_step:,}"
    yield "  memory per device"
    for name, size in _memory(plan):
        yield f"    {name:<34}{size / GIB:z9.3f} GiB"
    if chip is not None:
        total = f" of {chip.memory_bytes / GIB:.4g}" if chip.reserved_bytes else ""
        if topology.has_pool and chip.reserved_bytes:
            total += ": the pool of JAX (XLA_PYTHON_CLIENT_MEM_FRACTION)"
        yield f"    {'available to programs':<34}{chip.usable_bytes / GIB:9.3f} GiB{total}"
    yield f"  FLOPs per step     {plan.flops:.3e}"
    if plan.roofline_seconds is not None:
        rate = plan.positions_per_step / plan.roofline_seconds
        yield f"  roofline           {plan.roofline_seconds * 1e3:,.1f} ms per step at best, {rate:,.0f} positions/s"
    if plan.compiled is not None and not plan.compiled.refused:
        yield f"  collectives        {_collectives_text(plan.compiled.collectives)}"
    if plan.fits is None:
        yield f"  fits               unknown: {topology.name} does not specify the memory of a device"
    elif plan.fits:
        yield f"  fits               yes, with {(chip.usable_bytes - plan.total_bytes) / GIB:.2f} GiB free"
    else:
        yield f"  fits               no, {(plan.total_bytes - chip.usable_bytes) / GIB:.2f} GiB too much"


def report_fields(config: str, plan: Estimate) -> dict[str, Any]:
    """Returns what `report_lines` has, as the fields of a JSON object. Sizes are bytes, of one device; times, seconds.

    A field whose value is not known, such as the memory of a device of gpu:8, is None. "collectives" maps each kind to
    bytes per device and step; None if the step was not compiled, or jaxlib cannot read the compiler's program.
    """
    chip, compiled = plan.topology.chip, plan.compiled
    kernel, reason = plan.attention
    roofline = plan.roofline_seconds
    return {
        "config": config,
        "topology": plan.topology.name,
        "devices": plan.topology.num_devices,
        "mesh": plan.mesh,
        "compiled": compiled is not None and not compiled.refused,
        "refused_by_the_compiler": compiled is not None and compiled.refused,
        "compile_seconds": None if compiled is None else compiled.seconds,
        "parameters": plan.num_params,
        "attention": kernel,
        "attention_reason": reason,
        "remat": plan.remat,
        "microbatches": plan.grad_accum_steps,
        "chosen": plan.chosen or None,
        "positions_per_step": plan.positions_per_step,
        "memory": {name.strip("()"): size for name, size in _memory(plan)},
        "total_bytes": plan.total_bytes,
        "available_bytes": None if chip is None else chip.usable_bytes,
        "device_bytes": None if chip is None else chip.memory_bytes,
        "flops_per_step": plan.flops,
        "roofline_seconds": roofline,
        "roofline_positions_per_second": None if roofline is None else plan.positions_per_step / roofline,
        "collectives": None if compiled is None else compiled.collectives,
        "fits": plan.fits,
    }


def _collectives_text(collectives: dict[str, int] | None) -> str:
    if collectives is None:
        return "unknown: this version of jaxlib cannot read the program of the TPU compiler"
    sizes = ", ".join(f"{kind} {size / GIB:.3f} GiB" for kind, size in collectives.items())
    return f"{sizes} per device and step" if sizes else "none"


def _memory(plan: Estimate) -> Iterator[tuple[str, int]]:
    """Yields name, bytes for each kind of memory, then their total. A name in brackets is not part of the total."""
    yield "parameters", plan.parameter_bytes
    yield "optimizer", plan.optimizer_bytes
    if plan.average_bytes:
        yield "averaged parameters", plan.average_bytes
    yield "batch", plan.batch_bytes
    if plan.compiled is None:
        yield "gradients", plan.parameter_bytes
        yield "activations", plan.activation_bytes
    else:
        yield "temporaries, with activations", plan.temporary_bytes
        yield "(activations from shapes, unfused)", plan.activation_bytes
        if not plan.compiled.refused:
            shapes = plan.state_bytes + plan.batch_bytes
            yield "layout of state and batch", plan.compiled.argument_bytes - shapes
            yield "results other than the state", plan.compiled.result_bytes
            yield "program", plan.compiled.code_bytes
    yield "total", plan.total_bytes
