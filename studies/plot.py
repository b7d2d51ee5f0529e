"""Draws metrics of runs: python -m train.plot RUN [RUN ...] --out=FILE.svg [--metric=loss] [--split=eval] [--x=step]

RUN is the folder of a run. For a single run the metric of each denoiser, such as loss/r1, is drawn too. --x=examples,
raw_tokens, scored_tokens, flops or seconds draws over these totals instead of the step. The suffix of FILE selects the
format: .svg, .png or .pdf. Needs matplotlib: pip install -e '.[plot]'.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from files.atomic import writing
from studies.pyplot import import_pyplot, save_figure
from workdir.metrics import Split, metrics_path, read_metrics
from workdir.run_config import read_config

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

Curves = dict[str, tuple[list[float], list[float]]]  # name -> values of the horizontal axis, values


def main() -> None:
    """Reads the command line and writes the figure."""
    runs = parse_flags(_FLAGS, __doc__, positional=str)
    if not runs:
        raise ConfigError("RUN is missing: name the folder of a run, as in python -m train.plot runs/ul2 --out=a.svg")
    plot(runs, _OUT.value, metric=_METRIC.value, split=_SPLIT.value, x=_X.value)
    print(f"written to {_OUT.value}")


def plot(runs: Sequence[str], out: str, *, metric: str, split: Split, x: str = "step") -> None:
    """Writes a figure of `metric` of each run over `x` to the file `out`.

    runs: folders. x: "step", or a total since the first step.

    Raises ConfigError for a folder without metrics, an unknown metric and a file that cannot be written, for held-out
    metrics of runs that hold out different text, and if matplotlib is not installed.
    """
    if os.path.splitext(out)[1] not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--out={out} must end in .svg, .png or .pdf")
    if len(runs) == 1:
        curves = read_curves(runs[0], metric, split, x=x, with_denoisers=True)
    else:
        curves = {run: read_curves(run, metric, split, x=x)[metric] for run in runs}
    if split == "eval" and len(runs) > 1:
        _check_same_heldout(runs)
    pyplot = import_pyplot("train.plot")
    with pyplot.rc_context({"svg.hashsalt": "cloze", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
        for name, (places, values) in curves.items():
            is_total = name in (metric, *runs)
            axes.plot(places, values, linewidth=2 if is_total else 1, marker="o", markersize=3)
        axes.set_xlabel(_AXES[x])
        axes.set_ylabel(f"{'held-out' if split == 'eval' else 'training'} {metric}", parse_math=False)
        axes.grid(alpha=0.3)
        _add_legend(axes, list(curves))
        try:
            with writing(out, binary=True) as file:
                save_figure(figure, file, out)
        finally:
            pyplot.close(figure)


def _add_legend(axes: Any, names: Sequence[str]) -> None:
    """Adds the names of the curves as they are: matplotlib omits labels that begin with "_" and typesets $...$."""
    legend = axes.legend(axes.get_lines(), [str(k) for k in range(len(names))])
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _check_same_heldout(runs: Sequence[str]) -> None:
    """Raises ConfigError if the runs hold out different text, or if it is not known which."""
    digests = {run: read_config(run, named_by="RUN").get("corpus", {}).get("heldout") for run in runs}
    for run, digest in digests.items():
        if digest is None:
            raise ConfigError(
                f"{run}/config.json does not say which text was held out (corpus.heldout), because an earlier version "
                "wrote it: draw the run alone, or use --split=train"
            )
        if digest != digests[runs[0]]:
            raise ConfigError(
                f"{runs[0]} and {run} hold out different text (corpus.heldout {digests[runs[0]]} and {digest} in "
                "config.json), so their held-out metrics do not compare: train them on one corpus with the same fields "
                "data.heldout_fraction, split_seed, split_by and heldout_path, or use --split=train"
            )


def read_curves(run: str, metric: str, split: Split, *, x: str = "step", with_denoisers: bool = False) -> Curves:
    """Returns the curve over `x` of `metric` and, if `with_denoisers`, of each `<metric>/<denoiser>`.

    Raises ConfigError if the folder has no metrics.jsonl, if no line of the split has the metric as a number, and if a
    line has the metric and not `x`.
    """
    path, numbered = metrics_path(run), dict(enumerate(read_metrics(run), start=1))
    numbered = {number: line for number, line in numbered.items() if line["split"] == split}
    lines = numbered.values()
    names = dict.fromkeys(name for line in lines for name in line if name not in ("step", "split"))
    if metric not in names:
        available = ", ".join(names) or "(none)"
        raise ConfigError(f"--metric={metric} is not a metric of {path} with --split={split}: it has {available}")
    if x != "step" and x not in names:
        raise ConfigError(f"--x={x} is not in {path}, because an earlier version wrote it: use --x=step")
    chosen = [name for name in names if name == metric or (with_denoisers and name.startswith(f"{metric}/"))]
    if len(chosen) == 2:  # the curve of a run's only denoiser would cover that of the run
        chosen = [metric]
    if all(line.get(metric) is None for line in lines):
        raise ConfigError(
            f"--metric={metric} has no finite value in {path} with --split={split}, so there is no curve: omit this run"
        )
    for number, line in numbered.items():
        if line.get(x) is None and any(line.get(name) is not None for name in chosen):
            raise ConfigError(
                f"--x={x} is missing in {path}, line {number} (step {line['step']}), because an earlier version wrote "
                "the line: use --x=step"
            )
    return {name: _curve(list(lines), name, x) for name in chosen}


def _curve(lines: Sequence[Mapping[str, float | None]], name: str, x: str) -> tuple[list[float], list[float]]:
    points = [(line[x], line[name]) for line in lines if line.get(name) is not None]
    return [place for place, _ in points], [value for _, value in points]


if __name__ == "__main__":
    run_command(main)
