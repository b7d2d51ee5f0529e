"""What a model is traced for: the devices, and where activations live on them. Models name no axis, they only ask."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import jax
from jax import Array

# (function, names of its arguments' dimensions such as "BHQK", those of its result) -> the function, of whole arrays,
# run by each device on its own rows (B) and heads (H of queries, G of keys).
OverDevices = Callable[[Callable[..., Array], Sequence[str], str], Callable[..., Array]]

_place: contextvars.ContextVar[Callable[[Array], Array]] = contextvars.ContextVar("place", default=lambda x: x)
_compiled_for: contextvars.ContextVar[tuple[str, OverDevices] | None] = contextvars.ContextVar(
    "compiled_for", default=None
)


@contextlib.contextmanager
def placing(place: Callable[[Array], Array]) -> Iterator[None]:
    """While a model is traced in here, `place` is called on its activations, [B, ...], between layers and at its ends.

    The compiler propagates shardings from what it knows. Where parameters are split over the devices that rows are
    split over, it knows two things that do not agree, and may choose to split the states by their features.
    """
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def placed(x: Array) -> Array:
    """`x`, [B, ...], where the caller of the model wants it."""
    return _place.get()(x)


def platform_of(device: jax.Device) -> str:
    """ "cuda" for an NVIDIA GPU that cuDNN's kernel runs on, Ampere or newer; else jax's name: "cpu", "tpu", "gpu"."""
    version = getattr(device.client, "platform_version", "") if device.platform == "gpu" else ""
    return "cuda" if "cuda" in version and int(device.compute_capability.split(".")[0]) >= 8 else device.platform


@contextlib.contextmanager
def compiled_for(platform: str, over_devices: OverDevices) -> Iterator[None]:
    """While a model is traced in here it is for `platform` (see `platform_of`), which need not be this machine's.

    `over_devices`: the compiler cannot split a fused kernel over the devices of a mesh, so whoever has a mesh does.
    """
    token = _compiled_for.set((platform, over_devices))
    try:
        yield
    finally:
        _compiled_for.reset(token)


def target_platform() -> str:
    """The platform that is traced for; outside of `compiled_for`, that of JAX's first device."""
    target = _compiled_for.get()
    return platform_of(jax.devices()[0]) if target is None else target[0]


def over_devices() -> OverDevices:
    """How a fused kernel is run over the devices that are traced for; outside of `compiled_for`, on one."""
    target = _compiled_for.get()
    return (lambda function, *_: function) if target is None else target[1]
