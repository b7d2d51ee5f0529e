"""A trace of a few steps, for TensorBoard's profile plugin and Perfetto."""

import os
from typing import Any

import jax


class StepProfile:
    """Traces `steps` steps, the first of them step `first`, into workdir/tensorboard. Only process 0; 0 steps: none."""

    def __init__(self, workdir: str | os.PathLike, *, first: int, steps: int):
        self._folder = os.path.join(workdir, "tensorboard")
        self._steps = range(first, first + steps * (jax.process_index() == 0))

    def before(self, step: int) -> None:
        """To be called before the step is dispatched."""
        if self._steps and step == self._steps[0]:
            jax.profiler.start_trace(self._folder)

    def after(self, step: int, metrics: Any) -> bool:
        """To be called with what the step gives; True where the trace has just been written."""
        if not self._steps or step != self._steps[-1]:
            return False
        jax.block_until_ready(metrics)
        jax.profiler.stop_trace()
        return True
