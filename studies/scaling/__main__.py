"""Fits a scaling law to the runs of a study: python -m train.scaling --study=configs/studies/scaling.py --out=DIRS

    for tokens in 5e5 1e6 2e6 4e6; do
      python -m train.ablate --study=configs/studies/scaling.py --out=studies/scaling_$tokens --budget=$tokens
    done
    python -m train.scaling --study=configs/studies/scaling.py --out='studies/scaling_*' --figure=scaling.svg
    python -m train.scaling --advise --flops=1e21

The variants of the study are sizes, and each folder of --out is the study at another budget. The law is
L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, approach 3), with bootstrap intervals. Prints a table to
standard error and one JSON line to standard output. --advise prints the sizes and tokens that published coefficients
give for --flops, and those of the study as well if it is named. docs/scaling.md describes the fit.
"""

import json
import math
import sys

from absl import flags
from rich.console import Console

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from studies.scaling.advice import advice_fields, advice_row, advice_table, advice_warnings
from studies.scaling.figure import check_figure, draw
from studies.scaling.fit import fit
from studies.scaling.report import fit_fields, fit_table, warnings_of
from studies.scaling.runs import folders_of, read_points
from studies.study import load_study

_FLAGS = flags.FlagValues()
_STUDY = flags.DEFINE_string("study", None, "Study whose variants are sizes.", _FLAGS)
_OUT = flags.DEFINE_string(
    "out", None, "Folders of the study (--out of train.ablate), or globs, separated by commas.", _FLAGS
)
_PARAMS = flags.DEFINE_enum(
    "params", "total", ["total", "non_embedding"], "What N counts: all parameters, or not embeddings.", _FLAGS
)
_FLOPS = flags.DEFINE_float(
    "flops", None, "Budget of the optimum. Default: that of the largest run.", flag_values=_FLAGS
)
_FIGURE = flags.DEFINE_string("figure", None, "File for the iso-FLOP curves: .svg, .png or .pdf.", _FLAGS)
_ADVISE = flags.DEFINE_boolean("advise", False, "Also say what published coefficients give for --flops.", _FLAGS)


def main() -> None:
    """Prints the fit, the advice or both."""
    parse_flags(_FLAGS, __doc__)
    _check_flags()
    console = Console(stderr=True)
    warnings, line, rows = [], {}, {}
    if _ADVISE.value:
        rows = advice_fields(_FLOPS.value)
        line["published"] = rows
        warnings += advice_warnings(_FLOPS.value)
    if _STUDY.value is not None:
        fields = _fit_study(warnings)
        console.print(fit_table(fields))
        line |= fields
        rows = rows | _row_of_study(fields)
    if _ADVISE.value:
        console.print(advice_table(_FLOPS.value, rows))
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr, flush=True)
    print(json.dumps(line | {"warnings": warnings}))


def _check_flags() -> None:
    if _STUDY.value is None and not _ADVISE.value:
        raise ConfigError(
            "--study is missing: write --study=configs/studies/scaling.py --out=DIR, or --advise --flops=1e21"
        )
    if _STUDY.value is not None and _OUT.value is None:
        raise ConfigError("--out is missing: name the folders of the study, as in --out='studies/scaling_*'")
    for flag in (_OUT, _FIGURE):
        if _STUDY.value is None and flag.value is not None:
            raise ConfigError(f"--{flag.name}={flag.value} needs --study: name the study, or remove --{flag.name}")
    if _ADVISE.value and _FLOPS.value is None:
        raise ConfigError("--advise needs --flops: for example --flops=1e21")
    if _FLOPS.value is not None and not 0 < _FLOPS.value < math.inf:
        raise ConfigError(f"--flops={_FLOPS.value:g} must be above 0 and finite")
    if _FIGURE.value is not None:
        check_figure(_FIGURE.value)


def _fit_study(warnings: list[str]) -> dict:
    """Returns the fields of the fit, appends to `warnings`, and writes the figure."""
    study = load_study(_STUDY.value)
    points, left_out = read_points(study, folders_of(_OUT.value), _PARAMS.value)
    warnings += [f"not in the fit: {text}" for text in left_out]
    result = fit(points)
    fields = {"study": _STUDY.value, "params": _PARAMS.value} | fit_fields(points, result, _FLOPS.value)
    warnings += warnings_of(fields)
    if _FIGURE.value is not None:
        draw(points, result, _PARAMS.value, _FIGURE.value)
    return fields


def _row_of_study(fields: dict) -> dict[str, dict]:
    """Returns the row of the study in the table of advice, if the study determines the optimum."""
    optimum = fields["optimum"]
    if not optimum["tokens_per_param"]["determined"]:
        return {}
    return {_STUDY.value: advice_row(optimum["params"]["value"], optimum["tokens"]["value"])}


if __name__ == "__main__":
    run_command(main)
