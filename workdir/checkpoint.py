"""Checkpoints of the training state: written in the background, complete or absent, and verified when they are read.

    checkpoints/600/record.json          eval loss, counters, and the type and checksum of each array
    checkpoints/600/params/.../kernel/   an array as JAX and TensorStore write it: zarr, one chunk for each shard

A local checkpoint gets its name after everything is on disk: until then its folder is 600.tmp. Nothing can be renamed
in a bucket, where record.json is written last, and a folder without this file is no checkpoint.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import tensorstore
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

from cluster.cluster import Cluster
from contract.errors import ConfigError
from files.atomic import write_json
from files.paths import (
    absolute,
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
from models.parameters import array_types, leaf_name
from workdir.checksums import checksums

_RECORD = "record.json"
_UNFINISHED = ".tmp"
# In the errors of TensorStore for a checkpoint that may be intact.
_NOT_DAMAGE = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "Permission denied")
_READERS = 16  # arrays that are read at the same time
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
        opens `directory` for reading only, possibly during the run: nothing is created or deleted, and `save` raises.
      after_commit: called after each save in process 0, in another thread.

    Raises ConfigError if `keep` is below 1 or `directory` cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        keep: int | None,
        after_commit: Callable[[], None] = lambda: None,
    ):
        if keep is not None and keep < 1:
            raise ConfigError(
                f"train.keep_checkpoints={keep} must be 1 or more: a run continues from the newest checkpoint"
            )
        self._directory, self._keep, self._after_commit = absolute(directory), keep, after_commit
        self._manager = GlobalAsyncCheckpointManager(timeout_secs=_SAVE_SECONDS)
        self._saving = -1  # the newest step that was given to `save`
        self._eval_losses: dict[int, float] = {}
        if keep is not None:
            with Cluster().check_equal(), self._errors_in_one_line():
                if jax.process_index() == 0:
                    make_folder(self._directory)
                    self._delete_unfinished()

    def save(
        self,
        step: int,
        state: Any,
        *,
        eval_loss: float | None = None,
        counters: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts to write `state`, a tree of arrays, as `step`. Returns once the arrays may be donated or changed.

        Does nothing if `step` is not above `latest_step()`.

        Args:
          step: the number of completed steps.
          state: the same tree in all processes.
          eval_loss: nats per token on held-out data at this step. A checkpoint with None, or with a loss that is not
            finite, is never the best.
          counters: the state of run.metrics.Totals, JSON values. Those of process 0 are written.

        Raises ConfigError if the previous save failed, and ValueError if `directory` was opened for reading.
        """
        if self._keep is None:
            raise ValueError(f"{self._directory} was opened for reading: Checkpoints(..., keep=None)")
        self.wait()
        if step <= max(self._saving, *self.steps(), -1):
            return
        state = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf), state)
        record = _make_record(state, eval_loss, counters)
        folder = self._folder(step)
        written = folder if in_bucket(folder) else folder + _UNFINISHED
        arrays = _named(state)

        def commit() -> None:  # in process 0, once the arrays of all processes are on disk
            write_json(os.path.join(written, _RECORD), record)
            if written != folder:
                os.rename(written, folder)
            self._delete_old()
            self._after_commit()

        with self._errors_in_one_line():
            specs = [_spec(written, name) for name in arrays]
            self._manager.serialize(list(arrays.values()), specs, on_commit_callback=commit)
        self._saving = step

    def wait(self) -> None:
        """Returns when every save is on disk. Raises ConfigError if a save failed."""
        with self._errors_in_one_line():
            self._manager.wait_until_finished()

    close = wait

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending."""
        names = list_names(self._directory) if is_folder(self._directory) else []
        return sorted(int(name) for name in names if name.isdecimal() and self._is_complete(int(name)))

    def latest_step(self) -> int | None:
        """Returns the newest step that has a checkpoint; None if there is no checkpoint."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """Returns the step of the checkpoint with the lowest eval loss; None if no checkpoint has one."""
        losses = {step: loss for step in self.steps() if math.isfinite(loss := self._eval_loss(step))}
        return min(losses, key=losses.get, default=None)

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the counters saved as `step`. Raises ConfigError if there are none, and DamagedCheckpointError."""
        self._find(step)
        counters = self._in_all_processes(step, lambda: self._record(step))["counters"]
        if counters is None:
            raise ConfigError(f"checkpoint {self._folder(step)} has no counters: no run has written it")
        return counters

    def restore(self, abstract_state: Any, step: int | None = None) -> Any:
        """Returns the state saved as `step` (default: the newest one), bit for bit, with new shardings.

        abstract_state: a tree of jax.ShapeDtypeStruct with shardings. The mesh may differ from that of the saved state.

        Raises ConfigError if there is no such checkpoint or if its arrays differ in name, shape or dtype, and
        DamagedCheckpointError if it is damaged; the same error in all processes.
        """
        step = self._find(step)
        saved = self._in_all_processes(step, lambda: self._record(step))["arrays"]
        return self._read(step, abstract_state, saved)

    def restore_params(self, abstract_params: Mapping[str, Any], step: int | None = None) -> tuple[dict[str, Any], int]:
        """Returns parameters of the state saved as `step` (default: the newest one), bit for bit, and that step.

        They are TrainState.eval_params: the averaged parameters, if the state has them. The rest of the state, such as
        the optimizer's arrays, is not read. The mesh may differ from that of the saved state.

        abstract_params: module -> a tree of jax.ShapeDtypeStruct with shardings. Other modules are not read.

        Raises errors as `restore`, for the arrays of these modules.
        """
        step = self._find(step)
        saved = self._in_all_processes(step, lambda: self._record(step))["arrays"]
        field = "ema_params" if any(name.startswith("ema_params/") for name in saved) else "params"
        prefixes = tuple(f"{field}/{module}/" for module in abstract_params)
        saved = {name: array for name, array in saved.items() if name.startswith(prefixes)}
        return self._read(step, {field: dict(abstract_params)}, saved)[field], step

    def arrays(self, step: int) -> dict[str, jax.Array]:
        """Returns name -> each array of a checkpoint, verified, on this process's first device. Raises as `restore`."""
        folder, saved = (
            self._folder(self._find(step)),
            self._in_all_processes(step, lambda: self._record(step))["arrays"],
        )
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def read() -> list[jax.Array]:
            return _read_arrays(folder, dict.fromkeys(saved, (None, device)))

        arrays = dict(zip(saved, self._in_all_processes(step, read), strict=True))
        self._verify(step, arrays, saved)
        return arrays

    def set_aside(self, steps: Sequence[int]) -> list[str]:
        """Renames the folders of damaged checkpoints, so that runs no longer read them, and returns the new names.

        The folder 200 becomes damaged-200, or damaged-200-2 if that exists. Nothing is deleted.

        Raises ConfigError if a folder cannot be renamed.
        """
        names = []
        with Cluster().check_equal():
            for step in steps if jax.process_index() == 0 else ():
                candidates = (f"damaged-{step}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
                names.append(next(name for name in candidates if not exists(os.path.join(self._directory, name))))
                try:
                    rename_folder(self._folder(step), os.path.join(self._directory, names[-1]))
                except OSError as error:
                    raise ConfigError(
                        f"checkpoint {self._folder(step)} is damaged and cannot be renamed: {error.strerror}"
                    ) from error
        return Cluster().all_gather(names)[0]

    def _read(self, step: int, wanted: Any, saved: Mapping[str, Mapping[str, str]]) -> Any:
        """Returns the tree `wanted` with the saved arrays, verified. saved: name -> {"type", "checksum"}."""
        folder, leaves = self._folder(step), _named(wanted)
        _check_same_arrays(folder, {name: array["type"] for name, array in saved.items()}, array_types(wanted))

        def read() -> list[jax.Array]:
            return _read_arrays(folder, {name: (leaf.shape, leaf.sharding) for name, leaf in leaves.items()})

        arrays = jax.tree.unflatten(jax.tree.structure(wanted), self._in_all_processes(step, read))
        self._verify(step, arrays, saved)
        return arrays

    def _verify(self, step: int, arrays: Any, saved: Mapping[str, Mapping[str, str]]) -> None:
        """Raises DamagedCheckpointError unless a tree of arrays is what was saved."""
        sums = checksums(arrays)  # communicates, so it is not a part of `check`

        def check() -> None:
            differing = [name for name, checksum in sums.items() if saved[name]["checksum"] != checksum]
            if differing:
                more = f", and so do {len(differing) - 1} more arrays" if len(differing) > 1 else ""
                raise ValueError(f"{differing[0]} differs from its checksum{more}")

        self._in_all_processes(step, check)

    def _in_all_processes(self, step: int, read: Callable[[], Any]) -> Any:
        """Returns what `read` returns, or raises DamagedCheckpointError in all processes if it fails in one."""
        result, what, failure = None, None, None
        try:
            result = read()
        except (ValueError, OSError) as error:
            what, failure = _in_one_line(str(error)), error
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
            record = json.loads(read_text(os.path.join(self._folder(step), _RECORD)))
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
        if step not in self._eval_losses:
            try:
                loss = self._record(step)["eval_loss"]
            except (ValueError, OSError):
                loss = None
            self._eval_losses[step] = math.inf if loss is None else loss
        return self._eval_losses[step]

    def _find(self, step: int | None) -> int:
        """Returns `step`, or the newest one, once the save that is being written has ended. Raises ConfigError."""
        self.wait()
        steps = self.steps()
        if not steps:
            raise ConfigError(f"no checkpoint in {self._directory}: train this run first")
        if step is not None and step not in steps:
            raise ConfigError(f"no checkpoint of step {step} in {self._directory}: choose one of the steps {steps}")
        return steps[-1] if step is None else step

    def _delete_old(self) -> None:
        """Deletes all checkpoints except those that `keep` says."""
        kept = {*self.steps()[-self._keep :], self.best_step()}
        for step in set(self.steps()) - kept:
            folder = self._folder(step)
            if in_bucket(folder):
                remove(os.path.join(folder, _RECORD))
            else:
                os.rename(folder, folder := folder + _UNFINISHED)  # half of a checkpoint must not look like one
            remove_folder(folder)

    def _delete_unfinished(self) -> None:
        """Deletes what killed processes left of saves and deletions."""
        for name in list_names(self._directory) if is_folder(self._directory) else ():
            step = name.removesuffix(_UNFINISHED)
            if step.isdecimal() and (step != name or not self._is_complete(int(step))):
                remove_folder(os.path.join(self._directory, name))

    def _is_complete(self, step: int) -> bool:
        return not in_bucket(self._directory) or is_file(os.path.join(self._folder(step), _RECORD))

    def _folder(self, step: int) -> str:
        return os.path.join(self._directory, str(step))

    @contextlib.contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        """Raises errors of this context, which have many types in TensorStore, as a ConfigError in one line."""
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


def _spec(folder: str, name: str) -> dict[str, Any]:
    """Returns TensorStore's specification of an array in the folder of a checkpoint."""
    if not in_bucket(folder):
        return {"driver": "zarr", "kvstore": {"driver": "file", "path": os.path.join(folder, name)}}
    scheme, bucket, key = re.fullmatch(r"(gs|s3)://([^/]+)/(.*)", f"{folder}/{name}").groups()
    kvstore = {"driver": {"gs": "gcs", "s3": "s3"}[scheme], "bucket": bucket, "path": key}
    if scheme == "s3":  # the gcs driver reads its variables itself
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            kvstore["endpoint"] = endpoint
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or endpoint:  # a store other than Amazon's accepts any region
            kvstore["aws_region"] = region or "us-east-1"
        if "AWS_ACCESS_KEY_ID" in os.environ:  # otherwise lines on standard error about other places of credentials
            kvstore["aws_credentials"] = {"type": "environment"}
    return {"driver": "zarr", "kvstore": kvstore}


def _read_arrays(folder: str, wanted: Mapping[str, tuple[Any, jax.sharding.Sharding]]) -> list[jax.Array]:
    """Returns the arrays of a checkpoint with these names, shapes (None: the saved one) and shardings.

    Each process reads its own shards. Raises ValueError for files that are damaged or missing.
    """

    def read(name: str, shape: tuple[int, ...] | None, sharding: jax.sharding.Sharding) -> jax.Array:
        store = tensorstore.open(_spec(folder, name), open=True).result()
        if shape not in (None, store.shape):
            raise ValueError(f"{name} has the shape {store.shape} in place of {shape}")
        return jax.make_array_from_callback(store.shape, sharding, lambda index: store[index].read().result())

    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda name: read(name, *wanted[name]), wanted))


def _named(tree: Any) -> dict[str, Any]:
    """Returns name (models.parameters.leaf_name) -> leaf."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


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


def _check_same_arrays(folder: str, saved: dict[str, str], expected: dict[str, str]) -> None:
    """Raises ConfigError if a checkpoint's arrays differ from the expected ones, both as models.parameters.array_types."""
    differing = [name for name in {**expected, **saved} if expected.get(name) != saved.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"checkpoint {folder} contains another state: {name} is {saved.get(name, 'missing')} in it and "
            f"{expected.get(name, 'missing')} now, and {len(differing) - 1} more arrays differ: "
            "use the config of the run that saved it, or choose another --workdir"
        )


def _in_one_line(text: str) -> str:
    """Returns an error of TensorStore without its specification of the array, which may be long."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-140:]}"
