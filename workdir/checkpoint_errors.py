"""Errors of checkpoints in one line: of files that are damaged, and of those that cannot be written."""

import asyncio
import contextlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

from etils import epath

from cluster.cluster import Cluster
from contract.errors import ConfigError
from files.paths import describe_os_error, os_error_in
from workdir.bucket_checkpoints import shown

# In the errors of TensorStore and JAX for a checkpoint that may be whole.
_NOT_DAMAGE = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED")
_JSON_FILES = ("state/_METADATA", "state/array_metadatas/*")  # whose errors do not name them


class DamagedCheckpointError(ConfigError):
    """A file of a checkpoint is missing or unreadable, or an array differs from its checksum.

    Attributes:
      folder: of the checkpoint.
      what: the file or the array, and what is wrong with it.
      before: the step of the checkpoint before this one; None if it is the first.
    """

    def __init__(self, folder: Any, what: str, before: int | None):
        remedy = "no checkpoint is before it" if before is None else f"use the one before it, --step={before}"
        super().__init__(f"checkpoint {folder} is damaged ({what}): {remedy}")
        self.folder, self.what, self.before = folder, what, before


class Damage(Exception):
    """What is wrong with a checkpoint, before it is known which one it is."""


@contextlib.contextmanager
def same_outcome(folder: epath.Path, before: int | None) -> Iterator[None]:
    """Raises an error of the block, which reads the checkpoint `folder`, in every process.

    The block must not communicate. Its errors are Damage, and those of Orbax and TensorStore, which have many types.
    They become a DamagedCheckpointError, except those that say nothing about the files.

    before: the attribute of that error.
    """
    error: Exception | None = None
    try:
        with _ends_all_tasks():
            yield
    except Exception as caught:
        error = caught
    is_damage = error is not None and _is_damage(error)
    what = None if error is None else _damaged_part(folder, error) if is_damage else _in_one_line(str(error))
    failed = [
        report for report in Cluster().all_gather({"what": what, "is_damage": is_damage}) if report["what"] is not None
    ]
    if not failed:
        return
    if error is not None and not is_damage:
        raise error
    for report in failed:
        if not report["is_damage"]:
            raise ConfigError(f"checkpoint {shown(folder)} cannot be read: {report['what']}") from error
    raise DamagedCheckpointError(shown(folder), failed[0]["what"], before) from error


def _is_damage(error: Exception) -> bool:
    """Returns whether an error means that a checkpoint's files are damaged: not one of memory or of access rights."""
    other = (ConfigError, MemoryError, PermissionError)
    causes = (error, _root(error))
    return not any(isinstance(cause, other) or any(word in str(cause) for word in _NOT_DAMAGE) for cause in causes)


def _root(error: BaseException) -> BaseException:
    """Returns the error from which `error` was raised in the end."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _damaged_part(folder: epath.Path, error: Exception) -> str:
    """Returns which file or array of the checkpoint is damaged, and how, from an error of reading it."""
    root = _root(error)
    # Without TensorStore's description of the array, which follows its errors.
    reason = _in_one_line(str(root).partition(" [tensorstore_spec")[0].replace(f"{shown(folder)}/", ""))
    if isinstance(root, Damage) or reason != _in_one_line(str(root)):
        return reason
    for path in sorted(path for pattern in _JSON_FILES for path in folder.glob(pattern)):
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError):
            return f"{path.relative_to(folder)} is not the JSON that was saved"
    return f"state: {type(root).__name__}: {reason}"


@contextlib.contextmanager
def _ends_all_tasks() -> Iterator[None]:
    """Within this context, an event loop that is closed waits for its tasks first.

    Orbax closes its loop as soon as one array cannot be read. TensorStore then prints a traceback for each array whose
    reading ends later.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of policies, since Python 3.14
        policy = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(_WaitingPolicy())
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.set_event_loop_policy(policy)


class _WaitingLoop(asyncio.SelectorEventLoop):
    def close(self) -> None:
        tasks = [] if self.is_closed() else asyncio.all_tasks(self)
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))
        super().close()


class _WaitingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _WaitingLoop()


@contextlib.contextmanager
def errors_in_one_line(what: str) -> Iterator[None]:
    """Raises every error within this context as a ConfigError with the line "what: reason".

    Errors of Orbax and TensorStore have many types.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else os_error_in(str(error))
        raise ConfigError(f"{what}: {_in_one_line(reason or str(error))}") from error


def _in_one_line(text: str) -> str:
    reason = " ".join(text.split())
    if len(reason) > 300:  # the cause ("No space left on device") is at the end
        reason = f"{reason[:140]} ... {reason[-140:]}"
    return reason
