"""Draws metrics of runs: python -m train.plot RUN [RUN ...] --out=FILE.svg [--metric=loss] [--split=eval] [--x=step]

RUN is the folder of a run. For a single run the metric of each denoiser, such as loss/r1, is drawn too. --x=examples,
raw_tokens, scored_tokens, flops or seconds draws over these totals instead of the step. The suffix of FILE selects the
format: .svg, .png or .pdf. Needs matplotlib: pip install -e '.[plot]'.
"""

import contextlib
import itertools
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from command.flags import parse_flags, run_command
from command.program import print_note, visible
from configs.studies.base import better_of
from contract.errors import ConfigError
from files.atomic import check_output, writing
from run.evaluation import heldout_windows
from run.restore import load_experiment
from studies.statistics import Values, summarize
from studies.study import RATES, TEXT_BY, describe_windows, scored_otherwise
from workdir.run_config import flatten
from workdir.workdir import Workdir

_FLAGS = flags.FlagValues()
_OUT = flags.DEFINE_string("out", None, "File to write: .svg, .png or .pdf.", _FLAGS, required=True)
_METRIC = flags.DEFINE_string("metric", "loss", "A metric of metrics.jsonl.", _FLAGS)
_SPLIT = flags.DEFINE_enum("split", "eval", ["eval", "train"], "Held-out or training metrics.", _FLAGS)
_AXES = {
    "step": "step",
    "examples": "examples",
    "raw_tokens": "raw tokens",
    "scored_tokens": "scored tokens",
    "flops": "model FLOPs",
    "seconds": "seconds of training",
}
_X = flags.DEFINE_enum("x", "step", list(_AXES), f"Horizontal axis: {', '.join(_AXES)}.", _FLAGS)
# Okabe and Ito (2008), which colour-blind readers distinguish, without yellow, which is too light for lines on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_OF_TEXT = (TEXT_BY, RATES, re.compile(r"train\.eval_windows"))
_LABEL = 90  # the most characters of a name in a figure
_SUFFIXES = (".svg", ".png", ".pdf")

Curves = dict[str, tuple[list[float], list[float]]]  # name -> values of the horizontal axis, values


def main() -> None:
    """Reads the command line and writes the figure."""
    runs = parse_flags(_FLAGS, __doc__, positional=True)
    if not runs:
        raise ConfigError("RUN is missing: name the folder of a run, as in python -m train.plot runs/ul2 --out=a.svg")
    plot(runs, _OUT.value, metric=_METRIC.value, split=_SPLIT.value, x=_X.value)
    print(f"written to {_OUT.value}")


def plot(runs: Sequence[str], out: str, *, metric: str, split: str, x: str = "step") -> None:
    """Writes a figure of `metric` of each run over `x` to the file `out`.

    runs: folders. split: "eval" or "train". x: "step", or a total since the first step.

    Raises ConfigError for a folder without metrics, an unknown metric and a file that cannot be written, for held-out
    metrics of runs that hold out different text, and if matplotlib is not installed.
    """
    check_figure(out)
    if len(runs) == 1:
        curves = read_curves(runs[0], metric, split, x=x, with_denoisers=True)
    else:
        curves = {run: read_curves(run, metric, split, x=x)[metric] for run in runs}
    if split == "eval" and len(runs) > 1:
        _check_same_heldout(runs)
        _note_other_tokens(runs, metric)
    with drawing(out, figsize=(6.4, 4.0)) as axes:
        for name, (places, values) in curves.items():
            is_total = name in (metric, *runs)
            axes.plot(places, values, linewidth=2 if is_total else 1, marker="o", markersize=3)
        axes.set_xlabel(_AXES[x])
        axes.set_ylabel(f"{'held-out' if split == 'eval' else 'training'} {_shown(metric)}")
        axes.grid(alpha=0.3)
        axes.legend(axes.get_lines(), [*map(_shown, curves)])


