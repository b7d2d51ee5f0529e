"""The bytes of a train step's activations from shapes, without a compiler."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.sharding import AbstractMesh, Mesh

from experiment.experiment import Experiment
from learners.learner import Batch
from models.placement import PositionParts, part_of_positions
from run.step import TrainState


def activation_bytes(experiment: Experiment, state: TrainState, batch: Batch, mesh: Mesh | AbstractMesh) -> int:
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
    """Returns the bytes that a `jax.checkpoint` recomputes: what its policy does not save of what is needed."""
    arguments = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars]
    is_float = [jnp.issubdtype(argument.dtype, jnp.inexact) for argument in arguments]

    def function(floats: list[Array], others: list[Array]) -> list[Array]:
        floats, others = iter(floats), iter(others)
        values = [next(floats if is_first else others) for is_first in is_float]
        return jax.core.eval_jaxpr(eqn.params["jaxpr"], (), *values)

    floats = [argument for argument, is_first in zip(arguments, is_float, strict=True) if is_first]
    others = [argument for argument, is_first in zip(arguments, is_float, strict=True) if not is_first]
    saving = jax.checkpoint(function, policy=eqn.params["policy"], prevent_cse=False)
    return _kept_bytes(function, floats, others) - _kept_bytes(saving, floats, others)


def _placeholder_gather(x: Array, axis: int, count: int) -> Array:
    """Returns an array of the shape of the gathered parts, by an operation that models.layers takes for the gather."""
    padding = [(0, (count - 1) * size if i == axis else 0) for i, size in enumerate(x.shape)]
    return jnp.pad(x, padding)


def placeholder_kernel(function: Callable[..., Array], arguments: Sequence[str], result: str) -> Callable[..., Array]:
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
