"""The metrics of a run as a file: metrics.jsonl in its workdir, one JSON object a line."""

import json
import os
from typing import Any, Literal

from contract.errors import ConfigError
from files.paths import read_text

Split = Literal["train", "eval"]


def metrics_path(workdir: str | os.PathLike) -> str:
    """Returns the path of a run's file of metrics."""
    return os.path.join(workdir, "metrics.jsonl")


def read_metrics(workdir: str | os.PathLike, split: Split | None = None) -> list[dict[str, Any]]:
    """Returns the lines of a run's metrics.jsonl in their order: those of `split`, or all lines.

    An incomplete last line, which a killed run leaves, is omitted. A value that is not finite is None.

    Raises ConfigError if the file cannot be read, or if a line is not an object of an integer `step`, a `split` and
    numbers.
    """
    path = metrics_path(workdir)
    try:
        lines = [json.loads(line) for line in metrics_lines(path)]
    except OSError as error:
        raise ConfigError(f"{workdir} is not the folder of a run: {path}: {error.strerror}") from error
    return [line for line in lines if split is None or line["split"] == split]


def metrics_lines(path: str) -> list[str]:
    """Returns the complete lines of a file of metrics, each with its line end.

    Raises ConfigError for a line that is not one of metrics, and OSError if the file cannot be read.
    """
    text = read_text(path, errors="replace")
    lines = [f"{line}\n" for line in text.split("\n")[:-1]]
    for number, line in enumerate(lines, start=1):
        if not _is_line_of_metrics(line):
            raise ConfigError(f"{path}, line {number} is not a line of metrics: move the file away")
    return lines


def _is_line_of_metrics(line: str) -> bool:
    try:
        fields = json.loads(line)
    except ValueError:
        return False
    if not isinstance(fields, dict) or type(fields.get("step")) is not int or not isinstance(fields.get("split"), str):
        return False
    return all(isinstance(value, int | float | None) for name, value in fields.items() if name != "split")
