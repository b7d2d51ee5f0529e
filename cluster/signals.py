"""What SIGTERM and Ctrl-C do while a run trains: it saves and stops, at the same step in all processes.

Outside the training loop they end a command: command/program.py.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from cluster.agreed_step import AgreedStep

_SAME_REQUEST_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Within this context, SIGTERM and Ctrl-C have no effect until its end.

    For what must not be interrupted: Orbax's threads go on writing after an exception in the main thread. Other threads
    receive no signals, and for them the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = {number: signal.signal(number, lambda n, _: received.append(n)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


class StopRequest:
    """Within this context, the first SIGTERM or SIGINT is a request to stop. The second one ends the program.

    A signal within a second of the first one is the same request: a scheduler may signal a process and its parent,
    which forwards the signal.

    With several processes a signal to one of them stops all of them, at the same step. All must enter the context.

    warn: called with a message when the first signal arrives.
    """

    def __init__(self, warn: Callable[[str], None]):
        self._warn, self._agreed = warn, AgreedStep()
        self._received = False
        self._received_at = 0.0
        self._previous_handlers = {}

    def __enter__(self) -> Self:
        self._agreed.__enter__()
        for number in _SIGNALS:
            self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._agreed.__exit__()

    def requested(self, step: int) -> bool:
        """Returns whether to stop after `step`. To be called after every step, in all processes."""
        if self._received:
            self._agreed.request()
        return self._agreed.reached(step)

    def _handle(self, number: int, _) -> None:
        if self._received and time.monotonic() - self._received_at < _SAME_REQUEST_SECONDS:
            return
        if self._received:
            signal.signal(number, self._previous_handlers[number])
            os.kill(os.getpid(), number)
            return
        self._received, self._received_at = True, time.monotonic()
        self._warn(f"{signal.Signals(number).name}: saving a checkpoint, then stopping; a second signal stops at once")
