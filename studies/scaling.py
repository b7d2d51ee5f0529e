"""Fits a scaling law to the runs of a study: python -m train.scaling --study=configs/studies/scaling.py --out=DIRS

    for tokens in 5e5 1e6 2e6 4e6; do
      python -m train.ablate --study=configs/studies/scaling.py --out=studies/scaling_$tokens --budget=$tokens
    done
    python -m train.scaling --study=configs/studies/scaling.py --out='studies/scaling_*'

The variants of the study are sizes, and each folder of --out is the study at another budget. The law is
L(N, D) = E + A / N^alpha + B / D^beta (studies/scaling_law.py), with bootstrap intervals. Prints a table to standard
error and one JSON line to standard output. --advise prints the sizes and tokens that published coefficients give for
--flops, and those of the study as well if it is named. docs/scaling.md describes the fit.
"""

import glob
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from command.flags import parse_flags, run_command
from command.program import visible
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from run.restore import config_for_reading
from studies.markdown import large
from studies.results import StudyFolder
from studies.scaling_law import CONFIDENCE, FLOPS_PER_PARAM_AND_TOKEN, PUBLISHED, Fit, Law, Point, fit, interval
from studies.study import Study, load_study
from workdir.run_config import flatten
from workdir.workdir import Workdir

CHINCHILLA_TOKENS_PER_PARAM = 20.0  # 1.4T tokens, 70B parameters
_FITTED_RANGE = (1e18, 1e22)  # FLOPs of nearly all runs of Hoffmann et al. (2022), figure 4
# Up to here a token that is read again is worth about as much as a new one (Muennighoff et al. 2023).
_MOST_READINGS = 4
# Fields in which the runs of one law may differ: those of the size and of the number of tokens, those that change how
# often a run is evaluated or saved, and those of the machine. Corpora are compared by their contents.
_MAY_DIFFER = re.compile(
    r"seed|mesh\..*|loss\.chunk_size|data\.(path|heldout_path|cache_dir|read_by_range|reader_threads|prefetch_batches)"
    r"|model\.(num_(decoder_)?layers|d_model|num_(kv_)?heads|head_dim|d_ff|embedding_size|attention|remat|scan_unroll)"
    r"|train\.(steps|epochs|log_every|eval_every|checkpoint_every|checkpoint_minutes|keep_checkpoints|profile_steps"
    r"|grad_accum_steps|trackers|tracker_project)"
)
# A quantity is determined if the ends of its interval differ by less than this factor. A and B are the heights of the
# law at one parameter and one token, far outside any data, so a small change of alpha or beta is a large one of theirs.
_MAX_RATIO = {"E": 2.0, "A": 100.0, "B": 100.0, "alpha": 3.0, "beta": 3.0}
_LEAST_E = 0.01  # of the lowest loss: a fit that finds no E ends at 0.001 (studies/scaling_law.py)
# N and D are determined where D / N = C / (6 N^2) is.
_MAX_OPTIMUM_RATIO = {"params": 10.0**0.5, "tokens": 10.0**0.5, "tokens_per_param": 10.0, "loss": 2.0}

_FLAGS = flags.FlagValues()
_STUDY = flags.DEFINE_string("study", None, "Study whose variants are sizes.", _FLAGS)
_OUT = flags.DEFINE_list("out", [], "Folders of the study (--out of train.ablate), or globs.", flag_values=_FLAGS)
_FLOPS = flags.DEFINE_float(
    "flops", None, "Budget of the optimum. Default: that of the largest run.", lower_bound=1.0, flag_values=_FLAGS
)
_ADVISE = flags.DEFINE_boolean("advise", False, "Also say what published coefficients give for --flops.", _FLAGS)


def main() -> None:
    """Prints the fit, the advice or both."""
    parse_flags(_FLAGS, __doc__)
    if _STUDY.value is None and not _ADVISE.value:
        raise ConfigError(
            "--study is missing: write --study=configs/studies/scaling.py --out=DIR, or --advise --flops=1e21"
        )
    if _ADVISE.value and _FLOPS.value is None:
        raise ConfigError("--advise needs --flops: for example --flops=1e21")
    if _FLOPS.value is not None and not math.isfinite(_FLOPS.value):
        raise ConfigError(f"--flops={_FLOPS.value} must be finite: for example --flops=1e21")
    console, line, rows, warnings = Console(stderr=True), dict[str, Any](), {}, list[str]()
    if _ADVISE.value:
        rows = advice(_FLOPS.value)
        line["published"] = dict(rows)
        low, high = _FITTED_RANGE
        if not low <= _FLOPS.value <= high:
            warnings.append(
                f"extrapolation: the published coefficients are of runs of about {low:.0e} to {high:.0e} FLOPs"
            )
    if _STUDY.value is not None:
        folders = folders_of(_OUT.value)
        points, left_out = read_points(load_study(_STUDY.value), folders)
        fields = fit_fields(points, fit(points), _FLOPS.value)
        line |= {"study": _STUDY.value} | fields
        warnings += [f"not in the fit: {text}" for text in left_out]
        warnings += warnings_of(fields)
        warnings += warnings_of_studies(folders)
        console.print(fit_table(fields))
        if fields["optimum"]["tokens_per_param"]["determined"]:
            rows[_STUDY.value] = _sizes(*(fields["optimum"][name]["value"] for name in ("params", "tokens")))
    if _ADVISE.value:
        console.print(_advice_table(_FLOPS.value, rows))
    for text in warnings:
        print(f"warning: {visible(text)}", file=sys.stderr, flush=True)
    print(json.dumps(line | {"warnings": warnings}))


