"""Numbers and lists of names as text, with as many decimals as the noise leaves."""

import math
import statistics
from collections.abc import Sequence

from train.ablate.report.analysis import Analysis
from train.ablate.report.statistics import Comparison, Summary

_MOST_DECIMALS = 6


def decimals_of(analysis: Analysis) -> int:
    """Returns the decimals that show the spread between seeds with two digits; without one, values with four."""
    spreads = [
        statistics.stdev(found.values())
        for variant, found in analysis.values.items()
        if analysis.summaries[variant].low is not None
    ]
    if spreads:
        digits = 1 - math.floor(math.log10(statistics.median(spreads)))
    else:
        largest = max((abs(value) for found in analysis.values.values() for value in found.values()), default=0.0)
        digits = 3 - math.floor(math.log10(largest)) if largest else 0
    return min(max(digits, 0), _MOST_DECIMALS)


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns `value` with thousands separators and a true minus; "–" for None. sign: write "+" too."""
    if value is None:
        return "–"
    text = f"{value:{'+' if sign else ''},.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def interval(low: float | None, high: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns "[low, high]", or "" without an interval."""
    if low is None or high is None:
        return ""
    return f"[{number(low, decimals, sign=sign)}, {number(high, decimals, sign=sign)}]"


def with_interval(result: Summary | Comparison, decimals: int) -> str:
    """Returns the mean, or the difference, with its interval."""
    is_mean = isinstance(result, Summary)
    value = number(result.mean if is_mean else result.difference, decimals, sign=not is_mean)
    return f"{value} {interval(result.low, result.high, decimals, sign=not is_mean)}".rstrip()


def probability(p: float | None) -> str:
    """Returns a p value with three decimals."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def large(value: float) -> str:
    """Returns a count with three digits and a unit: 1M; 3.2e15 above the billions."""
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


def plural(count: int, name: str) -> str:
    """Returns "1 run" or "2 runs"."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
