"""Bad values of every field of a config, made from the declarations of the fields."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from contract.ranges import intervals_of

HUGE = 10**30


def bad_values(hint: Any) -> Iterator[tuple[str, Any]]:
    """Yields (kind, value) for values that a field with this annotation must refuse.

    hint: with its extras, as typing.get_type_hints(..., include_extras=True) returns it.
    """
    plain = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    for kind, value in _of_other_types(plain):
        yield kind, value
    if plain in (int, float):
        intervals = intervals_of(hint.__metadata__[0])
        numbers = {"zero": 0, "negative": -1, "huge": HUGE, "negative huge": -HUGE, "too long to print": 10**5000}
        if plain is float:
            numbers |= {"NaN": math.nan, "infinity": math.inf, "negative infinity": -math.inf, "above 1": 1.5}
        for interval in intervals:
            for name, bound, included in (
                ("low", interval.low, interval.includes_low),
                ("high", interval.high, interval.includes_high),
            ):
                if math.isfinite(bound) and not included:
                    numbers[f"the excluded {name} bound"] = plain(bound)
                elif math.isfinite(bound) and plain is int:
                    numbers[f"beyond the {name} bound"] = bound + (1 if name == "high" else -1)
        for kind, number in numbers.items():
            value = number if plain is int or abs(number) > 1e300 else float(number)
            if not any(value in interval for interval in intervals):
                yield kind, value
    elif typing.get_origin(plain) is Literal:
        choices = typing.get_args(plain)
        yield from (("unknown name", "no such name"), ("in a list", [choices[0]]))
        if "" not in choices:
            yield "empty string", ""
    elif typing.get_origin(plain) is tuple:
        for kind, value in bad_values(typing.get_args(plain)[0]):
            yield f"{kind} in a tuple", (value,)


def _of_other_types(plain: Any) -> Iterator[tuple[str, Any]]:
    """Yields values of types that are not `plain`."""
    candidates = {
        "None": None,
        "string": "1",
        "empty string": "",
        "bytes": b"1",
        "boolean": True,
        "integer": 3,
        "number": 0.5,
        "tuple": (1,),
        "list": ["a"],
        "group": {"a": 1},
        "function": len,
    }
    accepted = {
        int: {"integer"},
        float: {"integer", "number"},
        bool: {"boolean"},
        str: {"string", "empty string"},
    }.get(plain, {"string", "empty string"} if typing.get_origin(plain) is Literal else {"tuple", "list"})
    yield from ((kind, value) for kind, value in candidates.items() if kind not in accepted)


def with_field(config: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Returns `config` with another value of the dotted field `name`."""
    first, _, rest = name.partition(".")
    return config | {first: with_field(config[first], rest, value) if rest else value}


def hints_of(cls: type, section: str, omitted: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns dotted field -> annotation of the fields of dataclass `cls`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    prefix = f"{section}." if section else ""
    return {prefix + f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name not in omitted}
