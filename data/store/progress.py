"""The progress of the preparation of a corpus: MB/s, documents/s and the time left."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_LINE_SECONDS = 10.0


class PrepareProgress:
    """Shows how much has been read: a bar in a terminal, or a line of standard error every ten seconds.

    Attributes:
      num_bytes, num_documents: what has been read.
    """

    def __init__(self, total_bytes: int, *, shown: bool = True):
        """total_bytes: approximate."""
        self.num_bytes = self.num_documents = 0
        self._total, self._began, self._last_line = total_bytes, time.monotonic(), time.monotonic()
        console = Console(stderr=True)
        self._lines = shown and not console.is_interactive
        columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), DownloadColumn()]
        columns += [TextColumn("{task.fields[rates]}"), TimeRemainingColumn()]
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_interactive))
        self._task = self._bar.add_task("tokenizing", total=total_bytes, rates="")

    def __enter__(self) -> "PrepareProgress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def add(self, num_bytes: int, num_documents: int) -> None:
        """Counts what has been read since the last call."""
        self.num_bytes += num_bytes
        self.num_documents += num_documents
        seconds = max(time.monotonic() - self._began, 1e-9)
        rates = f"{self.num_bytes / 1e6 / seconds:,.1f} MB/s, {self.num_documents / seconds:,.0f} documents/s"
        self._bar.update(self._task, completed=min(self.num_bytes, self._total), rates=rates)
        if self._lines and time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            left = max(self._total - self.num_bytes, 0) / max(self.num_bytes, 1) * seconds
            of_all = f"{self.num_bytes / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"
            print(f"prepare: {of_all}, {rates}, {left:,.0f} s left", file=sys.stderr, flush=True)

    def stage(self, name: str) -> None:
        """Shows in the bar what follows, whose end is not known."""
        self._bar.update(self._task, description=name, total=None)
