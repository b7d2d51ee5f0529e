"""TensorBoard's event files in workdir/tensorboard."""

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping

from files.atomic import GrowingObject
from files.paths import in_bucket, make_folder
from workdir.tracking.tracker import TrackedRun


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Within this context `import torch` raises ImportError, unless torch is already imported."""
    is_imported = "torch" in sys.modules
    if not is_imported:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not is_imported:
            del sys.modules["torch"]


# tensorboardX imports PyTorch where it is installed, for functions that are not used here. That takes seconds.
with _without_torch():
    from tensorboardX import summary
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import register_writer_factory

# Before the path of a file in a bucket: tensorboardX's own writers of gs:// and s3:// need further packages, and write
# the whole file at every event.
_IN_BUCKET = "cloze"


class _BucketFiles:
    """What tensorboardX calls a writer factory."""

    def open(self, path: str) -> GrowingObject:
        return GrowingObject(path.removeprefix(f"{_IN_BUCKET}:"))

    def directory_check(self, path: str) -> None:
        """Does nothing: a bucket has no folders."""


register_writer_factory(_IN_BUCKET, _BucketFiles())


class TensorBoard:
    """Writes events to workdir/tensorboard, in the calling thread and at once, so that a failed write raises OSError.

    Those of a workdir in a bucket are uploaded as files/atomic.py says.

    tensorboardX.SummaryWriter writes in a thread of its own. After a failed write, this thread ends, and the next
    writes wait for it forever.

    A continued run has a file of its own, whose first event makes TensorBoard hide the later steps of earlier files.
    """

    address = ""  # a part of the workdir

    def __init__(self, run: TrackedRun):
        folder = os.path.join(run.workdir, "tensorboard")
        make_folder(folder)
        prefix = f"{_IN_BUCKET}:" if in_bucket(folder) else ""
        self._events = EventsWriter(prefix + os.path.join(folder, "events"), f".from_{run.resume_step}")
        first = run.resume_step + 1 if run.resume_step else 0
        self._events.write_event(Event(step=first, file_version="brain.Event:2"))
        self._events.write_event(Event(step=first, session_log=SessionLog(status=SessionLog.START)))
        self.text(run.resume_step, "config", json.dumps(run.config, indent=2))

    @staticmethod
    def check() -> None:
        """Does nothing: tensorboardX is installed with this project."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in values.items():
            self._write(step, summary.scalar(name, value))
        self._events.flush()

    def text(self, step: int, name: str, text: str) -> None:
        """Writes a text as a block of code, because TensorBoard shows texts as Markdown."""
        self._write(step, summary.text(name, textwrap.indent(text, "    ", lambda _: True)))
        self._events.flush()

    def close(self, *, failed: bool) -> None:
        """Closes the file."""
        self._events.close()

    def _write(self, step: int, values: summary.Summary) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, summary=values))
