"""The memory and the time of a run on a topology, from its compiler if there is one, and from shapes otherwise."""

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
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from contract.windows import Windows
from models.placement import PositionParts, compiled_for, part_of_positions
from train import sharding
from train.experiment import Experiment
from train.learners.learner import Batch
from train.mesh_checks import check_mesh
from train.optimizer import make_optimizer
from train.plan.hlo import collective_bytes
from train.plan.topology import Topology
from train.run import abstract_state, attention_of, compiled_train_step, seed_array
from train.step import TrainState


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
    with compiled_for(topology.platform, _placeholder_kernel, splits_outputs=mesh.shape["tensor"] > 1):
        activations = _activation_bytes(experiment, state, batch, mesh)
    compiled = _compile(experiment, state, batch) if topology.devices else None
    # Gradients are as large as parameters.
    temporaries = compiled.temporary_bytes if compiled else activations + parameters
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return Estimate(
        topology=topology,
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
    denoiser_ids, lengths, parts = zeros, np.full(per_row, experiment.window_specs[0].raw_length, np.int32), None
    if plan is not None:
        denoiser_ids, lengths, parts = (column[0] for column in plan)
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
        parts=parts,
    )
    rows = experiment.train.batch_size
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype, sharding=batch_sharding)
        for name, array in experiment.collate(windows, 1).items()
    }


def _device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree's leaves on one device, from their shapes and shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _activation_bytes(experiment: Experiment, state: TrainState, batch: Batch, mesh: Mesh | AbstractMesh) -> int:
    """Returns the bytes of activations that one device has at once for a microbatch, without those of arguments.

    These are the results that the forward pass keeps for the backward pass, and the transient ones of one operation
    or, with model.remat, one layer. Assumes that the mesh axis "tensor" splits no activation.
    """
    learner, context = experiment.learner, mesh.shape["context"]
    parts = experiment.train.grad_accum_steps * mesh.shape["data"] * mesh.shape["fsdp"]
    batch = {
        name: jax.ShapeDtypeStruct((array.shape[0] // parts, *(n // context for n in array.shape[1:])), array.dtype)
        for name, array in batch.items()
    }
    on_one_device = PositionParts(context, lambda: 0, lambda x, axis: _placeholder_gather(x, axis, context))
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.params)

    def loss(params: Any, batch: Batch) -> Array:
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=True)[0]

    with part_of_positions(on_one_device):
        forward = jax.make_jaxpr(loss)(params, batch).jaxpr
        return _kept_bytes(loss, params, batch) + _transient_bytes(forward)


def _kept_bytes(function: Callable[..., Any], differentiated: Any, *others: Any) -> int:
    """Returns the bytes that the backward pass of `function` needs, without those of its arguments.

    differentiated: the first argument, whose gradient the backward pass computes; a tree of shapes and dtypes, as are
    `others`.
    """

    def residuals(differentiated: Any, *others: Any) -> list[Array]:
        arguments = {id(leaf) for leaf in jax.tree.leaves((differentiated, others))}
        backward = jax.vjp(lambda x: function(x, *others), differentiated)[1]
        return [jnp.asarray(leaf) for leaf in jax.tree.leaves(backward) if id(leaf) not in arguments]

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(residuals, differentiated, *others))


def _transient_bytes(jaxpr: Jaxpr) -> int:
    """Returns the most bytes that one operation of a loss, or its gradient, has besides what the forward pass keeps.

    Counted are the operations with the largest arrays:
      - a rematerialized function, such as a layer: what the function keeps for its own backward pass once it has run
        again, and then the most of its operations;
      - a product of two activations, such as attention scores without a fused kernel: the float32 scores and their
        gradient;
      - random bits: threefry2x32 takes two arrays of counters and returns two.
    """
    return max(map(_transient_bytes_of, jaxpr.eqns), default=0)


def _transient_bytes_of(eqn: JaxprEqn) -> int:
    result, inner = eqn.outvars[0].aval if eqn.outvars else None, map(_transient_bytes, jaxprs_in_params(eqn.params))
    if eqn.primitive.name == "dot_general":
        has_batch = bool(eqn.params["dimension_numbers"][1][0])
        return 2 * result.size * result.dtype.itemsize if has_batch else 0
    if eqn.primitive.name == "random_bits":
        return 4 * result.size * result.dtype.itemsize
    return max(inner, default=0) + (_recomputed_bytes(eqn) if eqn.primitive.name == "remat2" else 0)


def _recomputed_bytes(eqn: JaxprEqn) -> int:
    """Returns the bytes that a rematerialized function keeps for its backward pass. eqn: a `jax.checkpoint`."""
    arguments = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars]
    is_float = [jnp.issubdtype(argument.dtype, jnp.inexact) for argument in arguments]

    def function(floats: list[Array], others: list[Array]) -> list[Array]:
        floats, others = iter(floats), iter(others)
        values = [next(floats if is_first else others) for is_first in is_float]
        return jax.core.eval_jaxpr(eqn.params["jaxpr"], (), *values)

    floats = [argument for argument, is_first in zip(arguments, is_float, strict=True) if is_first]
    others = [argument for argument, is_first in zip(arguments, is_float, strict=True) if not is_first]
    return _kept_bytes(function, floats, others)


def _placeholder_gather(x: Array, axis: int, count: int) -> Array:
    """Returns an array of the shape of the gathered parts, by an operation that models.remat takes for the gather."""
    padding = [(0, (count - 1) * size if i == axis else 0) for i, size in enumerate(x.shape)]
    return jnp.pad(x, padding)


def _placeholder_kernel(function: Callable[..., Array], arguments: Sequence[str], result: str) -> Callable[..., Array]:
    """Returns a function with the residuals of a fused attention kernel, which cannot be traced on every machine.

    The residuals are the kernel's arguments, its result, and a float32 for each query and head. The signature is that
    of models.placement.OverDevices.
    """

    @jax.custom_vjp
    def kernel(*arrays: Array) -> Array:
        return jnp.zeros_like(arrays[0])

    def forward(*arrays: Array) -> tuple[Array, Any]:
        mixed = kernel(*arrays)
        return mixed, (arrays, mixed, jnp.zeros(mixed.shape[:-1], jnp.float32))

    def backward(residuals: Any, gradient: Array) -> tuple:
        del gradient
        arrays = residuals[0]  # query, key, value, and arrays without a gradient
        return (*map(jnp.zeros_like, arrays[:3]), *[None] * len(arrays[3:]))

    kernel.defvjp(forward, backward)
    return kernel


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
