"""Figures of the held-out loss over training, one for tokens and one for FLOPs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.pyplot import COLOURS, import_pyplot, to_svg
from studies.report.comparable import objectives_differ
from studies.report.numbers import large
from studies.results import Curve, Results

AXES = {"raw_tokens": "raw tokens of text", "flops": "model FLOPs"}
_MOST_IN_ONE = 6  # more variants get a panel each
_STYLES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (8, 2)), (0, (1, 2)))
_MARKERS = "os^DvPX"
_OTHERS = "0.72"  # grey of the variants behind a panel's own
_EARLY = 0.5  # of the training: its losses do not set the range of the vertical axis


@dataclasses.dataclass(frozen=True)
class _Line:
    """A variant's curves: of each seed, and their mean where all seeds have a loss."""

    variant: str
    seeds: Sequence[tuple[np.ndarray, np.ndarray]]
    places: np.ndarray
    mean: np.ndarray


def draw_curves(results: Results, x: str, name: str) -> str:
    """Returns the SVG of the held-out loss over `x`, one of AXES, or "" if no run has a curve.

    The mean over seeds is a thick line and each seed a thin one. name: of the figure.
    """
    lines = [_line(variant, results, x) for variant in results.study.variants]
    drawn = [line for line in lines if line.seeds and line.places.size]
    if not drawn:
        return ""
    pyplot = import_pyplot("train.ablate --report")
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        if len(drawn) <= _MOST_IN_ONE:
            figure = _one_panel(pyplot, drawn, AXES[x])
        else:
            figure = _panels(pyplot, drawn, results.study.baseline, AXES[x])
        try:
            return to_svg(figure, name)
        finally:
            pyplot.close(figure)


def _line(variant: str, results: Results, x: str) -> _Line:
    seeds = [_points(outcome.curve, x) for outcome in results.outcomes if outcome.variant == variant]
    seeds = [(places, losses) for places, losses in seeds if places.size]
    if not seeds:
        return _Line(variant, (), np.array([]), np.array([]))
    grid = np.unique(np.concatenate([places for places, _ in seeds]))
    common = (grid >= max(places[0] for places, _ in seeds)) & (grid <= min(places[-1] for places, _ in seeds))
    grid = grid[common]
    mean = np.mean([np.interp(grid, places, losses) for places, losses in seeds], axis=0)
    return _Line(variant, seeds, grid, mean)


def _points(curve: Curve, x: str) -> tuple[np.ndarray, np.ndarray]:
    places, losses = np.asarray(getattr(curve, x), float), np.asarray(curve.loss, float)
    finite = np.isfinite(losses)
    return places[finite], losses[finite]


def _one_panel(pyplot: Any, lines: Sequence[_Line], label: str) -> Any:
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    _set_range(axes, lines)
    for place, line in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        for places, losses in line.seeds:
            axes.plot(places, losses, color=colour, linewidth=0.6, alpha=0.5)
        marked = max(1, line.places.size // 8)
        axes.plot(
            *(line.places, line.mean),
            color=colour,
            linewidth=1.8,
            linestyle=_STYLES[place],
            marker=_MARKERS[place],
            markersize=4.5,
            markevery=(place % marked, marked),
        )
    _label_ends(axes, lines)
    axes.xaxis.set_major_formatter(_format_total)
    axes.set_xlabel(label)
    axes.set_ylabel("held-out loss")
    axes.grid(alpha=0.25)
    return figure


def _format_total(value: float, _: int) -> str:
    return large(value)


def _label_ends(axes: Any, lines: Sequence[_Line]) -> None:
    """Writes the variant's name at the right end of each line, the names as far apart as they are high."""
    low, high = axes.get_ylim()
    order = sorted(range(len(lines)), key=lambda place: lines[place].mean[-1])
    heights = spread([(lines[place].mean[-1] - low) / (high - low) for place in order], 0.055)
    right = axes.get_xlim()[1]
    for place, height in zip(order, heights, strict=True):
        line, colour = lines[place], COLOURS[place % len(COLOURS)]
        axes.annotate(
            line.variant,
            xy=(line.places[-1], line.mean[-1]),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3},
        )
    axes.set_xlim(right=right)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Returns ascending heights moved as little as needed to be `gap` apart, within 0 and 1 if they fit."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else max(height, 0.0))
    limit = max(1.0, gap * (len(moved) - 1))
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], limit)
        limit = moved[place] - gap
    return moved


def _panels(pyplot: Any, lines: Sequence[_Line], baseline: str, label: str) -> Any:
    """Draws a panel for each variant, with the baseline and, in grey, all others."""
    columns = 4
    rows = -(-len(lines) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(8.4, 0.6 + 1.75 * rows), sharex=True, sharey=True, layout="constrained"
    )
    panels = grid.flat
    for axes, line in zip(panels, lines, strict=False):
        for other in lines:
            is_baseline = other.variant == baseline
            style = {"color": COLOURS[2], "linestyle": "--", "linewidth": 1.3, "zorder": 2}
            grey = {"color": _OTHERS, "linewidth": 0.6, "zorder": 1}
            axes.plot(other.places, other.mean, **(style if is_baseline else grey))
        for places, losses in line.seeds:
            axes.plot(places, losses, color=COLOURS[1], linewidth=0.5, alpha=0.6, zorder=3)
        axes.plot(line.places, line.mean, color=COLOURS[1], linewidth=1.8, zorder=4)
        axes.set_title(line.variant, fontsize=9, loc="left", fontweight="bold")
        axes.grid(alpha=0.2)
        axes.xaxis.set_major_locator(pyplot.MaxNLocator(3))
        axes.xaxis.set_major_formatter(_format_total)
    _set_range(grid.flat[0], lines)
    for axes in list(grid.flat)[len(lines) :]:
        axes.set_visible(False)
    for column in range(columns):  # tick labels where the panel below is empty
        grid.flat[column + columns * ((len(lines) - 1 - column) // columns)].tick_params(labelbottom=True)
    figure.supxlabel(label, fontsize=9)
    figure.supylabel("held-out loss", fontsize=9)
    return figure


def _set_range(axes: Any, lines: Sequence[_Line]) -> None:
    """Sets the vertical range to the losses of all seeds after the beginning of the training."""
    late = [losses[places >= _EARLY * places[-1]] for line in lines for places, losses in line.seeds if places.size]
    values = np.concatenate(late)
    margin = 0.05 * (np.ptp(values) or abs(values[0]) or 1.0)
    axes.set_ylim(values.min() - margin, values.max() + margin)


def caption(results: Results, x: str) -> str:
    """Returns the caption of the figure over `x`."""
    drawn = {outcome.variant for outcome in results.outcomes if len(outcome.curve.loss)}
    own = (
        " Each variant is scored on its own objective, so heights do not compare between objectives."
        if objectives_differ(results.study, drawn)
        else ""
    )
    panels = (
        " In each panel the variant of the title is the thick solid line (blue), the baseline is dashed (orange), and "
        "all other variants are thin (grey)."
        if len(drawn) > _MOST_IN_ONE
        else ""
    )
    return (
        f"Held-out loss over {AXES[x]}. Thick lines are means over seeds, thin lines are seeds. Losses in the first "
        f"half of the training may be above the frame.{panels}{own}"
    )
