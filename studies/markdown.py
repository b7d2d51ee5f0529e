"""Text and numbers as Markdown."""

import math
import re
from collections.abc import Mapping
from typing import Any

from studies.statistics import ALPHA, Comparison, Summary

NONE = "–"
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", "~": "&#126;", "$": "&#36;"})


def text(plain: str) -> str:
    """Returns Markdown that shows `plain` on one line, also in a table: only `code` is markup.

    Of the characters with a meaning on GitHub, Python-Markdown has no backslash escape for four: these are entities.
    """
    parts = re.split(r"(`[^`]+`)", " ".join(plain.split()))
    parts[::2] = [re.sub(r"[\\*_#\[\]`]", r"\\\g<0>", part).translate(_ENTITIES) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|")


def code(plain: str) -> str:
    """Returns a block of code that shows `plain` as it is."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}\n{plain}\n{fence}"


def fields_text(fields: Mapping[str, Any]) -> str:
    """Returns dotted fields with their values, as code."""
    return ", ".join(f"`{field}={value}`" for field, value in fields.items())


def decimals_for(value: float, digits: int) -> int:
    """Returns the decimals that show `value` with so many digits; 0.000999... that rounding made counts as 0.001."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)) + 1e-9)) if value else 0


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns `value` with thousands separators and a true minus; "–" for None. sign: write "+" too."""
    if value is None:
        return NONE
    plus = "+" if sign else ""
    shown = f"{value:{plus},.{decimals}f}" if decimals <= 6 else f"{value:{plus}.3g}"
    return shown.replace("-", "−")


def with_interval(found: Summary | Comparison, decimals: int = 0) -> str:
    """Returns a mean, or a difference with its sign, with its interval, if any, such as "1.20 [1.10, 1.30]".

    decimals: of a mean; a difference has those that show half its interval with two digits.
    """
    if is_difference := isinstance(found, Comparison):
        half = (found.high - found.low) / 2 if found.low is not None and found.high is not None else found.mean
        decimals = decimals_for(half or 0.0, 2)
    mean, *ends = (number(value, decimals, sign=is_difference) for value in (found.mean, found.low, found.high))
    return mean if found.low is None else f"{mean} [{', '.join(ends)}]"


def probability(p: float | None) -> str:
    """Returns a p value with three decimals. One that is below ALPHA does not look equal to it."""
    if p is None:
        return NONE
    limit = next((limit for limit in (0.001, ALPHA) if p < limit <= max(round(p, 3), 0.001)), None)
    return f"{p:.3f}" if limit is None else f"< {limit}"


def large(value: float) -> str:
    """Returns a number with three or four digits, such as "2.78B", "1M", "3.2e15" or "0.3478"."""
    value = float(f"{value:.3g}") if value >= 1e3 else value  # 999,936 is 1M, not 1000k
    for suffix, unit, smallest in (("T", 1e12, 1e12), ("B", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if smallest <= value < 1e15:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.4g}".replace("e+", "e")
