"""The range of a number field, which its annotation declares: `rate: Annotated[float, "[0, 1)"]`.

A range is an interval: [ and ] include a bound, ( and ) exclude it. A bound is a number, a power such as 2**31, or inf.
" or " joins intervals, as in "[-1, -1] or [1, 8]". NaN is in no range, and infinity only in one that includes it.

Ranges are text, so that a package that imports nothing of this project (models) can declare them.
"""

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from contract.errors import ConfigError

_BOUND = r"(-?inf|-?\d+(?:\*\*\d+|\.\d+)?(?:e-?\d+)?)"
_INTERVAL = re.compile(rf"([\[(]){_BOUND}, {_BOUND}([\])])")


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers between two bounds, each of which may be included."""

    low: float  # an int if it is declared as one
    high: float
    includes_low: bool
    includes_high: bool
    text: str  # as declared

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.includes_low else value > self.low
        return above and (value <= self.high if self.includes_high else value < self.high)

    def in_words(self, of_integers: bool) -> str:
        """Returns the interval such that it can follow "must be"."""
        if self.high == float("inf"):
            above = f"{self.low} or more" if self.includes_low else f"above {self.low}"
            return above if of_integers or self.includes_high else f"{above}{',' * self.includes_low} and finite"
        if not of_integers:
            return f"in {self.text}"
        first, last = int(self.low) + (not self.includes_low), int(self.high) - (not self.includes_high)
        return f"from {first} to {last}" if first < last else f"{first}"


@functools.cache
def intervals_of(text: str) -> tuple[Interval, ...]:
    """Returns the intervals of a declared range. Raises ValueError for text that is none."""
    found = []
    for part in text.split(" or "):
        match = _INTERVAL.fullmatch(part)
        if not match:
            raise ValueError(f"{part!r} is not an interval such as '[0, 1)'")
        low, high = _number(match[2]), _number(match[3])
        if low > high:
            raise ValueError(f"{part!r} has its bounds in the wrong order")
        found.append(Interval(low, high, match[1] == "[", match[4] == "]", part))
    return tuple(found)


def range_in_words(hint: Any) -> str:
    """Returns the range that an annotation declares, in words: "in [0, 1)", "from 1 to 64"; "" for none.

    hint: with its extras (typing.get_type_hints with include_extras=True), such as Annotated[int, "[1, 64]"].
    """
    text = _declared(hint)
    of_integers = typing.get_args(hint)[:1] == (int,)
    return ", or ".join(interval.in_words(of_integers) for interval in intervals_of(text)) if text else ""


def check_ranges(cls: type, values: Mapping[str, Any], field: str) -> None:
    """Raises ConfigError for a number outside the range that the annotation of its field declares.

    Args:
      cls: a dataclass.
      values: the values of its fields, of the declared types.
      field: the config section of these fields, for messages; "" for none.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in (declared.name for declared in dataclasses.fields(cls)):
        hint, value = hints[name], values[name]
        is_tuple = typing.get_origin(hint) is tuple
        item = typing.get_args(hint)[0] if is_tuple else hint
        text = _declared(item)
        if not text:
            continue
        for number in value if is_tuple else (value,):
            if not any(number in interval for interval in intervals_of(text)):
                where = f"{field}.{name}" if field else name
                each = " in each place" if is_tuple else ""
                raise ConfigError(f"{where}={value!r} must be {range_in_words(item)}{each}")


def _declared(hint: Any) -> str:
    return hint.__metadata__[0] if typing.get_origin(hint) is Annotated else ""


def _number(text: str) -> float:
    base, _, power = text.partition("**")
    if power:
        return -(int(base[1:]) ** int(power)) if base.startswith("-") else int(base) ** int(power)
    return int(text) if text.lstrip("-").isdigit() else float(text)
