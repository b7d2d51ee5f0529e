"""When a run saves and stops: SIGTERM, Ctrl-C and `train.checkpoint_minutes`, at the same step in all processes.

Outside the training loop the signals end a command: command/program.py.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

import jax

from cluster.cluster import key_value_store

_SAME_SIGNAL_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# From a request to the step at which all processes act: see `StopBarrier._agreed`.
_STEPS_AHEAD = 2
_barriers = itertools.count()

Request = Literal["", "save", "stop"]


class StopBarrier:
    """Chooses the steps after which all processes of a run save, or save and stop, without a collective.

    Within this context the first SIGTERM or SIGINT is a request to stop. The second one ends the program. A signal
    within a second of the first one is the same request: a scheduler may signal a process and its parent, which
    forwards the signal. A signal to one of several processes stops all of them. All must enter the contexts of this
    class in the same order.

    Args:
      warn: called with a message when the first signal arrives.
      minutes: `train.checkpoint_minutes`: a checkpoint is requested once this time has passed since the start or the
        last `restart`, by the clock of process 0; 0: never.
      clock: returns seconds.
    """

    def __init__(
        self, warn: Callable[[str], None], minutes: float = 0.0, *, clock: Callable[[], float] = time.monotonic
    ):
        self._warn, self._seconds, self._clock = warn, 60 * minutes, clock
        self._signalled_at: float | None = None
        self._previous_handlers = {}
        self._folder, self._round = f"cloze/stop/{next(_barriers)}", 0

    def __enter__(self) -> Self:
        # Python lets only the main thread install handlers; a run in another thread of a program is not signalled.
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            self._previous_handlers[number] = signal.signal(number, self._handle)
        self.restart()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def restart(self) -> None:
        """Starts to measure the time anew, after any checkpoint."""
        self._began = self._clock()

    def reached(self, step: int) -> Request:
        """Returns what to do after `step`. To be called after every step, in all processes."""
        request: Request = ""
        if self._signalled_at is not None:
            request = "stop"
        elif jax.process_index() == 0 and self._seconds and self._clock() - self._began >= self._seconds:
            request = "save"
        return request if jax.process_count() == 1 else self._agreed(step, request)

    def _agreed(self, step: int, request: Request) -> Request:
        """Returns what all processes do after `step`, where this one would do `request`.

        They agree through the key-value store of JAX's coordination service: the first request names a step
        _STEPS_AHEAD steps later, and every process reads it there after each step. No process can have passed that
        step, provided that each waits for the metrics of a step, which all processes compute together, before it calls
        `reached` for the next one.
        """
        store, folder = key_value_store(), f"{self._folder}/{self._round}/"
        if request:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # there is a request already
                store.key_value_set(f"{folder}request", f"{step + _STEPS_AHEAD} {request}")
        for _, found in store.key_value_dir_get(folder):
            chosen, _, what = found.partition(" ")
            if step > int(chosen):
                raise RuntimeError(f"step {step} is after step {chosen}, at which all processes {what}")
            if step == int(chosen):
                self._round += 1
                return what
        return ""

    def _handle(self, number: int, _) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            name = signal.Signals(number).name
            self._warn(f"{name}: saving a checkpoint, then stopping; a second signal stops at once")
        elif now - self._signalled_at >= _SAME_SIGNAL_SECONDS:
            signal.signal(number, self._previous_handlers[number])
            os.kill(os.getpid(), number)