def import_pyplot() -> Any:
    """Returns matplotlib.pyplot, which draws into files. Raises ConfigError if matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("a figure needs matplotlib: pip install -e '.[plot]'") from None
    return pyplot


@contextlib.contextmanager
def drawing(path: str, columns: int = 1, **options: Any) -> Iterator[Any]:
    """Yields the axes of a figure, and writes it to `path`, the value of --out: equal files for equal figures.

    columns: of axes; more than one: an array of them. options: of pyplot.subplots.
    """
    pyplot, suffix = import_pyplot(), os.path.splitext(path)[1].removeprefix(".")
    with (
        warnings.catch_warnings(),
        pyplot.rc_context({"svg.hashsalt": "cloze", "font.size": 9, "text.parse_math": False}),
    ):
        warnings.simplefilter("ignore", UserWarning)  # of names that the font lacks, or that leave no space
        figure, axes = pyplot.subplots(1, columns, layout="constrained", **options)
        try:
            yield axes
            with writing(path, "--out", binary=True) as file:
                figure.savefig(file, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
        finally:
            pyplot.close(figure)


def draw_values(
    path: str,
    label: str,
    values: Mapping[str, Values],
    baseline: str,
    lines: Mapping[str, float] | None = None,
    *,
    width: float = 7.2,
) -> None:
    """Draws the values of a measure: the mean over seeds with its interval, and each seed, one row a variant.

    lines: name -> value, such as floors, drawn as dashed lines. width: of the figure, in inches.
    """
    with drawing(path, figsize=(width, 1.0 + 0.32 * len(values))) as axes:
        for row, of_seeds in enumerate(values.values()):
            found = summarize(of_seeds)
            axes.plot([*of_seeds.values()], [row + 0.28] * len(of_seeds), "o", ms=3.5, mfc="none", color="0.35")
            if found.low is not None:
                axes.plot([found.low, found.high], [row, row], color=COLOURS[1], linewidth=1.6)
            if found.mean is not None:
                axes.plot(found.mean, row, "o", color=COLOURS[1], markeredgecolor="black")
        axes.set_yticks(range(len(values)), [f"{name} (baseline)" if name == baseline else name for name in values])
        for name, value in (lines or {}).items():
            axes.axvline(value, linestyle="--", linewidth=1, color="0.4")
            axes.annotate(
                _shown(name),
                (value, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, 2),
                textcoords="offset points",
                fontsize=8,
            )
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.set_xlabel(label)
        axes.grid(alpha=0.25)


class Share(NamedTuple):
    """A cell of `draw_shares`: a share, from 0 to 1, whether its number is bold, and whether the cell is shaded."""

    share: float
    is_bold: bool
    is_shaded: bool


def draw_shares(path: str, shares: Mapping[str, Mapping[str, Share]]) -> None:
    """Draws a table of shares, row -> column -> share, as a heat map; its background is white, on dark pages too."""
    columns = list(dict.fromkeys(column for row in shares.values() for column in row))
    shaded = [{column: one.share for column, one in row.items() if one.is_shaded} for row in shares.values()]
    grid = [[row.get(column, np.nan) for column in columns] for row in shaded]
    with drawing(path, figsize=(2.6 + 0.55 * len(columns), 1.3 + 0.28 * len(shares))) as axes:
        axes.imshow(np.ma.masked_invalid(grid), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (y, row), (x, column) in itertools.product(enumerate(shares.values()), enumerate(columns)):
            if column in row:
                share, is_bold, is_shaded = row[column]
                colour = ("white" if share > 0.5 else "black") if is_shaded else "gray"
                weight = "bold" if is_bold else "normal"
                axes.text(x, y, f"{share:.2f}", color=colour, weight=weight, ha="center", va="center")
        axes.set_xticks(range(len(columns)), columns, rotation=35, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(shares)), [*map(_shown, shares)])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)


def draw_losses(path: str, curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> None:
    """Draws losses over tokens and over FLOPs: each seed, and their mean where all have a loss.

    curves: variant -> "raw_tokens", "flops" and "loss" of each seed.
    """
    late: list[float] = []  # losses of the second half of the training set the range of the vertical axis
    with drawing(path, columns=2, figsize=(9.6, 4.4), sharey=True) as panels:
        for axes, x in zip(panels, ("raw_tokens", "flops"), strict=True):
            for place, (variant, seeds) in enumerate(curves.items()):
                colour, style = COLOURS[place % len(COLOURS)], ("-", "--", ":")[place // len(COLOURS) % 3]
                places = [np.asarray(curve[x], float) for curve in seeds]
                losses = [np.asarray(curve["loss"]) for curve in seeds]
                for at, loss in zip(places, losses, strict=True):
                    axes.plot(at, loss, color=colour, linewidth=0.5, alpha=0.5)
                    late += list(loss[at >= at[-1] / 2])
                grid = np.unique(np.concatenate(places)).clip(max(p[0] for p in places), min(p[-1] for p in places))
                mean = np.mean([np.interp(grid, *curve) for curve in zip(places, losses, strict=True)], axis=0)
                axes.plot(grid, mean, color=colour, linestyle=style, linewidth=1.8, label=variant)
            axes.set_xlabel(_AXES[x])
            axes.grid(alpha=0.25)
        margin = 0.05 * (np.ptp(late) or abs(late[0]) or 1.0)
        panels[0].set_ylim(min(late) - margin, max(late) + margin)
        panels[0].set_ylabel("held-out loss")
        panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)


def _shown(name: str) -> str:
    """Returns a name for a figure, in one line. The middle of a long one is omitted: paths differ at their ends."""
    name = " ".join(visible(name).split())
    return name if len(name) <= _LABEL else f"{name[: _LABEL // 3]} ... {name[-_LABEL // 2 :]}"


def check_figure(path: str) -> None:
    """Raises ConfigError if `path` is not a figure that can be written."""
    if os.path.splitext(path)[1] not in _SUFFIXES:
        raise ConfigError(f"--out={path} must end in .svg, .png or .pdf")
    check_output(path, "--out")


def _check_same_heldout(runs: Sequence[str]) -> None:
    """Raises ConfigError if the runs hold out different text."""
    digests = {run: Workdir(run, named_by="RUN").config().get("corpus", {}).get("heldout") for run in runs}
    for run, digest in digests.items():
        if digest != digests[runs[0]]:
            raise ConfigError(
                f"{runs[0]} and {run} hold out different text (corpus.heldout {digests[runs[0]]} and {digest} in "
                "config.json), so their held-out metrics do not compare: train them on one corpus with the same fields "
                "data.heldout_fraction, split_seed, split_by and heldout_path, or use --split=train"
            )


def _note_other_tokens(runs: Sequence[str], metric: str) -> None:
    """Prints a note if the runs' values of `metric` are over different tokens, so that the curves do not compare."""
    if better_of(metric) == "":
        return
    if metric.endswith("per_byte") and (line := describe_windows(_windows(runs), metric)):
        print_note(line)
    first, *others = [_config(run) for run in runs]
    for run, config in zip(runs[1:], others, strict=True):
        names = scored_otherwise({"kind": "heldout", "metric": metric}, [first, config])
        if metric == "bits_per_byte":  # which compare for any objective, on one text
            names = [n for n in names if {n} <= first.keys() & config.keys() and any(of.match(n) for of in _OF_TEXT)]
        if names:
            some = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
            print_note(
                f"{runs[0]} and {run} differ in {some}: the {metric} of each is over its own tokens, and the curves do "
                "not compare. python -m train.evaluate --config=... scores both alike"
            )


