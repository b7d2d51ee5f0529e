"""How the caller of a model places it on devices: the sharding of activations, and the devices that it is traced for.

Models name no mesh axis: they read the `Placement` of the context that they are traced in.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

GPUS = ("cuda", "hopper", "gpu")  # platforms, as of `platform_of`

# (function, dimension names of each argument such as "BHQK", those of the result) -> `function` for whole arrays, run
# by each device on its own rows (B) and heads (H of queries, G of keys and values).
OverDevices = Callable[[Callable[..., Array], Sequence[str], str], Callable[..., Array]]


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a model. The default is one device, of the platform of JAX's first device.

    Without `constrain` the compiler propagates shardings from the arguments. If parameters are split over the same
    devices as the rows of a batch, it may then split activations by features instead of by rows.
    """

    # Applied to activations [B, ...] after embeddings, each layer and logits.
    constrain: Callable[[Array], Array] = lambda x: x
    # Maps a function (parameters, arrays [B, ...]) -> (sums, arrays [B, ...]) to one that each device runs on its own
    # rows; the sums are added over the devices once (run.sharding.per_device).
    per_device: Callable[[Callable], Callable] = lambda function: function
    # Runs a fused attention kernel on the caller's mesh, because the compiler cannot partition it.
    over_devices: OverDevices = lambda function, *_: function
    # The number of rows that the model is traced for -> the index in the batch of the first of them.
    first_row: Callable[[int], Array | int] = lambda rows: 0
    platform: str = ""  # as of `platform_of`, possibly not this machine's; "": that of JAX's first device
    # Whether kernels of linear maps are sharded, by inputs or by outputs. None: unless on a CPU.
    splits_kernels: bool | None = None


_placement = contextvars.ContextVar("placement", default=Placement())  # noqa: B039  it is frozen


def placement() -> Placement:
    """Returns the placement of the context."""
    return _placement.get()


@contextlib.contextmanager
def placed(**fields: Any) -> Iterator[None]:
    """Within this context, models are traced with these fields of Placement."""
    token = _placement.set(dataclasses.replace(placement(), **fields))
    try:
        yield
    finally:
        _placement.reset(token)


def constrain_activations(x: Array) -> Array:
    """Returns `x` [B, ...] under the caller's sharding constraint."""
    return placement().constrain(x)


def row_keys(key: Array, rows: int) -> Array:
    """Returns a random key for each row, [rows], which depends on `key` and on the row's index in the batch.

    So random draws do not depend on how devices divide the rows, and no device draws for rows that it does not have.
    """
    first = placement().first_row(rows)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(first + jnp.arange(rows))


def target_platform() -> str:
    """Returns the platform that models are traced for (`platform_of`)."""
    return placement().platform or platform_of(jax.devices()[0])


def splits_kernels() -> bool:
    """Returns whether kernels of linear maps are sharded."""
    splits = placement().splits_kernels
    return target_platform() != "cpu" if splits is None else splits


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
