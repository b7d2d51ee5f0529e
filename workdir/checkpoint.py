"""Checkpoints of the training state, which Orbax writes in the background: complete or absent, and verified when read.

    checkpoints/600/state/                arrays, as Orbax and TensorStore write them: zarr, one file for each shard
    checkpoints/600/record/record.json    eval loss, counters, and the type and checksum of each array

A local checkpoint is renamed to its step after everything is on disk. Nothing can be renamed in a bucket, where the
file commit_success.txt is written last, and a folder without it is no checkpoint. Orbax writes to gs:// itself. It has
no driver for s3://: a run of one process writes to a temporary folder and uploads it, and readers download.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from cluster.cluster import Cluster
from contract.errors import ConfigError
from files.atomic import parse_json, write_bytes
from files.paths import (
    absolute,
    copy_folder,
    describe_os_error,
    exists,
    in_bucket,
    is_file,
    is_folder,
    list_names,
    make_folder,
    os_error_in,
    read_text,
    remove,
    remove_folder,
    rename_folder,
)
from models.parameters import array_difference, array_types
from workdir.checksums import checksums

_RECORD = "record.json"
_UNFINISHED = ocp.utils.TMP_DIR_SUFFIX
_COMMITTED = "commit_success.txt"  # Orbax's name
_UPLOADED = ("s3://",)  # where Orbax cannot write
# In the errors of TensorStore and JAX for a checkpoint that may be intact.
_NOT_DAMAGE = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "Permission denied")
_NOT_DAMAGE += ("can't start new thread", "Too many open files", "Stale file handle")
# In a path of this machine: what Orbax and TensorStore change or cannot read.
_OTHER_FOLDER = re.compile(r"\\|(gs|s3):/|[\ud800-\udfff]")
_SAVE_SECONDS = 3600  # for the slowest process


class DamagedCheckpointError(ConfigError):
    """A file of a checkpoint is missing or unreadable, or an array differs from its checksum.

    Attributes:
      folder: of the checkpoint.
      what: the file or the array, and what is wrong with it.
      before: the step of the checkpoint before this one; None if it is the first.
    """

    def __init__(self, folder: str, what: str, before: int | None):
        remedy = "no checkpoint is before it" if before is None else f"use the one before it, --step={before}"
        super().__init__(f"checkpoint {folder} is damaged ({what}): {remedy}")
        self.folder, self.what, self.before = folder, what, before


class Checkpoints:
    """The checkpoints in `directory`, a folder for each step. With several processes, each must call every method.

    Args:
      directory: a folder on a file system that all processes share, or in a bucket. Created unless `keep` is None.
      keep: each save deletes all checkpoints except the `keep` newest and the one with the lowest eval loss. None
        opens `directory` for reading only, possibly during the run: nothing is created or deleted.
      after_commit: called after each save in process 0, in another thread.

    Raises ConfigError if `directory` cannot be written, or has a name that Orbax cannot.
    """

    def __init__(
        self, directory: str | os.PathLike, *, keep: int | None, after_commit: Callable[[], None] = lambda: None
    ):
        _print_errors_of_orbax_once()
        self._directory, self._keep, self._after_commit = absolute(directory), keep, after_commit
        if not in_bucket(directory) and _OTHER_FOLDER.search(self._directory):
            raise ConfigError(
                f"{self._directory}: Orbax would write to another folder, because the path has a backslash, gs:, s3: "
                "or a character that is not of UTF-8: choose a folder with another name"
            )
        self._uploads = self._directory.startswith(_UPLOADED)
        # Not OCDBT, which packs arrays into common files: here damage of a file is damage of one array.
        self._arrays = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._pending: concurrent.futures.Future[None] | None = None
        if keep is not None:
            by_file = in_bucket(self._directory) and not self._uploads
            mode = ocp.options.AtomicityMode.COMMIT_FILE if by_file else ocp.options.AtomicityMode.ATOMIC_RENAME
            self._checkpointer = ocp.AsyncCheckpointer(
                ocp.CompositeCheckpointHandler(state=self._arrays, record=ocp.JsonCheckpointHandler(_RECORD)),
                async_options=ocp.AsyncOptions(timeout_secs=_SAVE_SECONDS),
                atomicity_options=ocp.options.AtomicityOptions(mode=mode),
            )
            with Cluster().check_equal(), self._errors_in_one_line():
                if jax.process_index() == 0:
                    make_folder(self._directory)
                    self._delete_unfinished()

    def save(
        self, step: int, state: Any, *, eval_loss: float | None = None, counters: Mapping[str, Any] | None = None
    ) -> None:
        """Starts to write `state`, a tree of arrays, as `step`. Returns once the arrays may be donated or changed.

        Does nothing if `step` is not above `latest_step()`.

        Args:
          step: the number of completed steps.
          state: the same tree in all processes.
          eval_loss: nats per token on held-out data at this step. A checkpoint with None, or with a loss that is not
            finite, is never the best.
          counters: the state of run.metrics.Totals, JSON values. The values of process 0 are written.

        Raises ConfigError if the previous save failed.
        """
        self.wait()
        if step <= max(self.steps(), default=-1):
            return
        state = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf), state)
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state), record=ocp.args.JsonSave(_make_record(state, eval_loss, counters))
        )
        with self._errors_in_one_line():
            copy = tempfile.TemporaryDirectory() if self._uploads else None
            self._checkpointer.save(self._folder(step) if copy is None else os.path.join(copy.name, str(step)), args)
        self._pending = self._thread.submit(self._finish, step, copy)

    def _finish(self, step: int, copy: tempfile.TemporaryDirectory | None) -> None:
        """Waits until a save is on disk, uploads it if it is in the folder `copy`, and deletes old checkpoints."""
        with copy or contextlib.nullcontext():
            self._checkpointer.wait_until_finished()
            if copy is not None:
                copy_folder(os.path.join(copy.name, str(step)), self._folder(step))
                write_bytes(os.path.join(self._folder(step), _COMMITTED), b"")
        if jax.process_index() == 0:
            self._delete_old()
            self._after_commit()

    def wait(self) -> None:
        """Returns when every save is on disk. Raises ConfigError if a save failed."""
        pending, self._pending = self._pending, None
        with self._errors_in_one_line():
            if pending is not None:
                pending.result()

    close = wait

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending."""
        names = list_names(self._directory) if is_folder(self._directory) else []
        steps = [int(name) for name in names if name.isdecimal() and str(int(name)) == name]  # not "02" or "٣"
        return sorted(step for step in steps if self._is_complete(step))

    def latest_step(self) -> int | None:
        """Returns the newest step that has a checkpoint; None if there is no checkpoint."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """Returns the step of the checkpoint with the lowest eval loss; None if no checkpoint has one."""
        losses = {step: loss for step in self.steps() if math.isfinite(loss := self._eval_loss(step))}
        return min(losses, key=losses.get, default=None)

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the counters saved as `step`. Raises ConfigError if there are none, and DamagedCheckpointError."""
        counters = self._open(step)[1]["counters"]
        if counters is None:
            raise ConfigError(f"checkpoint {self._folder(step)} has no counters: no run has written it")
        return counters

    def restore(self, abstract_state: Any, step: int | None = None) -> Any:
        """Returns the state saved as `step` (default: the newest one), bit for bit, with new shardings.

        abstract_state: a tree of jax.ShapeDtypeStruct with shardings. The mesh may differ from that of the saved state.

        Raises ConfigError if there is no such checkpoint or if its arrays differ in name, shape or dtype, and
        DamagedCheckpointError if it is damaged; the same error in all processes.
        """
        step, record = self._open(step)
        return self._read(step, abstract_state, record["arrays"])

    def restore_params(self, abstract_params: Mapping[str, Any], step: int | None = None) -> tuple[dict[str, Any], int]:
        """Returns parameters of the state saved as `step` (default: the newest one), bit for bit, and that step.

        They are TrainState.eval_params: the averaged parameters, if the state has them. The rest of the state, such as
        the optimizer's arrays, is not read. The mesh may differ from that of the saved state.

        abstract_params: module -> a tree of jax.ShapeDtypeStruct with shardings. Other modules are not read.

        Raises errors as `restore`, for the arrays of these modules.
        """
        step, record = self._open(step)
        field = "ema_params" if any(name.startswith("ema_params/") for name in record["arrays"]) else "params"
        prefixes = tuple(f"{field}/{module}/" for module in abstract_params)
        saved = {name: array for name, array in record["arrays"].items() if name.startswith(prefixes)}
        return self._read(step, {field: dict(abstract_params)}, saved)[field], step

    def set_aside(self, steps: Sequence[int]) -> list[str]:
        """Renames the folders of damaged checkpoints, so that runs no longer read them, and returns the new names.

        The folder 200 becomes damaged-200, or damaged-200-2 if that exists. Nothing is deleted.
        """
        names = []
        with Cluster().check_equal():
            for step in steps if jax.process_index() == 0 else ():
                candidates = (f"damaged-{step}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
                names.append(next(name for name in candidates if not exists(os.path.join(self._directory, name))))
                rename_folder(self._folder(step), os.path.join(self._directory, names[-1]))
        return Cluster().all_gather(names)[0]

    def _read(self, step: int, wanted: Any, saved: Mapping[str, Mapping[str, str]]) -> Any:
        """Returns the tree `wanted` with the saved arrays, verified. saved: name -> {"type", "checksum"}."""
        # Orbax would convert dtypes silently.
        types = {name: array["type"] for name, array in saved.items()}
        if difference := array_difference(types, array_types(wanted)):
            raise ConfigError(
                f"checkpoint {self._folder(step)} contains another state: {difference}: "
                "use the config of the run that saved it, or choose another --workdir"
            )
        restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
        args = ocp.args.PyTreeRestore(wanted, restore_args=restore_args, partial_restore=True)

        def read() -> Any:
            with self._arrays_folder(step) as folder:
                arrays = self._arrays.restore(epath.Path(folder), args=args)
            # From some damaged files Orbax returns objects that are no arrays, some of them with a dtype.
            for (name, expected), found in zip(array_types(wanted).items(), jax.tree.leaves(arrays), strict=True):
                if not isinstance(found, (jax.Array, np.ndarray, np.generic)) or found.dtype == object:
                    raise ValueError(f"{name} is no array of {expected}")
            return arrays

        arrays = self._in_all_processes(step, read)
        sums = checksums(arrays)  # communicates, so it is not a part of `check`

        def check() -> None:
            differing = [name for name, checksum in sums.items() if saved[name]["checksum"] != checksum]
            if differing:
                more = f", and so do {len(differing) - 1} more arrays" if len(differing) > 1 else ""
                raise ValueError(f"{differing[0]} differs from its checksum{more}")

        self._in_all_processes(step, check)
        return arrays

    @contextlib.contextmanager
    def _arrays_folder(self, step: int) -> Iterator[str]:
        """Yields the folder of a checkpoint's arrays, or a copy on this machine where Orbax cannot read."""
        folder = os.path.join(self._folder(step), "state")
        with tempfile.TemporaryDirectory() if self._uploads else contextlib.nullcontext() as copy:
            if copy is not None:
                try:
                    copy_folder(folder, copy)
                except FileNotFoundError:  # a part of the checkpoint is gone
                    raise
                except Exception as error:  # of the network, with many types; the checkpoint may be intact
                    raise ConfigError(f"{folder} cannot be downloaded: {_in_one_line(str(error))}") from error
            yield copy or folder

    def _in_all_processes(self, step: int, read: Callable[[], Any]) -> Any:
        """Returns what `read` returns, or raises DamagedCheckpointError in all processes if it fails in one."""
        result, what, failure = None, None, None
        try:
            result = read()
        except (MemoryError, ConfigError):
            raise
        except Exception as error:  # those of Orbax and TensorStore for a damaged file have many types
            root = error
            while root.__cause__ is not None:
                root = root.__cause__
            reason = str(root).partition(" [tensorstore_spec")[0].replace(f"{self._folder(step)}/", "")
            what, failure = _in_one_line(reason or type(root).__name__), error
        for reason in Cluster().all_gather(what):
            if reason is None:
                continue
            if any(word in reason for word in _NOT_DAMAGE):
                raise ConfigError(f"checkpoint {self._folder(step)} cannot be read: {reason}") from failure
            before = max((other for other in self.steps() if other < step), default=None)
            raise DamagedCheckpointError(self._folder(step), reason, before) from failure
        return result

    def _record(self, step: int) -> dict[str, Any]:
        """Returns record.json of a checkpoint. Raises ValueError or OSError if it is not what was written."""
        try:
            record = parse_json(read_text(os.path.join(self._folder(step), "record", _RECORD)))
            digest = record.pop("digest")
        except FileNotFoundError:
            raise ValueError(f"{_RECORD} is missing") from None
        except (ValueError, KeyError, AttributeError):
            raise ValueError(f"{_RECORD} is not what was written") from None
        if digest != _digest(record):
            raise ValueError(f"{_RECORD} differs from its checksum")
        return record

    def _eval_loss(self, step: int) -> float:
        """Returns the eval loss of a checkpoint; infinity if it has none, or is damaged."""
        try:
            loss = self._record(step)["eval_loss"]
        except (ValueError, OSError):
            loss = None
        return math.inf if loss is None else loss

    def _open(self, step: int | None) -> tuple[int, dict[str, Any]]:
        """Returns `step`, or the newest one, and its record, once the save that is being written has ended.

        Raises ConfigError, and DamagedCheckpointError.
        """
        self.wait()
        steps = self.steps()
        # Of a run that is still training, processes may see different newest checkpoints.
        newest = min(Cluster().all_gather(max(steps, default=-1)))
        if newest < 0:
            raise ConfigError(f"no checkpoint in {self._directory}: train this run first")
        if step is not None and step not in steps:
            raise ConfigError(f"no checkpoint of step {step} in {self._directory}: choose one of the steps {steps}")
        step = newest if step is None else step
        return step, self._in_all_processes(step, lambda: self._record(step))

    def _delete_old(self) -> None:
        """Deletes all checkpoints except those that `keep` says."""
        kept = {*self.steps()[-self._keep :], self.best_step()}
        for step in set(self.steps()) - kept:
            folder = self._folder(step)
            if in_bucket(folder):
                remove(os.path.join(folder, _COMMITTED))
            else:
                os.rename(folder, folder := folder + _UNFINISHED)  # half of a checkpoint must not look like one
            remove_folder(folder)

    def _delete_unfinished(self) -> None:
        """Deletes what killed processes left of saves and deletions."""
        for name in list_names(self._directory) if is_folder(self._directory) else ():
            step = name.partition(_UNFINISHED)[0]
            if step.isdecimal() and (step != name or not self._is_complete(int(step))):
                remove_folder(os.path.join(self._directory, name))

    def _is_complete(self, step: int) -> bool:
        return not in_bucket(self._directory) or is_file(os.path.join(self._folder(step), _COMMITTED))

    def _folder(self, step: int) -> str:
        return os.path.join(self._directory, str(step))

    @contextlib.contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        """Raises errors of this context, which have many types in Orbax, as a ConfigError in one line."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else os_error_in(str(error))
            reason = reason or _in_one_line(str(error))
            raise ConfigError(f"a checkpoint in {self._directory} could not be written: {reason}") from error


def abstract(state: Any, shardings: Any) -> Any:
    """Returns a tree of jax.ShapeDtypeStruct for `Checkpoints.restore`. `shardings` has the structure of `state`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


@functools.cache
def _print_errors_of_orbax_once() -> None:
    """Hides tracebacks of errors that Orbax also raises.

    It logs them. It closes its event loop after the first one, and Python prints the errors of the other reads and
    writes, which nobody awaits any more.
    """
    orbax, before = f"{os.sep}orbax{os.sep}", sys.unraisablehook

    def is_of_orbax(error: BaseException | None) -> bool:
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        return any(sign in text for sign in (orbax, "Event loop is closed", "[os_error_code="))  # the last: TensorStore

    sys.unraisablehook = lambda unraisable: is_of_orbax(unraisable.exc_value) or before(unraisable)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    logging.getLogger("absl").addFilter(lambda record: orbax not in record.pathname)
    logging.getLogger("asyncio").addFilter(lambda record: not (record.exc_info and is_of_orbax(record.exc_info[1])))


def _make_record(state: Any, eval_loss: float | None, counters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns record.json for a checkpoint of `state`. All processes must call this function."""
    types = array_types(state)
    arrays = {name: {"type": types[name], "checksum": checksum} for name, checksum in checksums(state).items()}
    eval_loss = eval_loss if eval_loss is not None and math.isfinite(eval_loss) else None
    # As it will be read: JSON makes keys strings, which have another order than numbers.
    record = json.loads(json.dumps({"eval_loss": eval_loss, "counters": counters, "arrays": arrays}))
    return record | {"digest": _digest(record)}


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()


def _in_one_line(text: str) -> str:
    """Returns an error of TensorStore without its specification of the array, which may be long."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-140:]}"
