"""Where activations live on a mesh, as whoever runs a model wants it: models name no axis, they only ask."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

from jax import Array

_place: contextvars.ContextVar[Callable[[Array], Array]] = contextvars.ContextVar("place", default=lambda x: x)


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
