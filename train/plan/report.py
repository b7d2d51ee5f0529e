"""A plan in words and numbers."""

from collections.abc import Iterator

from train.hardware import GIB
from train.plan.estimate import Estimate


def report_lines(config: str, plan: Estimate) -> Iterator[str]:
    """The lines that `python -m train.plan` prints of one estimate."""
    topology, chip = plan.topology, plan.topology.chip
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    how = "by shapes, not compiled"
    if plan.compiled is not None:
        verb = "refused by its compiler after" if plan.compiled.refused else "compiled for it in"
        how = f"{verb} {plan.compiled.seconds:.0f} s"
    yield f"{config} on {topology.name}: {topology.num_devices} devices, mesh {mesh}; {how}"
    yield f"  parameters         {plan.num_params / 1e6:,.1f}M"
    yield "  attention          {} ({})".format(*plan.attention)
    yield f"  positions a step   {plan.positions_per_step:,}"
    yield "  memory of a device"
    for name, size in _memory(plan):
        yield f"    {name:<34}{size / GIB:z9.3f} GiB"
    if chip is not None:
        kept = f" of {chip.memory_bytes / GIB:g}" if chip.reserved_bytes else ""
        yield f"    {'programs may use':<34}{chip.usable_bytes / GIB:9.3f} GiB{kept}"
    yield f"  model FLOPs a step {plan.flops:.3e}"
    if plan.roofline_seconds is not None:
        rate = plan.positions_per_step / plan.roofline_seconds
        yield f"  roofline           {plan.roofline_seconds * 1e3:,.1f} ms a step at best, {rate:,.0f} positions/s"
    if plan.compiled is not None and not plan.compiled.refused:
        moved = ", ".join(f"{kind} {size / GIB:.3f} GiB" for kind, size in plan.compiled.collectives.items())
        yield f"  collectives        {moved or 'none'}{' a device and step' if moved else ''}"
    if plan.fits is None:
        yield f"  fits               not said: {topology.name} does not tell how much memory a device has"
    elif plan.fits:
        yield f"  fits               yes, {(chip.usable_bytes - plan.total_bytes) / GIB:.2f} GiB to spare"
    else:
        yield f"  fits               no, {(plan.total_bytes - chip.usable_bytes) / GIB:.2f} GiB too much"


def _memory(plan: Estimate) -> Iterator[tuple[str, int]]:
    """What adds up to the last of them, but for what is in brackets."""
    yield "parameters", plan.parameter_bytes
    yield "optimizer", plan.optimizer_bytes
    yield "batch", plan.batch_bytes
    if plan.compiled is None:
        yield "gradients", plan.parameter_bytes
        yield "activations", plan.activation_bytes
    else:
        yield "temporaries, activations included", plan.temporary_bytes
        yield "(activations by shapes, unfused)", plan.activation_bytes
        if not plan.compiled.refused:
            named = plan.parameter_bytes + plan.optimizer_bytes + plan.batch_bytes
            yield "layout of state and batch", plan.compiled.argument_bytes - named
            yield "results beside the state", plan.compiled.result_bytes
            yield "program", plan.compiled.code_bytes
    yield "together", plan.total_bytes
