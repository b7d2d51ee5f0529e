"""Numbers and lists of names as text, with as many decimals as the noise leaves."""

import math
import statistics
from collections.abc import Sequence

from studies.report.analysis import Analysis
from studies.report.statistics import ALPHA, Comparison, Summary

_MOST_DECIMALS = 6  # smaller numbers are written with an exponent


def decimals_of(analysis: Analysis) -> int:
    """Returns the decimals that show the spread of a value between seeds with two digits; without one, four digits."""
    spreads = [
        statistics.stdev(found.values())
        for variant, found in analysis.values.items()
        if analysis.summaries[variant].low is not None
    ]
    if spreads:
        digits = 1 - _magnitude(statistics.median(spreads))
    else:
        largest = max((abs(value) for found in analysis.values.values() for value in found.values()), default=0.0)
        digits = 3 - _magnitude(largest) if largest else 0
    return max(digits, 0)


def decimals_of_difference(comparison: Comparison, otherwise: int) -> int:
    """Returns the decimals that show the spread of the paired differences with two digits; `otherwise` without one."""
    if not comparison.spread:
        return otherwise
    return max(0, 1 - _magnitude(comparison.spread))


def size(comparison: Comparison) -> str:
    """Returns how large a difference is, as "0.50": to one digit of its spread, and to two digits of its own."""
    difference = abs(comparison.difference or 0.0)
    return number(difference, max(decimals_of_difference(comparison, 1) - 1, _decimals_for(difference, 2)))


def significant(value: float, digits: int) -> str:
    """Returns `value` with so many significant digits, and with all digits before the point."""
    return number(value, _decimals_for(value, digits))


def _decimals_for(value: float, digits: int) -> int:
    return max(0, digits - 1 - _magnitude(value)) if value else 0


def _magnitude(value: float) -> int:
    """Returns the power of ten of the first digit; 0.000999... that rounding made of 0.001 counts as 0.001."""
    return math.floor(math.log10(abs(value)) + 1e-9)


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns `value` with thousands separators and a true minus; "–" for None. sign: write "+" too."""
    if value is None:
        return "–"
    plus = "+" if sign else ""
    text = f"{value:{plus},.{decimals}f}"
    if decimals > _MOST_DECIMALS and 0 < abs(value) < 10.0 ** (1 - _MOST_DECIMALS):
        text = f"{value:{plus}.3g}"
    elif float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def interval(low: float | None, high: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns "[low, high]", or "" without an interval."""
    if low is None or high is None:
        return ""
    return f"[{number(low, decimals, sign=sign)}, {number(high, decimals, sign=sign)}]"


def with_interval(result: Summary | Comparison, decimals: int) -> str:
    """Returns the mean, or the difference, with its interval. decimals: of a mean; a difference has its own."""
    is_mean = isinstance(result, Summary)
    if not is_mean:
        decimals = decimals_of_difference(result, decimals)
    value = number(result.mean if is_mean else result.difference, decimals, sign=not is_mean)
    return f"{value} {interval(result.low, result.high, decimals, sign=not is_mean)}".rstrip()


def probability(p: float | None) -> str:
    """Returns a p value with three decimals. One that is below ALPHA does not look equal to it."""
    if p is None:
        return "–"
    if p < 0.001:
        return "< 0.001"
    text = f"{p:.3f}"
    return f"< {ALPHA}" if p < ALPHA <= float(text) else text


def large(value: float) -> str:
    """Returns a count with three digits and a unit: 1M; 3.2e15 above the billions."""
    value = float(f"{value:.3g}")  # 999,936 is 1M, not 1000k
    if value >= 1e12:
        return f"{value:.3g}".replace("e+", "e")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def listed(names: Sequence[str], most: int = 0) -> str:
    """Returns "a, b and c"; more names than `most`, if given, are counted."""
    if most and len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} others"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