def advice(flops: float) -> dict[str, dict[str, float]]:
    """Returns source -> size and tokens of the lowest loss at `flops`: published coefficients, and Chinchilla's ratio.

    The sources' losses are of their text and tokenizer, do not compare with other losses, and are not returned.
    Raises ConfigError if the optimum is beyond the range of floats.
    """
    sizes = {}
    for source, law in PUBLISHED.items():
        if (optimum := law.optimum(flops)) is None:
            raise ConfigError(f"--flops={flops:g} has no optimum in the range of floats: set a budget such as 1e21")
        sizes[source] = _sizes(optimum.params, optimum.tokens)
    params = math.sqrt(flops / FLOPS_PER_PARAM_AND_TOKEN / CHINCHILLA_TOKENS_PER_PARAM)
    name = f"{CHINCHILLA_TOKENS_PER_PARAM:.0f} tokens per parameter"
    return sizes | {name: _sizes(params, CHINCHILLA_TOKENS_PER_PARAM * params)}


def _sizes(params: float, tokens: float) -> dict[str, float]:
    return {"params": params, "tokens": tokens, "tokens_per_param": tokens / params}


def _advice_table(flops: float, rows: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title=f"compute-optimal at {flops:.3g} FLOPs, C = 6 N D", title_justify="left", box=SIMPLE)
    for name in ("coefficients", "N", "D", "D / N"):
        table.add_column(name, justify="right" if len(name) < 9 else "left", no_wrap=True)
    for source, row in rows.items():
        table.add_row(source, large(row["params"]), large(row["tokens"]), f"{row['tokens_per_param']:.3g}")
    return table


def folders_of(names: Sequence[str]) -> list[str]:
    """Returns the folders that --out names, folders or globs. Raises ConfigError where there is none."""
    found = [sorted(filter(os.path.isdir, glob.glob(name))) for name in names]
    if not found or not all(found):
        raise ConfigError(f"--out={','.join(names)} must name folders: those of --out of python -m train.ablate")
    return list(dict.fromkeys(os.path.normpath(folder) for folders in found for folder in folders))


def read_points(study: Study, folders: Sequence[str]) -> tuple[list[Point], list[str]]:
    """Returns the finished runs of `study` in `folders`, and one line for each other run.

    A run is finished if its last evaluation is at its last step. That evaluation is the run's only point: with a
    learning rate that falls until the end of a run, the loss in the middle of a long run is higher than that of a run
    which ends there (Hoffmann et al. 2022, section 3.1).

    Raises ConfigError for a folder that is not a study's, and for runs that are not of one law: all their fields but
    those of _MAY_DIFFER must be equal.
    """
    points, left_out, first = [], [], None
    sizes: dict[str, int] = {}
    for folder in map(StudyFolder, folders):
        seeds = range(folder.study_file().study.seeds)
        for variant, seed in [(variant, seed) for variant in study.variants for seed in seeds]:
            workdir = folder.workdir(f"{variant}-seed{seed}")
            try:
                config, line = _read(workdir)
            except ConfigError as error:
                left_out.append(f"{workdir}: {error}")
                continue
            first = first or (workdir, config)
            _check_compares(workdir, config, *first)
            if (key := json.dumps(config["model"])) not in sizes:
                sizes[key] = make_experiment(config_for_reading(config)).num_params
            points.append(Point(f"{folder.path}/{variant}", sizes[key], line["raw_tokens"], line["loss"]))
    return points, left_out


def _read(workdir: Workdir) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a run's config and last evaluation. Raises ConfigError if the run has no point."""
    config, evaluations = workdir.config(), workdir.metrics("eval")
    last, steps = evaluations[-1] if evaluations else {"step": 0}, config["train"]["steps"]
    if last["step"] < steps:
        raise ConfigError(f"unfinished: the last evaluation is at step {last['step']} of {steps}")
    if not last.get("loss"):
        raise ConfigError("the last evaluation has no finite loss")
    return config, last


