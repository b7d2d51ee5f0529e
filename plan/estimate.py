"""The memory and the time of a run on a topology, from its compiler if there is one, and from shapes otherwise."""

import dataclasses
import math
import re
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from contract.windows import Windows
from experiment.experiment import Experiment
from experiment.optimizer import make_optimizer
from models.placement import compiled_for
from plan.activations import activation_bytes, placeholder_kernel
from plan.hlo import collective_bytes
from plan.topology import Topology
from run import sharding
from run.compiled_run import (
    abstract_state,
    attention_of,
    check_mesh,
    compiled_train_step,
    seed_array,
)
from run.step import TrainState


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's report on a train step. Bytes are those of one device."""

    refused: bool  # the program exceeds the memory: the compiler reports only the total
    argument_bytes: int  # state and batch in the chip's layout; if refused, from their shapes
    temporary_bytes: int
    result_bytes: int  # results that are not written over arguments
    code_bytes: int  # the program
    collectives: dict[str, int] | None  # kind -> bytes per step; None if jaxlib cannot read the compiler's program
    seconds: float  # of compilation

    @property
    def total_bytes(self) -> int:
        """All memory of the program."""
        return self.argument_bytes + self.temporary_bytes + self.result_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The memory and the time of a run's train step. Bytes are those of one device."""

    topology: Topology
    remat: str
    grad_accum_steps: int
    chosen: str  # how these two were chosen for the topology; "" if the config sets them
    mesh: dict[str, int]  # axis -> size
    attention: tuple[str, str]  # the kernel, and the reason for it
    num_params: int
    positions_per_step: int
    parameter_bytes: int
    optimizer_bytes: int
    average_bytes: int  # the averaged parameters (train.ema_decay)
    batch_bytes: int
    activation_bytes: int  # kept for the backward pass, and made by one layer at a time; from shapes, without fusion
    temporary_bytes: int  # if compiled, all but arguments and results; otherwise activations and gradients
    compiled: Compiled | None  # None if the topology has no compiler
    flops: float  # model FLOPs per step, of all devices (models/flops.py)

    @property
    def state_bytes(self) -> int:
        """The training state: parameters, optimizer state and averaged parameters."""
        return self.parameter_bytes + self.optimizer_bytes + self.average_bytes

    @property
    def total_bytes(self) -> int:
        """The largest memory in use at any time, as the compiler reports it if there is one."""
        if self.compiled is not None:
            return self.compiled.total_bytes
        return self.state_bytes + self.batch_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the chip's usable memory; None if that memory is not known."""
        chip = self.topology.chip
        if self.compiled is not None and self.compiled.refused:
            return False
        return None if chip is None else self.total_bytes <= chip.usable_bytes

    @property
    def roofline_seconds(self) -> float | None:
        """The lower bound of the time of a step; None if the chip is not known.

        The larger of the time of the FLOPs at the chips' peak and the time to read and write the training state, and to
        read the batch, at the memory bandwidth.
        """
        chip = self.topology.chip
        if chip is None:
            return None
        moved = 2 * self.state_bytes + self.batch_bytes
        return max(self.flops / self.topology.num_devices / chip.peak_flops, moved / chip.memory_bandwidth)


