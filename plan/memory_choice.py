"""Resolves model.remat="auto" and train.grad_accum_steps=0: the first choice that fits the memory of a device.

The order is that of the time of a step, from the shortest:

    model.remat="none" with the fewest microbatches that fit, of any number that divides the rows of a device;
    then "dots" in the same way; then "full".

Whether a choice fits is estimated from shapes (plan/estimate.py), without a compiler, so a run starts a second or
two later. A choice depends on the config, the kind and the number of the devices, and the share of a GPU's memory in
JAX's pool. Where the memory of a device is not known, as on CPUs, it is "none" with 1 microbatch.

A field that the config sets is not changed. The resolved fields are those of the run's config.json, and a run that
continues keeps them, also on other devices, unless its microbatches do not divide the rows of a device there.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from cluster.devices import GIB, chip_of
from contract.errors import ConfigError
from experiment.experiment import Experiment
from plan.estimate import Estimate, estimate
from plan.topology import Topology, pool_share, with_pool
from run.sharding import mesh_shape
from workdir.run_config import flatten

_REMATS = ("none", "dots", "full")
_DEFAULT = ("none", 1)
# The least share that the estimate of a program's temporaries from shapes is of what a compiler needs. For
# configs/bart.py:base, which has dropout, it is 0.56 on one TPU v5e. More microbatches than necessary cost little time,
# but a program that does not fit ends the run.
_ACCURACY = 0.5


def this_machine() -> Topology:
    """Returns the devices of all processes of this run, as a topology without a compiler.

    Raises ConfigError as `pool_share` does.
    """
    device = jax.devices()[0]
    chip = chip_of(device.device_kind)
    if chip is not None and device.platform == "gpu":
        chip = with_pool(chip, pool_share(os.environ))
    return Topology(device.device_kind, jax.device_count(), chip, ())


def resolve_memory(experiment: Experiment, topology: Topology, *, saved: Mapping[str, Any] | None = None) -> Experiment:
    """Returns the experiment with model.remat and train.grad_accum_steps resolved, and `chosen`, which says how.

    Args:
      experiment: returned as it is if its config sets both fields.
      topology: the machine; nothing is compiled for it.
      saved: the config of the run that continues, whose values are taken. If its microbatches do not divide the rows of
        a device of this machine, the values are chosen anew.

    Raises ConfigError as `estimate` does.
    """
    if not experiment.has_memory_choice:
        return experiment
    topology = dataclasses.replace(topology, devices=())
    data, fsdp, *_ = mesh_shape(experiment.mesh, topology.num_devices)
    rows = max(1, experiment.train.batch_size // (data * fsdp))
    if (values := _saved_values(saved, rows)) is not None:
        return _saying(_with_choice(experiment, *values), "as in the run so far")
    if topology.chip is None:
        return _saying(_with_choice(experiment, *_DEFAULT), f"as the memory of {topology.name} is not known")
    least: tuple[int, Experiment] | None = None
    for candidate, plan in _choices(experiment, topology, rows):
        needed = _needed_bytes(plan, candidate.train.grad_accum_steps, plan.activation_bytes)
        sizes = f"about {plan.total_bytes / GIB:.1f} of {topology.chip.usable_bytes / GIB:.1f} GiB"
        chosen = _saying(candidate, f"chosen for {topology.name}: {sizes}")
        if needed <= topology.chip.usable_bytes:
            return chosen
        if least is None or needed < least[0]:
            least = needed, chosen
    assert least is not None
    warning = (
        f"a device may not have the memory for this run ({least[1].chosen}, the least that model.remat and "
        "train.grad_accum_steps can do): python -m train.plan finds a change that is sufficient"
    )
    return dataclasses.replace(least[1], warnings=(*experiment.warnings, warning))


def _needed_bytes(plan: Estimate, steps: int, activations: float) -> float:
    """Returns the memory that a run of `plan` needs at most, with `steps` microbatches of `activations` bytes.

    A microbatch's gradients are added to those of the earlier ones, which takes their memory twice.
    """
    gradients = plan.parameter_bytes * (1 if steps == 1 else 2)
    return plan.state_bytes + plan.batch_bytes + (activations + gradients) / _ACCURACY


def _choices(experiment: Experiment, topology: Topology, rows: int) -> Iterator[tuple[Experiment, Estimate]]:
    """Yields the choices that may fit, in the order of this module, and the last choice of each model.remat.

    Activations are nearly in proportion to the rows of a microbatch, so most choices that do not fit are known by the
    estimate of the first. rows: of a device.
    """
    assert topology.chip is not None
    divisors = [steps for steps in range(1, rows + 1) if rows % steps == 0]
    for remat in _REMATS if experiment.model.remat == "auto" else (experiment.model.remat,):
        whole: Estimate | None = None
        for steps in [experiment.train.grad_accum_steps] if experiment.train.grad_accum_steps else divisors:
            if whole is not None and steps != divisors[-1]:
                least = _needed_bytes(whole, steps, whole.activation_bytes / steps)
                if least > topology.chip.usable_bytes:
                    continue
            try:
                candidate = _with_choice(experiment, remat, steps)
            except ConfigError:
                if whole is None:
                    raise
                break  # a learner that needs the whole batch
            plan = estimate(candidate, topology)
            whole = whole or plan
            yield candidate, plan


def _saved_values(saved: Mapping[str, Any] | None, rows: int) -> tuple[str, int] | None:
    """Returns model.remat and train.grad_accum_steps of a run's config; None unless they are values for `rows` rows."""
    fields = flatten(saved or {})
    remat, steps = fields.get("model.remat"), fields.get("train.grad_accum_steps")
    if remat not in _REMATS or type(steps) is not int or steps < 1 or rows % steps:
        return None
    return remat, steps


def _with_choice(experiment: Experiment, remat: str, steps: int) -> Experiment:
    """Returns the experiment with these values for those of the two fields that its config leaves open."""
    remat = remat if experiment.model.remat == "auto" else experiment.model.remat
    steps = experiment.train.grad_accum_steps or steps
    config, learner = experiment.config, experiment.learner
    model = dataclasses.replace(experiment.model, remat=remat)
    setup = dataclasses.replace(learner.setup, grad_accum_steps=steps)
    changes = {"model": {"remat": remat}, "train": {"grad_accum_steps": steps}}
    return dataclasses.replace(
        experiment,
        config={**config, **{section: {**config[section], **fields} for section, fields in changes.items()}},
        train=dataclasses.replace(experiment.train, grad_accum_steps=steps),
        model=model,
        learner=type(learner).make(learner.objective, model, setup),
    )


def _saying(experiment: Experiment, reason: str) -> Experiment:
    """Returns the experiment with `chosen`, its choice and the reason."""
    choice = describe(experiment.model.remat, experiment.train.grad_accum_steps)
    return dataclasses.replace(experiment, chosen=f"{choice}, {reason}")


def describe(remat: str, grad_accum_steps: int) -> str:
    """Returns the two fields in words: "remat none, 1 microbatch"."""
    return f"remat {remat}, {grad_accum_steps:,} microbatch{'' if grad_accum_steps == 1 else 'es'}"
