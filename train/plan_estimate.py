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

from models.kernels import compiled_for
from objectives.batch import Windows
from train import sharding
from train.experiment import Experiment
from train.flops import train_step_flops
from train.hlo import collective_bytes
from train.learner import Batch
from train.optimizer import make_optimizer
from train.run import abstract_state, attention_of, check_microbatch, compiled_train_step
from train.step import TrainState
from train.topology import Topology


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
    total_bytes: int  # the most that is in use at once
    flops: float  # a step, all devices: train.flops
    collectives: dict[str, int]  # kind -> bytes; empty where nothing was compiled
    compile_seconds: float  # 0 where nothing was compiled

    @property
    def fits(self) -> bool | None:
        """None where the chip's memory is not known."""
        chip = self.topology.chip
        return None if chip is None else self.total_bytes <= chip.memory_bytes

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
    if topology.devices:
        temporaries, total, collectives, seconds = _compiled(experiment, state, batch)
    else:
        temporaries, collectives, seconds = activations + parameters, {}, 0.0  # gradients are as large as parameters
        total = parameters + optimizer_bytes + batch_bytes + temporaries
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    data = experiment.data
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
        total_bytes=total,
        flops=train_step_flops(
            experiment.model,
            rows=experiment.train.batch_size,
            inputs_length=data.inputs_length,
            targets_length=data.targets_length,
        ),
        collectives=collectives,
        compile_seconds=seconds,
    )


def abstract_batch(experiment: Experiment, place: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and places of the global batch: those of one row of made-up text, `train.batch_size` times."""
    collator, per_row = experiment.collator, experiment.data.examples_per_row
    zeros, keys = np.zeros(per_row, np.int32), np.arange(per_row, dtype=np.uint64)
    source, lengths, parts = zeros, np.full(per_row, collator.specs[0].raw_length, np.int32), None
    if collator.plan is not None:
        source, lengths, parts = (column[0] for column in collator.plan)
    tokens = np.full((per_row, lengths.max()), experiment.tokenizer.vocab.content_start, np.int32)
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


def _compiled(
    experiment: Experiment, state: TrainState, batch: dict[str, jax.ShapeDtypeStruct]
) -> tuple[int, int, dict[str, int], float]:
    """Temporaries and the total, bytes of one device; collectives; seconds that the compiler took."""
    optimizer = make_optimizer(experiment.optimizer, experiment.train.steps)
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = compiled_train_step(experiment, optimizer, places, next(iter(batch.values())).sharding)
    begin = time.perf_counter()
    try:
        compiled = step.lower(state, batch).compile()
    except jax.errors.JaxRuntimeError as error:  # a TPU's compiler gives up where memory is short, and says by how much
        needed = re.search(r"\(([\d.]+)([KMG])\) exceeds", str(error))
        if not needed:
            raise
        temporaries = int(float(needed[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[needed[2]])
        total = temporaries + _device_bytes(state) + _device_bytes(batch)
        return temporaries, total, {}, time.perf_counter() - begin
    memory = compiled.memory_analysis()
    total = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    collectives = collective_bytes(compiled.as_text())
    return memory.temp_size_in_bytes, total, collectives, time.perf_counter() - begin
