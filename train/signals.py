"""SIGTERM and Ctrl-C as a request to save and stop, agreed on by all processes."""

import os
import signal
from collections.abc import Callable
from typing import Self

import jax
import numpy as np
from jax.experimental import multihost_utils


class StopRequest:
    """While entered, the first SIGTERM or SIGINT is noted instead of ending the program; a second one ends it.

    `warn` is told once. With several processes they agree every `every` steps, so that all stop at the same step
    whichever of them was told.
    """

    def __init__(self, warn: Callable[[str], None], *, every: int):
        self._warn, self._every = warn, every
        self._asked = False
        self._before = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self, step: int) -> bool:
        """Whether to stop after `step`. With several processes every one must ask, at the same steps."""
        if jax.process_count() == 1:
            return self._asked
        if step % self._every:
            return False
        return bool(multihost_utils.process_allgather(np.asarray(self._asked)).any())

    def _note(self, number: int, _) -> None:
        if self._asked:
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
            return
        self._asked = True
        self._warn(f"{signal.Signals(number).name}: saving after this step, then stopping; again to stop at once")
