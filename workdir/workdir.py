"""The folder of a run: the one place that knows what is in it and under which name."""

import contextlib
import datetime
import fcntl
import os
import platform
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from contract.errors import ConfigError
from data.tokenizers.base import Tokenizer
from files.atomic import read_json, write_bytes, write_json
from files.paths import (
    check_writable,
    exists,
    in_bucket,
    is_file,
    is_folder,
    make_folder,
    read_bytes,
    read_text,
    remove,
)
from workdir.checkpoint import Checkpoints
from workdir.metrics import Split, metrics_path, read_metrics
from workdir.run_config import IMPORTED_FILE, read_config, write_config

LOCK_FILE = "run.lock"
# Says that the run has had a checkpoint, so a run without one has lost its checkpoints.
FIRST_CHECKPOINT_MARKER = "first_checkpoint.json"
# A process that was killed has its lock until the kernel has freed its memory.
_DYING_SECONDS = 1.5


class Workdir:
    """The folder of a run, on this machine or in a bucket (gs://bucket/run, s3://bucket/run).

    Commands make it from their flag; everything else receives it. Nothing is read or created before a method is called,
    and no other module joins a name to its path:

        config.json       config(), write_config()         what the run was started with, resolved
        metrics.jsonl     metrics("eval")                  one dict a line
        checkpoints/      checkpoints(), steps(), counters(step)
        tokenizer/        write_tokenizer(), config_with_own_tokenizer()
        imported.json     is_imported, imported(), write_imported()   of a model from elsewhere
        run.lock          lock()
        tensorboard/, wandb/                               of the trackers

    `str(workdir)` is the path, for messages. A Workdir may be made from another one.

    Args:
      path: of the folder. "~" is the home directory, which the shell leaves as it is in --workdir=~/run.
      named_by: the flag or config field that names the folder, for messages.
    """

    def __init__(self, path: str | os.PathLike, *, named_by: str = "--workdir"):
        self.path, self.named_by = os.path.expanduser(os.fspath(path)), named_by

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    @property
    def exists(self) -> bool:
        """Whether there is such a folder."""
        return is_folder(self.path)

    def create(self) -> None:
        """Makes the folder; a bucket needs none, but access to it. Raises OSError.

        Raises ConfigError for s3:// with several processes, which Orbax cannot write a checkpoint to together.
        """
        if self.path.startswith("s3://") and jax.process_count() > 1:
            raise ConfigError(
                f"--workdir={self}: {jax.process_count()} processes cannot write checkpoints to s3://, for which Orbax "
                "has no driver: choose gs:// or a folder that all processes share, or start one process"
            )
        check_writable(self.path, f"--workdir={self}")
        make_folder(self.path)

    @property
    def has_config(self) -> bool:
        """Whether a run was started here, or a model imported."""
        return exists(self._join("config.json"))

    def config(self) -> dict[str, Any]:
        """Returns the resolved config of the run with its sections "corpus", "code" and "teacher", as nested dicts.

        Raises ConfigError if the folder has no readable config.json.
        """
        return read_config(self.path, named_by=self.named_by)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes the config, nested mappings of JSON values. Raises OSError."""
        write_config(self.path, config)

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Writes a copy of the tokenizer's files, which every reader of the run uses. Raises OSError."""
        for name, contents in tokenizer.files.items():  # the model last: a reader takes a copy that has the model
            path = self._join("tokenizer", name)
            make_folder(os.path.dirname(path))
            if not is_file(path) or read_bytes(path) != contents:
                write_bytes(path, contents)

    def config_with_own_tokenizer(self) -> dict[str, Any]:
        """Returns `config()` with the path of the run's own copy of the tokenizer in data.tokenizer, if it has one."""
        config = self.config()
        data = config.get("data")
        if not isinstance(data, Mapping) or not isinstance(path := data.get("tokenizer"), str):
            return config  # make_experiment names what is wrong
        name = os.path.basename(path) if path.endswith((".model", ".json")) else "tokenizer.json"
        copy = self._join("tokenizer", name)
        return {**config, "data": {**data, "tokenizer": copy if is_file(copy) else path}}

    @property
    def has_metrics(self) -> bool:
        """Whether metrics.jsonl exists."""
        return exists(metrics_path(self.path))

    def metrics(self, split: Split | None = None) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl in their order: those of `split`, or all.

        An incomplete last line, which a killed run leaves, is omitted. A value that is not finite is None.

        Raises ConfigError if the file cannot be read, or has a line that is not one of metrics.
        """
        return read_metrics(self.path, split)

    @contextlib.contextmanager
    def checkpoints(self, *, keep: int | None = None) -> Iterator[Checkpoints]:
        """Yields the checkpoints, and waits at the end until those that were saved are on disk.

        keep: how many of the newest a save leaves; None opens them for reading only, also while the run trains.
        """
        checkpoints = Checkpoints(self._join("checkpoints"), keep=keep, after_commit=self._mark_first_checkpoint)
        try:
            yield checkpoints
        finally:
            checkpoints.close()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending; [] where there is none."""
        with self.checkpoints() as checkpoints:
            return checkpoints.steps()

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the totals of examples, tokens and seconds up to the checkpoint `step` (run.metrics.Totals)."""
        with self.checkpoints() as checkpoints:
            return checkpoints.counters(step)

    @property
    def is_complete(self) -> bool:
        """Whether the run has made all of its steps."""
        return self.has_config and max(self.steps(), default=-1) >= self.config()["train"]["steps"]

    def check_not_lost(self) -> None:
        """Raises ConfigError if a run here has lost its checkpoints, so that starting it again would discard it.

        A run that was killed before its first checkpoint starts again from step 0.
        """
        if exists(self._join(FIRST_CHECKPOINT_MARKER)) and not self.steps():
            raise ConfigError(
                f"--workdir={self} contains a run, but {self._join('checkpoints')} has no checkpoint any more: put it "
                f"back, choose another --workdir, or delete {self} to discard the run"
            )

    def _mark_first_checkpoint(self) -> None:
        if not exists(self._join(FIRST_CHECKPOINT_MARKER)):
            write_json(self._join(FIRST_CHECKPOINT_MARKER), {"step": max(self.steps(), default=0)})

    @property
    def is_imported(self) -> bool:
        """Whether train.convert or Model.save wrote the folder: no run, but a model whose training text is unknown."""
        return exists(self._join(IMPORTED_FILE))

    def imported(self) -> dict[str, Any]:
        """Returns what `write_imported` wrote; {} for a run. Raises ConfigError if the file is damaged."""
        if not self.is_imported:
            return {}
        return read_json(self._join(IMPORTED_FILE), remedy="write the folder again")

    def write_imported(self, origin: Mapping[str, Any]) -> None:
        """Writes where the model is from, JSON values."""
        write_json(self._join(IMPORTED_FILE), origin)

    @property
    def tensorboard(self) -> str:
        """The folder of TensorBoard's files."""
        return self._join("tensorboard")

    @contextlib.contextmanager
    def lock(self) -> Iterator[str]:
        """Within this context no other process that takes the lock writes to the folder. Yields the lock's id.

        The lock of a local folder is flock's, which ends with its process, however it is killed. The lock of a bucket
        is an object, which a killed process leaves there.

        Raises ConfigError, one line that names the other process and its host, if the folder is in use.
        """
        path, id = self._join(LOCK_FILE), uuid.uuid4().hex[:16]
        since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {platform.node()}, which started at {since} (lock {id})"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context((_object_lock if in_bucket(path) else _flock)(path, holder.encode()))
            except BlockingIOError:
                remedy = f"if it was killed, delete {path}; otherwise " if in_bucket(path) else ""
                raise ConfigError(
                    f"--workdir={self} is in use by {read_text(path)}: {remedy}wait for its end, stop it, or choose "
                    "another --workdir"
                ) from None
            yield id

    def sees_lock(self, id: str, *, seconds: float) -> bool:
        """Returns whether this process sees the lock of another one within some time: both have the same folder.

        Network file systems show a new file to other hosts after up to a minute.
        """
        end = time.monotonic() + seconds
        while not exists(self._join(LOCK_FILE)) or id not in read_text(self._join(LOCK_FILE)):
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _join(self, *names: str) -> str:
        return os.path.join(self.path, *names)


@contextlib.contextmanager
def _flock(path: str, contents: bytes) -> Iterator[None]:
    """Holds flock's lock of a local file, and writes `contents` to it. Raises BlockingIOError if it is taken.

    The file stays: a process that waits for the lock of a deleted file would get one that nobody else sees.
    """
    end = time.monotonic() + _DYING_SECONDS
    # Not through a link, which a folder by somebody else may have: the file is emptied.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with open(descriptor, "ab", buffering=0) as file:
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.1)
            file.truncate(0)
            file.write(contents)
        except OSError as error:  # such as a full disk or one without locks: Python does not name an open file
            raise OSError(error.errno, error.strerror, path) from error
        yield


@contextlib.contextmanager
def _object_lock(path: str, contents: bytes) -> Iterator[None]:
    """Holds a lock that is an object in a bucket. Raises BlockingIOError if the object exists."""
    try:
        write_bytes(path, contents, replace=False)
    except FileExistsError:
        raise BlockingIOError from None
    if read_bytes(path) != contents:  # of two processes that write it at the same moment, the last one has the lock
        raise BlockingIOError
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            remove(path)
