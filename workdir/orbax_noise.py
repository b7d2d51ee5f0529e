"""Silences what Orbax and TensorStore print in addition to the errors that they raise."""

import logging
import os
import sys
from typing import Any


def silence_orbax() -> None:
    """Hides Orbax's log messages, and the tracebacks of its threads after a failed write. May be called repeatedly.

    Orbax both logs and raises its errors; its other messages (retries, clean-up, timing) do not help a user. After the
    first failed write of a checkpoint it closes its event loop. asyncio then logs a traceback for each other write that
    has failed, and TensorStore prints one for each that fails later, because it cannot report to that loop.
    """
    logging.getLogger("absl").addFilter(_not_from_orbax)
    logging.getLogger("asyncio").addFilter(_not_of_a_task_of_orbax)
    if not getattr(sys.unraisablehook, "hides_closed_loops", False):
        sys.unraisablehook = _without_closed_loops(sys.unraisablehook)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    """Returns whether a log record is from outside Orbax."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_of_a_task_of_orbax(record: logging.LogRecord) -> bool:
    """Returns whether a log record of asyncio is about something else than an error in a task of Orbax."""
    text = record.getMessage()
    return not ("exception was never retrieved" in text and f"{os.sep}orbax{os.sep}" in text)


def _without_closed_loops(before: Any) -> Any:
    def hook(unraisable: Any) -> None:
        is_closed_loop = isinstance(unraisable.exc_value, RuntimeError) and unraisable.object is None
        if not (is_closed_loop and str(unraisable.exc_value) == "Event loop is closed"):
            before(unraisable)

    hook.hides_closed_loops = True  # type: ignore[attr-defined]
    return hook
