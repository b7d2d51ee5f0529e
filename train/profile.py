"""A trace of a few training steps, for TensorBoard's profile plugin and Perfetto."""

import os
import shutil
import tempfile
from typing import Any

import jax

from files.paths import copy_folder, in_bucket


class StepProfile:
    """Traces steps `first` to `first + steps - 1` into workdir/tensorboard, in process 0 only. 0 steps: no trace."""

    def __init__(self, workdir: str | os.PathLike, *, first: int, steps: int):
        self._folder = os.path.join(workdir, "tensorboard")
        self._steps = range(first, first + steps * (jax.process_index() == 0))
        self._traced = self._folder  # the profiler writes to local folders alone
        if self._steps and in_bucket(workdir):
            self._traced = tempfile.mkdtemp(prefix="cloze-trace-")

    def before(self, step: int) -> None:
        """Starts the trace if `step` is the first traced step. To be called before the step is dispatched."""
        if self._steps and step == self._steps[0]:
            jax.profiler.start_trace(self._traced)

    def after(self, step: int, metrics: Any) -> bool:
        """Writes the trace if `step` is the last traced step; returns whether it did.

        metrics: results of the step, any pytree of arrays. The trace ends when they are computed.
        """
        if not self._steps or step != self._steps[-1]:
            return False
        jax.block_until_ready(metrics)
        jax.profiler.stop_trace()
        if self._traced != self._folder:
            copy_folder(self._traced, self._folder)
            shutil.rmtree(self._traced, ignore_errors=True)
        return True
