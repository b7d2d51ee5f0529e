"""Checkpoints by time: `train.checkpoint_minutes`."""

import time
from collections.abc import Callable
from typing import Self

import jax

from cluster.agreed_step import AgreedStep


class SaveTimer:
    """Within this context, requests a checkpoint once `minutes` have passed since its start or the last `restart`.

    The clock of process 0 counts, and all processes save at the same step, a few steps later. All must enter the
    context and call `due` after every step.

    Args:
      minutes: `train.checkpoint_minutes`; 0: never.
      clock: returns seconds.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = 60 * minutes, clock
        self._agreed = AgreedStep()

    def __enter__(self) -> Self:
        if self._seconds:
            self._agreed.__enter__()
        self.restart()
        return self

    def __exit__(self, *_) -> None:
        self._agreed.__exit__()

    def restart(self) -> None:
        """Starts to measure the time anew, after any checkpoint."""
        self._began = self._clock()

    def due(self, step: int) -> bool:
        """Returns whether to save after `step`."""
        if not self._seconds:
            return False
        if jax.process_index() == 0 and self._clock() - self._began >= self._seconds:
            self._agreed.request()
        return self._agreed.reached(step)
