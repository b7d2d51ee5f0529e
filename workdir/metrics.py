"""metrics.jsonl, the metrics of a run: one JSON object a line, which its trackers show too."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax

from contract.errors import ConfigError
from files.atomic import GrowingObject, open_growing, parse_json
from files.paths import exists, make_folder, read_text
from workdir.trackers import open_trackers

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
        text = read_text(path, errors="replace")
    except OSError as error:
        raise ConfigError(f"{workdir} is not the folder of a run: {path}: {error.strerror}") from error
    lines = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            fields = parse_json(line)
            valid = type(fields["step"]) is int and isinstance(fields["split"], str)
            numbers = [value for name, value in fields.items() if name != "split"]
            valid &= all(isinstance(value, int | float | None) for value in numbers)
            valid = valid and all(math.isfinite(value or 0) or isinstance(value, float) for value in numbers)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            valid = False
        if not valid:
            raise ConfigError(f"{path}, line {number} is not a line of metrics: move the file away")
        lines.append(fields)
    return [line for line in lines if split is None or line["split"] == split]


class MetricsWriter:
    """Writes the metrics of a run to metrics.jsonl in its workdir, and to the trackers of `train.trackers`.

    Only process 0 writes; in other processes, the methods do nothing.

    metrics.jsonl is the run's own: if it cannot be written, the method raises ConfigError, one line that names the
    file, and the training ends. A tracker shows a copy: after a failure, `warn` reports it in one line, and the
    training goes on without the tracker.

    Args:
      workdir: the folder of the run.
      config: the resolved config, which trackers show, and whose `train.trackers` names them.
      resume_step: the step of the checkpoint that the run continues from. Lines of later steps, which the continued run
        writes again, are removed from metrics.jsonl, as is an incomplete last line. The metrics of a step are written
        before its checkpoint, so the final file is the same as without the interruption. 0 starts a new run and removes
        all lines.
      warn: prints a warning.

    Raises ConfigError if the files cannot be written, if metrics.jsonl contains other lines, and if a tracker cannot
    start.
    """

    def __init__(
        self, workdir: str | os.PathLike, config: Mapping[str, Any], *, resume_step: int, warn: Callable[[str], Any]
    ):
        self._workdir, self._path = os.fspath(workdir), metrics_path(workdir)
        self._lines, self._trackers = None, []
        if jax.process_index() != 0:
            return
        lines = read_metrics(workdir) if exists(self._path) else []
        kept = "".join(json.dumps(line) + "\n" for line in lines if resume_step and line["step"] <= resume_step)
        with self._writing():
            make_folder(self._workdir)
            self._lines = open_growing(self._path, kept.encode())
            self._trackers = open_trackers(self._workdir, config, resume_step, warn)

    @property
    def addresses(self) -> list[str]:
        """Where the trackers show the run, one line each."""
        return [tracker.address for tracker in self._trackers if tracker.address]

    def write(self, step: int, split: Split, metrics: Mapping[str, Any]) -> None:
        """Writes scalars in their order, at once, so that they survive a kill of the process.

        NaN and infinity, which JSON does not have, are null in metrics.jsonl and are omitted from the trackers, where
        the names are "<split>/<metric>".
        """
        if self._lines is None:
            return
        values = {name: _json_number(value) for name, value in metrics.items()}
        line = (json.dumps({"step": int(step), "split": split, **values}, allow_nan=False) + "\n").encode()
        with self._writing():
            while line:  # a full disk may take a part of a line before it raises OSError
                line = line[self._lines.write(line) :]
        for tracker in self._trackers:
            scalars = {f"{split}/{name}": float(v) for name, v in values.items() if v is not None}
            tracker.call("scalars", int(step), scalars)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Writes a text, such as a sample, to the trackers."""
        for tracker in self._trackers:
            tracker.call("text", int(step), name, text)

    def flush(self) -> None:
        """Returns once metrics.jsonl has all lines, also in a bucket."""
        if isinstance(self._lines, GrowingObject):
            with self._writing():
                self._lines.upload()

    def close(self, *, failed: bool = False) -> None:
        """Closes the files and ends the run in its trackers. failed: whether an error has ended the training."""
        if self._lines is None:
            return
        try:
            self.flush()
        finally:
            self._lines.close()
            for tracker in self._trackers:
                tracker.call("close", failed)
            self._lines, self._trackers = None, []

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns an OSError within this context into a ConfigError."""
        try:
            yield
        except OSError as error:
            raise ConfigError(f"--workdir={self._workdir} cannot be written: {error.strerror}: {self._path}") from error


def _json_number(value: Any) -> int | float | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None