def estimate(experiment: Experiment, topology: Topology) -> Estimate:
    """Returns the estimate of `experiment` on `topology`.

    Raises ConfigError if the mesh does not fit the number of devices, if dimensions or rows are not multiples of the
    mesh axes, or if the attention kernel does not support the topology.
    """
    shape = sharding.mesh_shape(experiment.mesh, topology.num_devices)
    if topology.devices:
        mesh = sharding.make_mesh(experiment.mesh, topology.devices)
    else:
        mesh = AbstractMesh(shape, sharding.AXES)
    check_mesh(experiment, mesh)
    attention = attention_of(experiment, topology.platform, mesh)
    state, batch = abstract_state(experiment, mesh), abstract_batch(experiment, sharding.batch_sharding(mesh))
    parameters, batch_bytes = _device_bytes(state.params), _device_bytes(batch)
    average = _device_bytes(state.ema_params)
    with compiled_for(topology.platform, placeholder_kernel, splits_outputs=mesh.shape["tensor"] > 1):
        activations = activation_bytes(experiment, state, batch, mesh)
    compiled = _compile(experiment, state, batch) if topology.devices else None
    # Gradients are as large as parameters.
    temporaries = compiled.temporary_bytes if compiled else activations + parameters
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return Estimate(
        topology=topology,
        remat=experiment.model.remat,
        grad_accum_steps=experiment.train.grad_accum_steps,
        chosen=experiment.chosen,
        mesh=dict(zip(sharding.AXES, shape, strict=True)),
        attention=attention,
        num_params=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        positions_per_step=sum(array.size for array in segments),
        parameter_bytes=parameters,
        optimizer_bytes=_device_bytes(state) - parameters - average,
        average_bytes=average,
        batch_bytes=batch_bytes,
        activation_bytes=activations,
        temporary_bytes=temporaries,
        compiled=compiled,
        flops=experiment.train_step_flops,
    )


def abstract_batch(experiment: Experiment, batch_sharding: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, dtypes and shardings of the global batch, from one row of arbitrary text."""
    per_row, plan = experiment.data.examples_per_row, experiment.batch_spec.plan
    zeros = np.zeros(per_row, np.int32)
    denoiser_ids, lengths, variant_ids = zeros, np.full(per_row, experiment.window_specs[0].raw_length, np.int32), None
    if plan is not None:
        denoiser_ids, lengths, variant_ids = (column[0] for column in plan)
    tokens = np.full((per_row, lengths.max()), experiment.vocab.content_start, np.int32)
    windows = Windows(
        tokens=tokens,
        lengths=lengths,
        row_ids=zeros,
        keys=np.arange(per_row, dtype=np.uint64),
        denoiser_ids=denoiser_ids,
        others_tokens=tokens,
        others_lengths=lengths,
        prompt_lengths=zeros + 1,
        labels=zeros,
        begins_document=zeros > 0,
        ends_document=zeros > 0,
        variant_ids=variant_ids,
    )
    rows = experiment.train.batch_size
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype, sharding=batch_sharding)
        for name, array in experiment.collate(windows, 1).items()
    }


def _device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree's leaves on one device, from their shapes and shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _compile(experiment: Experiment, state: TrainState, batch: dict[str, jax.ShapeDtypeStruct]) -> Compiled:
    """Compiles the train step for the devices of the shardings of `state` and `batch`."""
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps)
    state_shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = compiled_train_step(experiment, optimizer, state_shardings, next(iter(batch.values())).sharding)
    begin = time.perf_counter()
    try:
        program = step.lower(state, batch, seed_array(experiment.seed)).compile()
        seconds = time.perf_counter() - begin
    except jax.errors.JaxRuntimeError as error:
        needed, arguments = _bytes_needed(str(error)), _device_bytes(state) + _device_bytes(batch)
        if needed is None:
            raise
        return Compiled(
            refused=True,
            argument_bytes=arguments,
            temporary_bytes=needed - arguments,
            result_bytes=0,
            code_bytes=0,
            collectives=None,
            seconds=time.perf_counter() - begin,
        )
    memory = program.memory_analysis()
    return Compiled(
        refused=False,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        result_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=_collectives(program),
        seconds=seconds,
    )


def _collectives(program: jax.stages.Compiled) -> dict[str, int] | None:
    """Returns the bytes of a program's collectives; None if jaxlib cannot read what the TPU compiler has written.

    jaxlib 0.10.2 expects one operand where libtpu 0.0.52 writes asynchronous collectives with several.
    """
    try:
        return collective_bytes(program.as_text())
    except jax.errors.JaxRuntimeError:
        return None


def _bytes_needed(error: str) -> int | None:
    """Returns the memory of a program, with its arguments, from a TPU compiler's error; None for other errors."""
    match = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM|hbm\. Used ([\d.]+)([KMGT]) of", error)
    if match is None:
        return None
    number, unit = match[1] or match[3], match[2] or match[4]
    return int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