def _config(run: str) -> dict[str, Any]:
    """Returns the flat config of a run, with the fingerprint of its tokenizer in place of the path of a copy."""
    config = flatten(Workdir(run).config())
    return config | ({"data.tokenizer": config["corpus.tokenizer"]} if "corpus.tokenizer" in config else {})


def _windows(runs: Sequence[str]) -> dict[str, str]:
    """Returns run -> run.evaluation.heldout_windows, without runs whose tokenizer or code is not on this machine."""
    windows = {}
    for run in runs:
        with contextlib.suppress(ConfigError):
            windows[run] = heldout_windows(load_experiment(run))
    return windows


def read_curves(run: str, metric: str, split: str, *, x: str = "step", with_denoisers: bool = False) -> Curves:
    """Returns the curve over `x` of `metric` and, if `with_denoisers`, of each `<metric>/<denoiser>`.

    Raises ConfigError if the folder has no metrics.jsonl, and if no line of the split has the metric as a number, or x.
    """
    lines = Workdir(run).metrics(split)
    names = dict.fromkeys(name for line in lines for name in line if name not in ("step", "split"))
    for flag, name in (("metric", metric), ("x", x)):
        if name not in names and (flag, name) != ("x", "step"):
            available = ", ".join(names) or "(none)"
            raise ConfigError(f"--{flag}={name} is not a metric of {run} with --split={split}: it has {available}")
    chosen = [name for name in names if name == metric or (with_denoisers and name.startswith(f"{metric}/"))]
    if len(chosen) == 2:  # the curve of a run's only denoiser would cover that of the run
        chosen = [metric]
    if all(line.get(metric) is None for line in lines):
        raise ConfigError(
            f"--metric={metric} has no finite value in {run} with --split={split}, so there is no curve: omit this run"
        )
    curves = {}
    for name in chosen:
        points = [(line[x], line[name]) for line in lines if line.get(name) is not None]
        curves[name] = [place for place, _ in points], [value for _, value in points]
    return curves


if __name__ == "__main__":
    run_command(main)
