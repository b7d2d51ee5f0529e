"""One run on one topology: compiled for it where the compiler is here, else added up from shapes."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from contract.windows import Windows
from models.placement import compiled_for
from train import sharding
from train.experiment import Experiment
from train.learners.learner import Batch
from train.optimizer import make_optimizer
from train.plan.hlo import collective_bytes
from train.plan.topology import Topology
from train.run import abstract_state, attention_of, check_microbatch, compiled_train_step
from train.step import TrainState


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler said of a program. Bytes are of one device."""

    refused: bool  # it gave up where memory was short, and said no more than the total
    argument_bytes: int  # state and batch as the chip lays them out; by their shapes where it refused
    temporary_bytes: int
    result_bytes: int  # those that do not take an argument's place
    code_bytes: int  # the program itself
    collectives: dict[str, int]  # kind -> bytes a step
    seconds: float

    @property
    def total_bytes(self) -> int:
        return self.argument_bytes + self.temporary_bytes + self.result_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a run takes. Bytes are of one device."""

    topology: Topology
    mesh: dict[str, int]
    attention: tuple[str, str]  # the kernel, and why
    num_params: int
    positions_per_step: int
    parameter_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    activation_bytes: int  # kept for the backward pass, by their shapes, before the compiler fuses any of them away
    temporary_bytes: int  # compiled: all that is neither argument nor result; else activations and gradients
    compiled: "Compiled | None"  # None where there is no compiler
    flops: float  # a step, all devices: train.flops

    @property
    def total_bytes(self) -> int:
        """The most that is in use at once: the compiler's own figure where there is one."""
        if self.compiled is not None:
            return self.compiled.total_bytes
        return self.parameter_bytes + self.optimizer_bytes + self.batch_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool | None:
        """None where the chip's memory is not known. A program that the compiler made fits by its word."""
        chip = self.topology.chip
        if self.compiled is not None and self.compiled.refused:
            return False
        return None if chip is None else self.total_bytes <= chip.usable_bytes

    @property
    def roofline_seconds(self) -> float | None:
        """The least time of a step: at the chips' peak, or at the speed of reading parameters and state once."""
        chip = self.topology.chip
        if chip is None:
            return None
        moved = 2 * (self.parameter_bytes + self.optimizer_bytes) + self.batch_bytes
        return max(self.flops / self.topology.num_devices / chip.peak_flops, moved / chip.memory_bandwidth)


def estimate(experiment: Experiment, topology: Topology) -> Estimate:
    """Plans `experiment` on `topology`.

    Raises ConfigError where the mesh does not fit the number of devices, an axis or the batch does not divide, or the
    attention kernel cannot run there.
    """
    shape = sharding.mesh_shape(experiment.mesh, topology.num_devices)
    if topology.devices:
        mesh = sharding.make_mesh(experiment.mesh, topology.devices)
    else:
        mesh = AbstractMesh(shape, sharding.AXES)
    check_microbatch(experiment.train, mesh)
    attention = attention_of(experiment, topology.platform)
    state, batch = abstract_state(experiment, mesh), abstract_batch(experiment, sharding.batch_sharding(mesh))
    parameters, batch_bytes = _device_bytes(state.params), _device_bytes(batch)
    optimizer_bytes = _device_bytes(state) - parameters
    with compiled_for(topology.platform, _fused):
        activations = _activation_bytes(experiment, state, batch, mesh)
    compiled = _compiled(experiment, state, batch) if topology.devices else None
    # By shapes: gradients are as large as parameters.
    temporaries = compiled.temporary_bytes if compiled else activations + parameters
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return Estimate(
        topology=topology,
        mesh=dict(zip(sharding.AXES, shape, strict=True)),
        attention=attention,
        num_params=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        positions_per_step=sum(array.size for array in segments),
        parameter_bytes=parameters,
        optimizer_bytes=optimizer_bytes,
        batch_bytes=batch_bytes,
        activation_bytes=activations,
        temporary_bytes=temporaries,
        compiled=compiled,
        flops=experiment.train_step_flops,
    )


