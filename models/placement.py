"""Context managers by which the caller of a model says how it is sharded, and for which devices it is traced.

Models name no mesh axis.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import Array

# (function, dimension names of each argument such as "BHQK", those of the result) -> `function` for whole arrays, run
# by each device on its own rows (B) and heads (H of queries, G of keys and values).
OverDevices = Callable[[Callable[..., Array], Sequence[str], str], Callable[..., Array]]

_constraint: contextvars.ContextVar[Callable[[Array], Array]] = contextvars.ContextVar(
    "constraint", default=lambda x: x
)
_compiled_for: contextvars.ContextVar[tuple[str, OverDevices, bool] | None] = contextvars.ContextVar(
    "compiled_for", default=None
)
# (parameters, arrays [B, ...]) -> (sums, arrays [B, ...]), and the same function run by each device on its own rows
PerDevice = Callable[[Callable], Callable]
_per_device: contextvars.ContextVar[PerDevice] = contextvars.ContextVar("per_device", default=lambda function: function)
_first_row: contextvars.ContextVar[Callable[[int], Array | int]] = contextvars.ContextVar(
    "first_row", default=lambda rows: 0
)


@dataclasses.dataclass(frozen=True)
class PositionParts:
    """The equal parts into which devices divide the positions of rows, and how a device reaches the others' parts."""

    count: int
    index: Callable[[], Array | int]  # of this device's part, from 0
    gather: Callable[[Array, int], Array]  # (this device's part of an array, the dimension of positions) -> the whole


_whole = PositionParts(1, lambda: 0, lambda x, _: x)
_positions: contextvars.ContextVar[PositionParts] = contextvars.ContextVar("positions", default=_whole)


@contextlib.contextmanager
def activation_constraint(constrain: Callable[[Array], Array]) -> Iterator[None]:
    """Within this context, models apply `constrain` to activations [B, ...] after embeddings, each layer and logits.

    Without constraints the compiler propagates shardings from the arguments. If parameters are split over the same
    devices as the rows of a batch, the compiler may split activations by features instead of by rows.
    """
    token = _constraint.set(constrain)
    try:
        yield
    finally:
        _constraint.reset(token)


def constrain_activations(x: Array) -> Array:
    """Returns `x` [B, ...] under the caller's sharding constraint, or `x` itself outside `activation_constraint`."""
    return _constraint.get()(x)


def unconstrained(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `function` without constraints on activations, for `per_device`: each device has its own rows."""

    def run(*arrays: Array) -> Array:
        with activation_constraint(lambda x: x):
            return function(*arrays)

    return run


@contextlib.contextmanager
def running_per_device(per_device: PerDevice) -> Iterator[None]:
    """Within this context, `per_device` is the caller's function: run.per_device.per_device on its mesh."""
    token = _per_device.set(per_device)
    try:
        yield
    finally:
        _per_device.reset(token)


def per_device(function: Callable) -> Callable:
    """Returns `function`(parameters, arrays [B, ...]) -> (sums, arrays [B, ...]), run by each device on its own rows.

    The sums are added over the devices, once. Outside `running_per_device`, returns `function` itself.
    """
    return _per_device.get()(function)


@contextlib.contextmanager
def part_of_rows(first_row: Callable[[int], Array | int]) -> Iterator[None]:
    """Within this context, the rows that models are traced for are a part of a batch's rows.

    first_row: the number of rows of the part -> the index of its first row in the batch.
    """
    token = _first_row.set(first_row)
    try:
        yield
    finally:
        _first_row.reset(token)


def row_keys(key: Array, rows: int) -> Array:
    """Returns a random key for each row, [rows], which depends on `key` and on the row's index in the batch.

    So random draws do not depend on how devices divide the rows, and no device draws for rows that it does not have.
    """
    first = _first_row.get()(rows)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(first + jnp.arange(rows))


@contextlib.contextmanager
def part_of_positions(parts: PositionParts) -> Iterator[None]:
    """Within this context, arrays [B, L, ...] that models are traced for have one of `parts` of each row's positions.

    A sum over positions is then a sum over this part, which the caller adds to those of the other parts.
    """
    token = _positions.set(parts)
    try:
        yield
    finally:
        _positions.reset(token)


def position_parts() -> int:
    """Returns the number of parts of `part_of_positions`; outside that context, 1."""
    return _positions.get().count


def first_position(length: int) -> Array | int:
    """Returns the index in its row of the first of this part's `length` positions; 0 outside `part_of_positions`."""
    parts = _positions.get()
    return parts.index() * length if parts.count > 1 else 0


def whole_rows(x: Array, axis: int = 1) -> Array:
    """Returns `x` with all positions of its rows along `axis`. Outside `part_of_positions`, `x` has them already."""
    return _positions.get().gather(x, axis)


def own_positions(x: Array, axis: int = 1) -> Array:
    """Returns this part's positions of `x`, which has all positions along `axis`: the inverse of `whole_rows`."""
    count = position_parts()
    if count == 1:
        return x
    length = x.shape[axis] // count
    return jax.lax.dynamic_slice_in_dim(x, first_position(length), length, axis)


def platform_of(device: jax.Device) -> str:
    """Returns "cuda" for an NVIDIA GPU of the Ampere generation or newer, which cuDNN's attention needs.

    For those of the Hopper generation returns "hopper": there, and not on Blackwell, cuDNN's attention has a backward
    pass for heads of more than 128 dimensions. For other devices returns jax's name of the platform: "cpu", "tpu", or
    "gpu" for other GPUs.
    """
    if device.platform != "gpu" or "cuda" not in getattr(device.client, "platform_version", ""):
        return device.platform
    generation = int(device.compute_capability.split(".")[0])
    return "hopper" if generation == 9 else "cuda" if generation >= 8 else "gpu"


@contextlib.contextmanager
def compiled_for(platform: str, over_devices: OverDevices, *, splits_outputs: bool = False) -> Iterator[None]:
    """Within this context, models are traced for `platform` (see `platform_of`), which may differ from this machine's.

    over_devices: runs a fused attention kernel on the caller's mesh, because the compiler cannot partition it.
    splits_outputs: whether kernels of linear maps are sharded by outputs, as in tensor parallelism.
    """
    token = _compiled_for.set((platform, over_devices, splits_outputs))
    try:
        yield
    finally:
        _compiled_for.reset(token)


def target_platform() -> str:
    """Returns the platform of `compiled_for`; outside that context, the platform of JAX's first device."""
    target = _compiled_for.get()
    return platform_of(jax.devices()[0]) if target is None else target[0]


def over_devices() -> OverDevices:
    """Returns the `over_devices` of `compiled_for`; outside that context, one that returns the function unchanged."""
    target = _compiled_for.get()
    return (lambda function, *_: function) if target is None else target[1]


def splits_outputs() -> bool:
    """Returns the `splits_outputs` of `compiled_for`; outside that context, True unless the platform is "cpu"."""
    target = _compiled_for.get()
    return target_platform() != "cpu" if target is None else target[2]
