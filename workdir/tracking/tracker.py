"""What a tracker is: a tool that shows the metrics of runs."""

import dataclasses
import os
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from contract.errors import ConfigError
from files.atomic import read_json, write_json
from files.paths import exists


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


class Tracker(Protocol):
    """A tool that shows the metrics of runs.

    Made from a TrackedRun, whose config it writes. Every method may raise any exception if it cannot write.

    Attributes:
      address: where to look at the run, for people; "" if this is known without saying it.
    """

    address: str

    def __init__(self, run: TrackedRun): ...

    @staticmethod
    def check() -> None:
        """Raises ConfigError if the tracker cannot work on this machine. Cheap enough for the start of a command."""
        ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes finite values, such as {"train/loss": 2.5}."""
        ...

    def text(self, step: int, name: str, text: str) -> None:
        """Writes a text of several lines, to be shown unchanged."""
        ...

    def close(self, *, failed: bool) -> None:
        """Writes what is still in memory and ends the run. failed: whether an error has ended the training."""
        ...


def stable_run_id(workdir: str, *, resumes: bool) -> str:
    """Returns the id of a run in its trackers, 8 hexadecimal digits, which tracking.json in its workdir keeps.

    resumes: whether the run continues from a checkpoint. A run that starts from step 0 is a new one.

    Raises ConfigError if the file is damaged, and OSError if it cannot be written.
    """
    path, remedy = os.path.join(workdir, "tracking.json"), "delete it to continue as a new run in the trackers"
    if resumes and exists(path):
        run_id = read_json(path, remedy=remedy).get("run_id")
        if not isinstance(run_id, str) or not run_id:
            raise ConfigError(f"{path} is damaged: run_id={run_id!r} must be a text: {remedy}")
        return run_id
    run_id = uuid.uuid4().hex[:8]
    write_json(path, {"run_id": run_id})
    return run_id
