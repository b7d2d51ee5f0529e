"""The tools of `train.trackers`, which show the metrics of runs: TensorBoard, Weights & Biases and trackio.

A tracker may fail without ending the run, because metrics.jsonl has everything that it shows.
"""

import dataclasses
import html
import importlib.util
import json
import os
import shlex
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from contract.errors import STOPS, ConfigError, one_line
from files.atomic import GrowingObject, read_json, write_json
from files.paths import exists, in_bucket, make_folder

# tensorboardX imports PyTorch where it is installed, for functions that are not used here. That takes seconds.
_HIDES_TORCH = "torch" not in sys.modules
if _HIDES_TORCH:
    sys.modules["torch"] = None  # type: ignore[assignment]
from tensorboardX import summary  # noqa: E402
from tensorboardX.event_file_writer import EventsWriter  # noqa: E402
from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: E402
from tensorboardX.record_writer import register_writer_factory  # noqa: E402

if _HIDES_TORCH:
    del sys.modules["torch"]

# Before the path of a file in a bucket: tensorboardX's own writers of gs:// and s3:// need further packages, and write
# the whole file at every event.
_IN_BUCKET = "cloze"


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it."""

    workdir: str
    project: str  # `train.tracker_project`
    run_id: str  # the same after a restart
    config: Mapping[str, Any]  # resolved
    resume_step: int  # of the checkpoint that the run continues from; 0 for a new run

    @property
    def name(self) -> str:
        """The name of the workdir with the id, which distinguishes runs in folders of the same name."""
        return f"{os.path.basename(os.path.realpath(self.workdir))}-{self.run_id}"


class _BucketFiles:
    """What tensorboardX calls a writer factory."""

    def open(self, path: str) -> GrowingObject:
        return GrowingObject(path.removeprefix(f"{_IN_BUCKET}:"))

    def directory_check(self, path: str) -> None:
        """Does nothing: a bucket has no folders."""


register_writer_factory(_IN_BUCKET, _BucketFiles())


class TensorBoard:
    """Writes events to workdir/tensorboard, in the calling thread and at once.

    tensorboardX.SummaryWriter writes in a thread of its own, which ends after a failed write; the next writes wait for
    it forever. Events of a workdir in a bucket are uploaded as files/atomic.py says.

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

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._write(step, summary.scalar(name, value))
        self._events.flush()

    def text(self, step: int, name: str, text: str) -> None:
        self._write(step, summary.text(name, _as_code(text)))
        self._events.flush()

    def close(self, failed: bool) -> None:
        self._events.close()

    def _write(self, step: int, values: summary.Summary) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, summary=values))


class WandB:
    """Logs to a run of Weights & Biases with the TrackedRun's id, which exists already if the run was restarted.

    wandb's own variables select the rest: WANDB_MODE=offline, WANDB_ENTITY, WANDB_BASE_URL, WANDB_TAGS, ... Its local
    files are in workdir/wandb.

    wandb ignores values of a step that is lower than one it has seen (`log(step=...)`). So `step` is a metric, and the
    axis of all others: the steps after a checkpoint, which a continued run writes again, are points at the same places.
    """

    def __init__(self, run: TrackedRun):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.name,
            dir=tempfile.gettempdir() if in_bucket(run.workdir) else run.workdir,
            config=dict(run.config),
            allow_val_change=True,  # a continued run may change fields
            resume="allow",
            settings=wandb.Settings(
                console="off",
                silent=True,
                reinit="create_new",  # a study trains several runs in one process
                init_timeout=60,
                finish_timeout=60,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        offline = f"offline: to upload it, wandb sync {shlex.quote(str(run.workdir))}/wandb/offline-run-*-{run.run_id}"
        self.address = offline if self._run.offline else f"{self._run.url}"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({"step": step, name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class Trackio:
    """Logs to a run of trackio with the TrackedRun's name, which exists already if the run was restarted.

    trackio's own variables select the rest: TRACKIO_DIR, the folder of its files; TRACKIO_SPACE_ID or
    TRACKIO_SERVER_URL, where it sends them. Without these, it needs no network.
    """

    def __init__(self, run: TrackedRun):
        import trackio

        self._trackio = trackio
        self._run = trackio.init(run.project, name=run.name, config=dict(run.config), resume="allow", embed=False)
        self.address = f"{run.name}: trackio show --project {run.project}"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({name: self._trackio.Markdown(_as_code(text))}, step=step)

    def close(self, failed: bool) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[TrackedRun], Any]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


class Guarded:
    """A tracker whose failure does not end the training.

    Raises ConfigError if the tracker cannot start.
    """

    def __init__(self, name: str, run: TrackedRun, warn: Callable[[str], Any]):
        self._name, self._warn = name, warn
        try:
            self._tracker = TRACKERS[name](run)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"train.trackers has {name!r}, which cannot start: {_one_line(error)}: remove it from train.trackers, "
                "or see its offline mode in docs/tracking.md"
            ) from error
        self.address = f"{name}: {self._tracker.address}" if self._tracker.address else ""

    def call(self, method: str, *arguments: Any) -> None:
        """Calls `scalars`, `text` or `close` of the tracker.

        A call that raises is reported by `warn` in one line, and the tracker receives nothing more from this start of
        the run. The next start of the run begins with it again.
        """
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, method)(*arguments)
        except STOPS:
            raise
        except BaseException as error:
            self._tracker = None
            reason = f"{_one_line(error)}; metrics.jsonl is complete"
            self._warn(f"the tracker {self._name} failed, and receives nothing more: {reason}")


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError in process 0, the only one that writes, if a tracker of `train.trackers` is not installed."""
    for name in names:
        if jax.process_index() == 0 and name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise ConfigError(f"train.trackers has {name!r}, which is not installed: pip install -e '.[{name}]'")


def open_trackers(
    workdir: str, config: Mapping[str, Any], resume_step: int, warn: Callable[[str], Any]
) -> list[Guarded]:
    """Returns the trackers of `config`'s train.trackers, started. Raises ConfigError if one cannot start."""
    names = config["train"]["trackers"]
    run_id = stable_run_id(workdir, resumes=resume_step > 0) if set(names) - {"tensorboard"} else ""
    run = TrackedRun(workdir, config["train"]["tracker_project"], run_id, config, resume_step)
    return [Guarded(name, run, warn) for name in names]


def stable_run_id(workdir: str, *, resumes: bool) -> str:
    """Returns the id of a run in its trackers, 8 hexadecimal digits, which tracking.json in its workdir keeps.

    resumes: whether the run continues from a checkpoint. A run that starts from step 0 is a new one.
    """
    path = os.path.join(workdir, "tracking.json")
    if resumes and exists(path):
        return read_json(path, remedy="delete it to continue as a new run in the trackers")["run_id"]
    run_id = uuid.uuid4().hex[:8]
    write_json(path, {"run_id": run_id})
    return run_id


def _as_code(text: str) -> str:
    """Returns `text` as a block of code in Markdown, which TensorBoard and trackio then show unchanged."""
    return textwrap.indent(text, "    ", lambda _: True)


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(one_line(error), 300, placeholder="...")
