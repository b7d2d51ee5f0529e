"""Calls of a tracker over the network: bounded in time, and switched off after the first failure."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from contract.errors import ConfigError
from workdir.tracking.tracker import TrackedRun, Tracker

_START_SECONDS, _WRITE_SECONDS, _CLOSE_SECONDS = 120, 30, 120


class Guarded:
    """A Tracker whose failure does not end the training, because metrics.jsonl has all that it shows.

    A call that raises, or takes more than `_WRITE_SECONDS`, is reported by `warn` in one line, and the tracker receives
    nothing more from this start of the run. The next start of the run begins with it again.

    Raises ConfigError if the tracker cannot start.
    """

    def __init__(
        self, name: str, tracker: Callable[[TrackedRun], Tracker], run: TrackedRun, warn: Callable[[str], Any]
    ):
        self._name, self._warn = name, warn
        self._tracker: Tracker | None = None
        try:
            self._tracker = within(_START_SECONDS, lambda: tracker(run))
        except Exception as error:
            raise ConfigError(
                f"train.trackers has {name!r}, which cannot start: {one_line(error)}: remove it from train.trackers, "
                "or see its offline mode in docs/tracking.md"
            ) from error
        self.address = self._tracker.address

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars."""
        self._call(_WRITE_SECONDS, step, lambda tracker: tracker.scalars(step, values))

    def text(self, step: int, name: str, text: str) -> None:
        """Writes a text."""
        self._call(_WRITE_SECONDS, step, lambda tracker: tracker.text(step, name, text))

    def close(self, *, failed: bool) -> None:
        """Ends the run in the tracker."""
        self._call(_CLOSE_SECONDS, None, lambda tracker: tracker.close(failed=failed))
        self._tracker = None

    def _call(self, seconds: float, step: int | None, call: Callable[[Tracker], None]) -> None:
        tracker = self._tracker
        if tracker is None:
            return
        try:
            within(seconds, lambda: call(tracker))
        except Exception as error:
            self._tracker = None
            when = "at the end of the run" if step is None else f"at step {step}, and receives nothing more"
            self._warn(f"the tracker {self._name} failed {when}: {one_line(error)}; metrics.jsonl is complete")


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Returns what `call` returns or raises what it raises; TimeoutError after `seconds`, and the call goes on.

    The call is made in a thread that does not keep the program from ending.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds} seconds")
    [(value, error)] = outcome
    if error is not None:
        raise error
    return value


def one_line(error: BaseException) -> str:
    """Returns the type and the message of an error in one line of at most 300 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else f"{text[:297]}..."
