"""The writer of a run's metrics: metrics.jsonl, always, and the trackers of `train.trackers`."""

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from contract.errors import ConfigError
from files.atomic import GrowingObject, open_growing
from files.paths import exists, in_bucket, make_folder
from workdir.metrics_file import Split, metrics_lines, metrics_path
from workdir.tracking.guarded import Guarded
from workdir.tracking.tensorboard import TensorBoard
from workdir.tracking.tracker import TrackedRun, Tracker, stable_run_id
from workdir.tracking.trackio import Trackio
from workdir.tracking.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
_IN_WORKDIR = ("tensorboard",)  # files of the run; the others keep copies elsewhere


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError if a tracker of `train.trackers` cannot work on this machine. Other processes than 0 pass."""
    if jax.process_index() == 0:
        for name in names:
            TRACKERS[name].check()


class MetricsWriter:
    """Writes the metrics of a run to workdir/metrics.jsonl, one JSON object per line, and to its trackers.

    Only process 0 writes; in other processes, the methods do nothing.

    metrics.jsonl and TensorBoard's files are the run's own: if one of them cannot be written, the method raises
    ConfigError, one line that names the file, and the training ends. The other trackers have copies: after a failure,
    or no answer within 30 seconds, `warn` reports it in one line, and the training goes on without the tracker.

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
        self,
        workdir: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        resume_step: int,
        warn: Callable[[str], Any],
    ):
        self._workdir, self._lines, self._trackers = os.fspath(workdir), None, []
        self._warn = warn
        if jax.process_index() != 0:
            return
        path, names = metrics_path(workdir), config["train"]["trackers"]
        with self._writing():
            make_folder(workdir)
            lines = metrics_lines(path) if exists(path) else []
            kept = [line for line in lines if resume_step > 0 and json.loads(line)["step"] <= resume_step]
            copies = [name for name in names if name not in _IN_WORKDIR]
            run = TrackedRun(
                workdir=self._workdir,
                project=config["train"]["tracker_project"],
                run_id=stable_run_id(self._workdir, resumes=resume_step > 0) if copies else "",
                config=config,
                resume_step=resume_step,
            )
            self._lines = open_growing(path, "".join(kept).encode())
            for name in names:
                tracker = TRACKERS[name](run) if name in _IN_WORKDIR else Guarded(name, TRACKERS[name], run, warn)
                self._trackers.append((name, tracker))

    @property
    def addresses(self) -> list[str]:
        """Where the trackers show the run, one line each."""
        return [f"{name}: {tracker.address}" for name, tracker in self._trackers if tracker.address]

    def write(self, step: int, split: Split, metrics: Mapping[str, Any]) -> None:
        """Writes scalars in their order, at once, so that they survive a kill of the process.

        NaN and infinity, which JSON does not have, are null in metrics.jsonl and are omitted from the trackers, where
        the names are "<split>/<metric>".
        """
        if self._lines is None:
            return
        values = {name: _json_number(value) for name, value in metrics.items()}
        line = json.dumps({"step": int(step), "split": split, **values}, allow_nan=False) + "\n"
        finite = {f"{split}/{name}": float(value) for name, value in values.items() if value is not None}
        with self._writing():
            _write_all(self._lines, line.encode())
            for _, tracker in self._trackers:
                tracker.scalars(int(step), finite)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Writes a text, such as a sample, to the trackers."""
        with self._writing():
            for _, tracker in self._trackers:
                tracker.text(int(step), name, text)

    def flush(self) -> None:
        """Returns once metrics.jsonl has all lines, also in a bucket."""
        if isinstance(self._lines, GrowingObject):
            with self._writing():
                self._lines.upload()

    def close(self, *, failed: bool = False) -> None:
        """Closes the files and ends the run in its trackers. failed: whether an error has ended the training.

        Raises nothing: everything has been written before, or its failure has been reported. In a bucket, the end of
        the events may be written now; `warn` reports a failure.
        """
        closes = [functools.partial(tracker.close, failed=failed) for _, tracker in self._trackers]
        if self._lines is not None:
            closes.append(self._lines.close)
        for close in closes:
            try:
                close()
            except OSError as error:
                if in_bucket(self._workdir):  # where the last bytes are written now
                    self._warn(f"the end of {error.filename} could not be written: {error.strerror}")
        self._lines, self._trackers = None, []

    @contextlib.contextmanager
    def _writing(self):
        """Turns an OSError within this context into a ConfigError."""
        try:
            yield
        except OSError as error:
            file = error.filename or f"the metrics in {self._workdir}"
            raise ConfigError(f"--workdir={self._workdir} cannot be written: {error.strerror}: {file}") from error


def _write_all(file: Any, data: bytes) -> None:
    """Writes `data` to an unbuffered file. A full disk may take a part of it before it raises OSError."""
    while data:
        data = data[file.write(data) :]


def _json_number(value: Any) -> int | float | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None
