"""Sizes and tokens for a budget, from published coefficients and from a fit."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from absl import flags
from rich.box import SIMPLE
from rich.table import Table

from command.flags import config_fields, define_config, parse_flags
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies.scaling.law import (
    CHINCHILLA_TOKENS_PER_PARAM,
    FLOPS_PER_PARAM_AND_TOKEN,
    PUBLISHED,
)
from studies.scaling.report import short
from studies.scaling.runs import count_params

_CONFIG = "configs/clm.py"
# Sizes of configs/clm.py with the vocabularies of the published models: the config's own tokenizer is of bytes.
_VOCAB_SIZES = dict.fromkeys(("small", "medium", "large", "xl"), 50257) | dict.fromkeys(("7b", "13b", "70b"), 32000)
_RATIO = f"{CHINCHILLA_TOKENS_PER_PARAM:.0f} tokens per parameter"
_FITTED_RANGE = (1e18, 1e22)  # FLOPs of nearly all runs of Hoffmann et al. (2022), figure 4


def advice_fields(flops: float) -> dict[str, Any]:
    """Returns source -> size and tokens of the lowest loss at `flops`: published coefficients, and Chinchilla's ratio.

    The sources' losses are of their text and tokenizer, do not compare with other losses, and are not returned.
    Raises ConfigError if the optimum is beyond the range of floats.
    """
    sizes = {}
    for source, law in PUBLISHED.items():
        if (optimum := law.optimum(flops)) is None:
            raise ConfigError(f"--flops={flops:g} has no optimum in the range of floats: set a budget such as 1e21")
        sizes[source] = (optimum.params, optimum.tokens)
    params = math.sqrt(flops / FLOPS_PER_PARAM_AND_TOKEN / CHINCHILLA_TOKENS_PER_PARAM)
    sizes[_RATIO] = (params, CHINCHILLA_TOKENS_PER_PARAM * params)
    return {source: advice_row(*size) for source, size in sizes.items()}


def advice_row(params: float, tokens: float) -> dict[str, Any]:
    """Returns the fields of one source's advice."""
    return {
        "params": params,
        "tokens": tokens,
        "tokens_per_param": tokens / params,
        "nearest_preset": nearest_preset(params),
    }


def nearest_preset(params: float) -> str:
    """Returns the preset of configs/clm.py of the nearest size; "" if no size is within a factor of 2."""
    sizes = _preset_sizes()
    name = min(sizes, key=lambda name: abs(math.log(sizes[name] / params)))
    return f"{_CONFIG}:{name}" if abs(math.log(sizes[name] / params)) < math.log(2) else ""


def advice_warnings(flops: float) -> list[str]:
    """Returns what a reader of the published advice must know, one line each."""
    low, high = _FITTED_RANGE
    if low <= flops <= high:
        return []
    return [f"extrapolation: the published coefficients are of runs of about {low:.0e} to {high:.0e} FLOPs"]


def advice_table(flops: float, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns the table of sizes and tokens at `flops`, one row for each source."""
    table = Table(title=f"compute-optimal at {flops:.3g} FLOPs, C = 6 N D", title_justify="left", box=SIMPLE)
    table.add_column("coefficients", no_wrap=True)
    for name in ("N", "D", "D / N"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("nearest preset", no_wrap=True)
    for source, row in rows.items():
        ratio, preset = f"{row['tokens_per_param']:.3g}", row["nearest_preset"].removeprefix("configs/")
        table.add_row(source, short(row["params"]), short(row["tokens"]), ratio, preset or "-")
    return table


@functools.cache
def _preset_sizes() -> dict[str, int]:
    return {
        preset: count_params(make_experiment(_read(f"{_CONFIG}:{preset}"), vocab_size=size).params_shapes, "total")
        for preset, size in _VOCAB_SIZES.items()
    }


def _read(config: str) -> dict[str, Any]:
    """Returns the fields of a config file with a preset, without those of this command line."""
    values, argv = flags.FlagValues(), ["train.scaling", f"--config={config}"]
    define_config(values, argv=argv)
    parse_flags(values, "", argv)
    return config_fields(values)
