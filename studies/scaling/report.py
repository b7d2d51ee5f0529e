"""What a fit says: the coefficients and the optimum at a budget with intervals, warnings, and the table of them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from studies.scaling.fit import CONFIDENCE, Fit, interval
from studies.scaling.law import CHINCHILLA_TOKENS_PER_PARAM, FLOPS_PER_PARAM_AND_TOKEN
from studies.scaling.runs import Point

# A quantity is determined if the ends of its interval differ by less than this factor. A and B are the heights of the
# law at one parameter and one token, far outside any data, so a small change of alpha or beta is a large one of theirs.
_MAX_RATIO = {"E": 2.0, "A": 100.0, "B": 100.0, "alpha": 3.0, "beta": 3.0}
# N and D are determined where D / N = C / (6 N^2) is.
_MAX_OPTIMUM_RATIO = {"params": 10.0**0.5, "tokens": 10.0**0.5, "tokens_per_param": 10.0, "loss": 2.0}
_FLOPS_SPREAD = 1.5  # ratio of counted FLOPs to 6 N D, largest over smallest, from which on there is a warning
_COEFFICIENTS = ("E", "A", "alpha", "B", "beta")
Quantity = dict[str, Any]  # value, low, high, determined; None: unbounded


def fit_fields(points: Sequence[Point], fit: Fit, flops: float | None) -> dict[str, Any]:
    """Returns the fields of the JSON line of a fit.

    flops: the budget of the optimum; None: the largest 6 N D of the runs.
    """
    largest = max(map(_six_nd, points))
    flops = flops or largest
    return {
        "runs": len(points),
        "configurations": len({point.configuration for point in points}),
        "params_range": [min(point.params for point in points), max(point.params for point in points)],
        "tokens_range": [min(point.tokens for point in points), max(point.tokens for point in points)],
        "largest_run_flops": largest,
        "counted_flops_over_6nd": [f(point.flops / _six_nd(point) for point in points) for f in (min, max)],
        "residual": fit.residual,
        "confidence": CONFIDENCE,
    } | {
        **_coefficients(fit),
        "optimum": optimum_fields(fit, flops),
    }


def optimum_fields(fit: Fit, flops: float) -> dict[str, Any]:
    """Returns the size, the tokens and the tokens per parameter of the lowest loss at `flops`, with intervals."""
    optima = [law.optimum(flops) for law in fit.resampled]
    estimate = fit.law.optimum(flops)

    def quantity(name: str) -> Quantity:
        resampled = [math.nan if optimum is None else getattr(optimum, name) for optimum in optima]
        value = None if estimate is None else getattr(estimate, name)
        return _quantity(value, *interval(resampled), _MAX_OPTIMUM_RATIO[name])

    return {
        "flops": flops,
        **{name: quantity(name) for name in _MAX_OPTIMUM_RATIO},
        "chinchilla_tokens_per_param": CHINCHILLA_TOKENS_PER_PARAM,
    }


def warnings_of(fields: dict[str, Any]) -> Iterator[str]:
    """Yields what a reader of the fit must know, one line each."""
    unknown = [name for name in _COEFFICIENTS if not fields[name]["determined"]]
    if unknown:
        yield f"the runs do not determine {', '.join(unknown)}: more sizes, token counts or seeds are needed"
    optimum = fields["optimum"]
    is_determined = optimum["tokens_per_param"]["determined"]
    if not is_determined:
        yield f"the runs do not determine the optimum at {optimum['flops']:.3g} FLOPs"
    if optimum["flops"] > 1.001 * fields["largest_run_flops"]:
        factor = optimum["flops"] / fields["largest_run_flops"]
        yield (
            f"extrapolation: {optimum['flops']:.3g} FLOPs are {factor:.3g} times those of the largest run "
            f"({fields['largest_run_flops']:.3g}), and the intervals assume that the law holds there"
        )
    outside = []
    for name in ("params", "tokens"):
        value, (low, high) = optimum[name]["value"], fields[f"{name}_range"]
        if is_determined and not low <= value <= high:
            outside.append(f"{value:.3g} {name} (runs: {low:.3g} to {high:.3g})")
    if outside:
        yield f"the optimum is outside the sizes and tokens of the runs: {', '.join(outside)}"
    low, high = fields["counted_flops_over_6nd"]
    if high / low > _FLOPS_SPREAD:
        yield (
            f"the counted FLOPs of the runs are {low:.2g} to {high:.2g} times {FLOPS_PER_PARAM_AND_TOKEN} N D, which "
            "the budgets here are: attention and embedding tables are a large part of small models"
        )


def fit_table(fields: dict[str, Any]) -> Table:
    """Returns the table of the coefficients and the optimum of `fit_fields`."""
    title = f"L(N, D) = E + A / N^alpha + B / D^beta, from {fields['runs']} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in ("", "estimate", f"{CONFIDENCE:.0%} interval"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in _COEFFICIENTS:
        table.add_row(name, *_cells(fields[name]))
    optimum = fields["optimum"]
    table.add_section()
    table.add_row(f"at {optimum['flops']:.3g} FLOPs", "", "")
    table.add_row("  parameters N", *_cells(optimum["params"]))
    table.add_row("  tokens D", *_cells(optimum["tokens"]))
    table.add_row(f"  D / N (Chinchilla: {CHINCHILLA_TOKENS_PER_PARAM:.0f})", *_cells(optimum["tokens_per_param"]))
    table.add_row("  loss", *_cells(optimum["loss"]))
    return table


def _six_nd(point: Point) -> float:
    return FLOPS_PER_PARAM_AND_TOKEN * point.params * point.tokens


def _coefficients(fit: Fit) -> dict[str, Quantity]:
    found = {}
    for name in _COEFFICIENTS:
        values = [getattr(law, name) for law in fit.resampled]
        found[name] = _quantity(getattr(fit.law, name), *interval(values), _MAX_RATIO[name])
    for factor, exponent in (("A", "alpha"), ("B", "beta")):  # a factor has a meaning only with its exponent
        found[factor]["determined"] &= found[exponent]["determined"]
    return found


def _quantity(value: float | None, low: float, high: float, max_ratio: float) -> Quantity:
    """Returns the fields of a quantity. JSON has no infinity: an end that is not finite is None."""
    return {
        "value": value,
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "determined": value is not None and low > 0 and high / low < max_ratio,
    }


def _cells(quantity: Quantity) -> tuple[str, str]:
    estimate = short(quantity["value"]) if quantity["determined"] else "not determined"
    low, high = ("unbounded" if end is None else short(end) for end in (quantity["low"], quantity["high"]))
    return estimate, f"{low} to {high}"


def short(value: float) -> str:
    """Returns a number as text of three or four digits, such as "2.78B", "1.33T" or "0.3478"."""
    for suffix, unit, smallest in (("T", 1e12, 1e12), ("B", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if smallest <= value < 1e15:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.4g}"
