"""Plans a run: python -m train.plan --config=configs/ul2.py:20b --topology=v5p:4x4x4 [--vocab_size=32128] ...

Prints the memory and the time of a run on a machine, which need not be available, and whether the run fits. For a TPU
topology the TPU compiler compiles the train step, which also shows the step's collectives (pip install -e '.[tpu]'; no
TPU is needed). v5e:4x4:2 is two slices of 4x4 chips. For gpu:N, h100:N, cpu:N and other chips, memory is added up from
shapes, which is less exact. On a GPU programs can use JAX's memory pool: 75% of the memory, unless
XLA_PYTHON_CLIENT_MEM_FRACTION is set, here as on the machine. model.remat="auto" and train.grad_accum_steps=0 are
resolved as at the start of a run on that machine. --costs adds, for a TPU topology, the cycles of a step that the
compiler estimates, and the bytes that it reads and writes, by kind of operation (plan/costs.py). --json=FILE writes
what is printed as a JSON object.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import jax
from absl import flags

from cluster.devices import GIB
from command.flags import (
    TRAINING_MEMORY,
    config_fields,
    config_name,
    config_overrides,
    define_config,
    parse_flags,
    run_command,
)
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from files.atomic import check_output, writing
from huggingface.origin import describe_taken, with_origin_fields
from huggingface.teacher import with_teacher
from plan.costs import Cost
from plan.estimate import Estimate, estimate, parse_topology
from run.memory import describe, fewest_that_fit, resolve_memory

_FLAGS = flags.FlagValues()
define_config(_FLAGS, same_model=True)
_TOPOLOGY = flags.DEFINE_string("topology", None, "Machine: v5e:4x4, v5p:4x4x4, h100:8, gpu:8, cpu:2, ...", _FLAGS)
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size", None, "Number of ids, if the tokenizer's file is not available.", 1, 2**30, flag_values=_FLAGS
)
_COSTS = flags.DEFINE_boolean("costs", False, "Estimated cycles and bytes by kind of operation: TPUs.", _FLAGS)
_JSON = flags.DEFINE_string("json", None, "A file for everything that the command prints, as a JSON object.", _FLAGS)


def main() -> None:
    """Prints the estimate. Exits with status 1 if the run does not fit."""
    parse_flags(_FLAGS, __doc__)
    config = config_fields(_FLAGS)
    jax.config.update("jax_platforms", "cpu")  # nothing runs on this machine's accelerator
    if _TOPOLOGY.value is None:
        raise ConfigError("--topology is missing: for example --topology=v5e:4x4 or --topology=h100:8")
    if _JSON.value is not None:
        check_output(_JSON.value, "--json")
    topology = parse_topology(_TOPOLOGY.value)
    if _COSTS.value and topology.platform != "tpu":
        raise ConfigError(f"--costs needs a TPU topology, such as v5e:4x4: {_TOPOLOGY.value} has no compiler here")
    given, config = config, with_origin_fields(config, config_overrides(_FLAGS))
    for line in describe_taken(given, config):
        print(line)
    experiment = with_teacher(make_experiment(config, vocab_size=_VOCAB_SIZE.value))
    experiment = resolve_memory(experiment, topology.machine)
    result, epochs = estimate(experiment, topology, with_costs=_COSTS.value), experiment.train.epochs
    fewest = fewest_that_fit(experiment, topology.machine) if result.fits is False else None
    for line in report_lines(config_name(_FLAGS), result, fewest):
        print(line, flush=True)
    if epochs:
        print(f"  length of the run  train.epochs={epochs:g}: steps are known once train.main has read the corpus")
    if _JSON.value is not None:
        with writing(_JSON.value, "--json") as file:
            fields = report_fields(config_name(_FLAGS), result) | {"epochs": epochs or None}
            file.write(json.dumps(fields, indent=1) + "\n")
    if result.fits is False:
        sys.exit(1)


def report_lines(config: str, plan: Estimate, fewest: int | None = None) -> Iterator[str]:
    """Yields the lines that `python -m train.plan` prints for an estimate.

    config: name of the config. fewest: `run.memory.fewest_that_fit` for a plan that does not fit.
    """
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
    yield from (f"  WARNING            {warning}" for warning in plan.warnings)
    yield f"  precision          {plan.precision}"
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
    if plan.compiled is not None and plan.compiled.costs:
        yield from _cost_lines(plan.compiled.costs)
    if plan.fits is None:
        yield f"  fits               unknown: {topology.name} does not specify the memory of a device"
    elif plan.fits:
        yield f"  fits               yes, with {(chip.usable_bytes - plan.total_bytes) / GIB:.2f} GiB free"
    else:
        yield f"  fits               no, {(plan.total_bytes - chip.usable_bytes) / GIB:.2f} GiB too much"
        if fewest is not None and fewest > plan.grad_accum_steps:
            yield f"  train.grad_accum_steps={fewest} is the smallest that fits, by the estimate from shapes"
        yield f"  {TRAINING_MEMORY}"


def report_fields(config: str, plan: Estimate) -> dict[str, Any]:
    """Returns what `report_lines` has, as the fields of a JSON object. Sizes are bytes, of one device; times, seconds.

    A field whose value is not known, such as the memory of a device of gpu:8, is None. "collectives" maps each kind to
    bytes per device and step; None if the step was not compiled, or jaxlib cannot read the compiler's program.
    """
    chip, compiled = plan.topology.chip, plan.compiled
    (kernel, reason), roofline = plan.attention, plan.roofline_seconds
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
        "warnings": plan.warnings,
        "precision": plan.precision,
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
        "costs": None
        if compiled is None or compiled.costs is None
        else {kind: dataclasses.asdict(cost) for kind, cost in compiled.costs.items()},
        "fits": plan.fits,
    }


def _cost_lines(costs: dict[str, Cost]) -> Iterator[str]:
    total = sum(cost.cycles for cost in costs.values())
    yield f"  costs              {total:,} cycles a step, as the compiler estimates"
    for kind, cost in costs.items():
        share = f"{cost.cycles / total:7.1%} of cycles, " if cost.cycles else " " * 19
        padding = f" ({cost.padding_bytes / GIB:.3f} of it padding of tiles)" if cost.padding_bytes else ""
        yield f"    {kind:<27}{share}{cost.bytes / GIB:9.3f} GiB read and written{padding}"


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
    if plan.teacher_bytes:
        yield "teacher", plan.teacher_bytes
    yield "batch", plan.batch_bytes
    if plan.compiled is None:
        yield "gradients", plan.temporary_bytes - plan.activation_bytes
        yield "activations", plan.activation_bytes
    else:
        yield "temporaries, with activations", plan.temporary_bytes
        yield "(activations from shapes, unfused)", plan.activation_bytes
        if not plan.compiled.refused:
            shapes = plan.state_bytes + plan.teacher_bytes + plan.batch_bytes
            yield "layout of state and batch", plan.compiled.argument_bytes - shapes
            yield "results other than the state", plan.compiled.result_bytes
            yield "program", plan.compiled.code_bytes
    yield "total", plan.total_bytes


if __name__ == "__main__":
    run_command(main)
