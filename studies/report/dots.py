"""A figure of each measure: means with intervals, and the value of each seed."""

from studies.pyplot import COLOURS, import_pyplot, to_svg
from studies.report.analysis import Analysis


def draw_dots(analysis: Analysis, baseline: str, name: str) -> str:
    """Returns the SVG of the measure's means, intervals and seeds, one row a variant, or "" without values.

    name: of the figure.
    """
    rows = list(analysis.summaries)
    if not any(summary.mean is not None for summary in analysis.summaries.values()):
        return ""
    pyplot = import_pyplot("train.ablate --report")
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(figsize=(7.2, 1.0 + 0.32 * len(rows)), layout="constrained")
        mean = analysis.summaries[baseline].mean
        if mean is not None and not analysis.is_own:
            axes.axvline(mean, color=COLOURS[2], linewidth=1, linestyle="--", zorder=1)
        for row, variant in enumerate(rows):
            summary = analysis.summaries[variant]
            seeds = list(analysis.values[variant].values())
            axes.plot(seeds, [row + 0.28] * len(seeds), "o", markersize=3.5, markerfacecolor="none", color="0.35")
            if summary.low is not None:
                axes.plot([summary.low, summary.high], [row, row], color=COLOURS[1], linewidth=1.6, zorder=3)
            if summary.mean is not None:
                is_best = variant == analysis.best
                axes.plot(
                    *(summary.mean, row),
                    marker="D" if is_best else "o",
                    markersize=7.5 if is_best else 6,
                    color=COLOURS[1],
                    markeredgecolor="black",
                    zorder=4,
                )
        axes.set_yticks(range(len(rows)), [f"{row} (baseline)" if row == baseline else row for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(f"{analysis.measure} ({analysis.better} is better)")
        axes.grid(alpha=0.25)
        try:
            return to_svg(figure, name)
        finally:
            pyplot.close(figure)


def caption(analysis: Analysis, baseline: str) -> str:
    """Returns the caption of the figure."""
    line = "" if analysis.is_own else f" The dashed line is the mean of the baseline `{baseline}`."
    best = "" if analysis.best is None else " The diamond is the best mean."
    if best and analysis.seeds_differ:
        best = " The diamond is the best variant on common seeds."
    return (
        f"`{analysis.measure}`: means over seeds with 95% intervals (filled) and, below them, the values of the seeds "
        "(hollow)."
        f"{best}{line}"
    )