def _check_compares(run: Workdir, config: Mapping[str, Any], first: Workdir, first_config: Mapping[str, Any]) -> None:
    ours, theirs = flatten(first_config), flatten(config)
    for field in {**ours, **theirs}:
        if ours.get(field) != theirs.get(field) and not _MAY_DIFFER.fullmatch(field):
            raise ConfigError(
                f"{first} and {run} differ in {field} ({ours.get(field)} and {theirs.get(field)}), so they are not "
                "points of one law: fit runs that differ in size and tokens only"
            )


def fit_fields(points: Sequence[Point], result: Fit, flops: float | None) -> dict[str, Any]:
    """Returns the fields of the JSON line of a fit: coefficients, and the lowest loss at a budget, with intervals.

    flops: the budget of the optimum; None: the largest 6 N D.
    """
    largest = max(point.flops for point in points)
    fields = {
        "runs": len(points),
        "configurations": len({point.configuration for point in points}),
        "params_range": [f(point.params for point in points) for f in (min, max)],
        "tokens_range": [f(point.tokens for point in points) for f in (min, max)],
        "largest_run_flops": largest,
        "residual": result.residual,
        "confidence": CONFIDENCE,
    }
    for name, max_ratio in _MAX_RATIO.items():
        values = [getattr(law, name) for law in result.resampled]
        fields[name] = _quantity(getattr(result.law, name), values, max_ratio)
    fields["E"]["determined"] &= fields["E"]["low"] > _LEAST_E * min(point.loss for point in points)
    for factor, exponent in (("A", "alpha"), ("B", "beta")):  # a factor has a meaning only with its exponent
        fields[factor]["determined"] &= fields[exponent]["determined"]
    optimum: dict[str, Any] = {"flops": flops or largest}

    def value(law: Law, name: str) -> float:
        found = law.optimum(optimum["flops"])
        return math.nan if found is None else getattr(found, name)

    for name, max_ratio in _MAX_OPTIMUM_RATIO.items():
        resampled = [value(law, name) for law in result.resampled]
        optimum[name] = _quantity(value(result.law, name), resampled, max_ratio)
    return fields | {"optimum": optimum | {"chinchilla_tokens_per_param": CHINCHILLA_TOKENS_PER_PARAM}}


def _quantity(value: float, resampled: Sequence[float], max_ratio: float) -> dict[str, Any]:
    """Returns value, low, high and determined. JSON has no infinity: a number that is not finite is None."""
    low, high = interval(resampled)
    determined = math.isfinite(value) and low > 0 and high / low < max_ratio
    numbers = {"value": value, "low": low, "high": high}
    return {name: n if math.isfinite(n) else None for name, n in numbers.items()} | {"determined": determined}


def warnings_of(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a reader of the fit must know, one line each."""
    unknown = [name for name in _MAX_RATIO if not fields[name]["determined"]]
    if unknown:
        yield f"the runs do not determine {', '.join(unknown)}: more sizes, token counts or seeds are needed"
    optimum = fields["optimum"]
    if not optimum["tokens_per_param"]["determined"]:
        yield f"the runs do not determine the optimum at {optimum['flops']:.3g} FLOPs"
        return
    factor = optimum["flops"] / fields["largest_run_flops"]
    if factor > 1.001:
        yield (
            f"extrapolation: {optimum['flops']:.3g} FLOPs are {factor:.3g} times those of the largest run "
            f"({fields['largest_run_flops']:.3g}), and the intervals assume that the law holds there"
        )
    for name in ("params", "tokens"):
        value, (low, high) = optimum[name]["value"], fields[f"{name}_range"]
        if not low <= value <= high:
            yield f"the optimum, {value:.3g} {name}, is outside those of the runs ({low:.3g} to {high:.3g})"


def warnings_of_studies(folders: Sequence[str]) -> Iterator[str]:
    """Yields the warnings of the studies in `folders`, and those whose runs repeat their text."""
    for folder in folders:
        there = StudyFolder(folder).study_file()
        yield from (f"{folder}: {text}" for text in there.warnings)
        if there.readings > _MOST_READINGS:
            yield (
                f"{folder}: runs read their text up to {there.readings:.1f} times, and the law is of text that is read "
                "once: leave the folder out, or use a larger corpus"
            )


def fit_table(fields: Mapping[str, Any]) -> Table:
    """Returns the table of the coefficients and the optimum of `fit_fields`."""
    title = f"L(N, D) = E + A / N^alpha + B / D^beta, from {fields['runs']} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in ("", "estimate", f"{CONFIDENCE:.0%} interval"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    optimum = fields["optimum"]
    quantities = {name: fields[name] for name in _MAX_RATIO}
    quantities |= {f"{name} at {optimum['flops']:.3g} FLOPs": optimum[name] for name in _MAX_OPTIMUM_RATIO}
    for name, quantity in quantities.items():
        estimate = large(quantity["value"]) if quantity["determined"] else "not determined"
        low, high = ("unbounded" if quantity[end] is None else large(quantity[end]) for end in ("low", "high"))
        table.add_row(name, estimate, f"{low} to {high}")
    return table


if __name__ == "__main__":
    run_command(main)
