"""trackio, Hugging Face's tracker with local files, which the extra `trackio` installs."""

import contextvars
import importlib.util
import textwrap
from collections.abc import Mapping

from contract.errors import ConfigError
from workdir.tracking.tracker import TrackedRun


class Trackio:
    """Logs to a run of trackio with the TrackedRun's name, which exists already if the run was restarted.

    trackio's own variables select the rest: TRACKIO_DIR, the folder of its files; TRACKIO_SPACE_ID or
    TRACKIO_SERVER_URL, where it sends them. Without these, it needs no network.

    trackio keeps every value. The steps after a checkpoint, which a continued run writes again, are points at the same
    places. Its log() returns at once, and a thread of its own writes; its failures are warnings.
    """

    def __init__(self, run: TrackedRun):
        import trackio

        self._trackio = trackio
        # trackio.init ends the run of its context variable, which may be another run of this process.
        self._run = contextvars.Context().run(
            trackio.init, run.project, name=run.name, config=dict(run.config), resume="allow", embed=False
        )
        self.address = f"{run.name}: trackio show --project {run.project}"

    @staticmethod
    def check() -> None:
        """Raises ConfigError if trackio is not installed."""
        if importlib.util.find_spec("trackio") is None:
            raise ConfigError("train.trackers has 'trackio', which is not installed: pip install -e '.[trackio]'")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Logs scalars."""
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Logs a text as a Markdown block of code."""
        self._run.log({name: self._trackio.Markdown(textwrap.indent(text, "    ", lambda _: True))}, step=step)

    def close(self, *, failed: bool) -> None:
        """Waits until everything is written, for 30 seconds at most."""
        self._run.finish()
