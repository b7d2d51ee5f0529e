"""Draws iso-FLOP curves: the predicted loss over the size, at several budgets, with the runs."""

import os
from collections.abc import Sequence

import numpy as np

from contract.errors import ConfigError
from files.atomic import check_output, writing
from studies.pyplot import save_figure
from studies.scaling.fit import Fit
from studies.scaling.law import FLOPS_PER_PARAM_AND_TOKEN
from studies.scaling.report import optimum_fields
from studies.scaling.runs import Count, Point

_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the budgets between the smallest and the largest, on a log scale
_MARGIN = 2.0  # of the sizes that are drawn, beyond those of the runs
_SUFFIXES = (".svg", ".png", ".pdf")


def check_figure(path: str) -> None:
    """Raises ConfigError if `path` is not a figure that can be written, before the fit."""
    if os.path.splitext(path)[1] not in _SUFFIXES:
        raise ConfigError(f"--figure={path} must end in .svg, .png or .pdf")
    check_output(path, "--figure")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--figure needs matplotlib: pip install -e '.[plot]'") from None


def draw(points: Sequence[Point], fit: Fit, count: Count, path: str) -> None:
    """Writes the figure of `fit` and its `points` to the file `path`.

    Each curve is the loss over N at one budget C, with D = C / (6 N) tokens. The budgets are five between the smallest
    and the largest 6 N D of the runs. A curve is dashed where N or D is outside the runs'. A point is a
    configuration, the mean over its seeds, with a bar from the lowest to the highest; its color is that of its 6 N D.
    An optimum that the runs do not determine is not drawn.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm

    params, tokens, losses, budgets = _arrays(points)
    norm = LogNorm(budgets.min(), budgets.max())
    # Readable in print, by the color-blind and in gray; the lightest fifth is left out.
    colors = matplotlib.colors.ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.8, 256)))
    sizes = np.geomspace(params.min() / _MARGIN, params.max() * _MARGIN, 400)
    with matplotlib.rc_context({"svg.hashsalt": "cloze", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
        lowest = []
        for budget in np.quantile(np.geomspace(budgets.min(), budgets.max(), 1001), _QUANTILES):
            curve_tokens = budget / FLOPS_PER_PARAM_AND_TOKEN / sizes
            inside = (sizes >= params.min()) & (sizes <= params.max())
            inside &= (curve_tokens >= tokens.min()) & (curve_tokens <= tokens.max())
            curve, color = fit.law.loss(sizes, curve_tokens), colors(norm(budget))
            axes.plot(sizes, curve, color=color, linewidth=1, linestyle=(0, (4, 3)))
            axes.plot(sizes, np.where(inside, curve, np.nan), color=color, linewidth=2)
            optimum = optimum_fields(fit, budget)
            if optimum["tokens_per_param"]["determined"]:
                size, loss = optimum["params"], optimum["loss"]["value"]
                lowest.append(loss)
                axes.hlines(loss, size["low"], size["high"], color="black", linewidth=1)
                axes.plot(size["value"], loss, marker="*", color=color, markeredgecolor="black", markersize=11)
        _draw_points(axes, points, lambda budget: colors(norm(budget)))
        axes.set_xscale("log")
        axes.set_xlim(sizes[0], sizes[-1])
        low, high = min([losses.min(), *lowest]), losses.max()
        axes.set_ylim(low - 0.05 * (high - low), high + 0.3 * (high - low))  # above the runs: the legend
        axes.set_xlabel({"total": "parameters N", "non_embedding": "parameters N without embeddings"}[count])
        axes.set_ylabel("held-out loss (nats per token)")
        axes.grid(alpha=0.3)
        _add_legend(axes)
        mappable = matplotlib.cm.ScalarMappable(norm, colors)
        figure.colorbar(mappable, ax=axes, label="FLOPs, C = 6 N D")
        try:
            with writing(path, "--figure", binary=True) as file:
                save_figure(figure, file, path)
        finally:
            pyplot.close(figure)


def _draw_points(axes, points: Sequence[Point], color) -> None:
    """Draws each configuration, in the color of its budget."""
    by_configuration: dict[str, list[Point]] = {}
    for point in points:
        by_configuration.setdefault(point.configuration, []).append(point)
    for runs in by_configuration.values():
        params, _, losses, budgets = _arrays(runs)
        mean, budget = losses.mean(), budgets.mean()
        if len(runs) > 1:
            axes.vlines(params[0], losses.min(), losses.max(), color=color(budget), linewidth=1)
        axes.plot(params[0], mean, "o", color=color(budget), markeredgecolor="black", markeredgewidth=0.6, markersize=6)


def _add_legend(axes) -> None:
    from matplotlib.lines import Line2D

    gray = {"color": "0.4"}
    black = gray | {"markeredgecolor": "black"}
    handles = [
        Line2D([], [], marker="o", linestyle="", **black, label="runs (bar: seeds)"),
        Line2D([], [], linewidth=2, **gray, label="law, within the runs' N and D"),
        Line2D([], [], linewidth=1, linestyle=(0, (4, 3)), **gray, label="law, extrapolated"),
        Line2D([], [], marker="*", markersize=10, linestyle="", **black, label="optimum (bar: 95% interval)"),
    ]
    axes.legend(handles=handles, fontsize=8, ncols=2, loc="upper center")


def _arrays(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns N, D, the losses and 6 N D of the points, float64 [n] each."""
    table = np.array([[point.params, point.tokens, point.loss] for point in points], np.float64).T
    return *table, FLOPS_PER_PARAM_AND_TOKEN * table[0] * table[1]