def abstract_batch(experiment: Experiment, place: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and places of the global batch: those of one row of made-up text, `train.batch_size` times."""
    collator, per_row = experiment.collate, experiment.data.examples_per_row
    zeros, keys = np.zeros(per_row, np.int32), np.arange(per_row, dtype=np.uint64)
    source, lengths, parts = zeros, np.full(per_row, collator.specs[0].raw_length, np.int32), None
    if collator.plan is not None:
        source, lengths, parts = (column[0] for column in collator.plan)
    tokens = np.full((per_row, lengths.max()), experiment.vocab.content_start, np.int32)
    row = collator(Windows(tokens, lengths, zeros, keys, source, tokens, lengths, zeros + 1, zeros, parts), 1)
    rows = experiment.train.batch_size
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype, sharding=place) for name, array in row.items()
    }


def _device_bytes(tree: Any) -> int:
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _activation_bytes(experiment: Experiment, state: TrainState, batch: Batch, mesh: Mesh | AbstractMesh) -> int:
    """What a microbatch's forward pass keeps for the backward pass, on one device, as if "tensor" split none of it."""
    learner = experiment.learner
    parts = experiment.train.grad_accum_steps * mesh.shape["data"] * mesh.shape["fsdp"]
    batch = {
        name: jax.ShapeDtypeStruct((array.shape[0] // parts, *array.shape[1:]), array.dtype)
        for name, array in batch.items()
    }
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.params)

    def kept(params, batch):
        def loss(params):
            return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=True)[0]

        given = {id(leaf) for leaf in jax.tree.leaves((params, batch))}
        backward = jax.vjp(loss, params)[1]
        return [jnp.asarray(leaf) for leaf in jax.tree.leaves(backward) if id(leaf) not in given]

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(kept, params, batch))


def _fused(function: Callable[..., Array], arguments: Sequence[str], result: str) -> Callable[..., Array]:
    """Stands for a fused attention kernel, which cannot be traced everywhere: it keeps its arguments, its result and a
    float32 for each query and head."""

    @jax.custom_vjp
    def kernel(*arrays: Array) -> Array:
        return jnp.zeros_like(arrays[0])

    def forward(*arrays: Array) -> tuple[Array, Any]:
        mixed = kernel(*arrays)
        return mixed, (arrays, mixed, jnp.zeros(mixed.shape[:-1], jnp.float32))

    def backward(kept: Any, gradient: Array) -> tuple:
        del gradient
        return (*map(jnp.zeros_like, kept[0][:3]), *[None] * len(kept[0][3:]))

    kernel.defvjp(forward, backward)
    return kernel


def _compiled(experiment: Experiment, state: TrainState, batch: dict[str, jax.ShapeDtypeStruct]) -> Compiled:
    optimizer = make_optimizer(experiment.optimizer, experiment.train.steps)
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = compiled_train_step(experiment, optimizer, places, next(iter(batch.values())).sharding)
    begin = time.perf_counter()
    try:
        program = step.lower(state, batch).compile()
        seconds = time.perf_counter() - begin
    except jax.errors.JaxRuntimeError as error:
        needed, arguments = _bytes_needed(str(error)), _device_bytes(state) + _device_bytes(batch)
        if needed is None:
            raise
        return Compiled(True, arguments, needed - arguments, 0, 0, {}, time.perf_counter() - begin)
    memory = program.memory_analysis()
    return Compiled(
        refused=False,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        result_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=collective_bytes(program.as_text()),
        seconds=seconds,
    )


def _bytes_needed(error: str) -> int | None:
    """What a program takes in all, arguments included, by a TPU compiler that has not enough; None for other errors."""
    said = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM|hbm\. Used ([\d.]+)([KMGT]) of", error)
    if said is None:
        return None
    number, unit = said[1] or said[3], said[2] or said[4]
    return int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
