"""Checkpoints of the training state, written by Orbax in the background and atomically."""

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from cluster.cluster import Cluster
from contract.errors import ConfigError
from files.paths import absolute, describe_os_error, exists, rename_folder
from models.parameters import array_types
from workdir.bucket_checkpoints import manager_options, orbax_path, shown
from workdir.checkpoint_errors import (
    Damage,
    DamagedCheckpointError,
    errors_in_one_line,
    same_outcome,
)
from workdir.checkpoint_record import check_arrays, make_record, types_in, verified
from workdir.checksums import checksums
from workdir.orbax_noise import silence_orbax


class Checkpoints:
    """The checkpoints in `directory`, a folder for each step. With several processes, each must call every method.

    A step's folder gets its name after all its contents are on disk, so an interrupted save is never mistaken for a
    checkpoint. The remains of such a save are deleted when the run continues.

    A checkpoint has a checksum of each array (workdir/checksums.py), which is verified when the array is restored.
    Checkpoints of earlier versions have none, and are restored without this check.

    Args:
      directory: created unless `keep` is None.
      keep: each save deletes all checkpoints except the `keep` newest and the one with the lowest eval loss. None
        opens `directory` for reading only, possibly during the run: nothing is created or deleted, and `save` raises.
      before_commit: called with the step of each save when all its contents are on disk, right before they get their
        name, in a thread of Orbax.

    Raises ConfigError if `keep` is below 1 or `directory` cannot be created.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        keep: int | None,
        before_commit: Callable[[int], None] = lambda step: None,
    ):
        if keep is not None and keep < 1:
            raise ConfigError(
                f"train.keep_checkpoints={keep} must be 1 or more: a run continues from the newest checkpoint"
            )
        silence_orbax()
        self._directory = absolute(directory)
        self._read_only = keep is None
        self._saving = 0  # the step of the save that is being written
        # Every save writes a metrics file, even without an eval loss: a folder that lacks this file is partly deleted.
        best = checkpoint_managers.BestN(
            get_metric_fn=_eval_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            create=not self._read_only,
            cleanup_tmp_directories=not self._read_only,
            best_fn=_eval_loss,
            best_mode="min",
            async_options=ocp.AsyncOptions(post_finalization_callback=lambda: before_commit(self._saving)),
            preservation_policy=checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(keep), best]),
            **manager_options(self._directory),
        )
        try:
            self._manager = _Manager(orbax_path(self._directory), options=options)
        except OSError as error:
            why = describe_os_error(error) or error
            raise ConfigError(f"checkpoints cannot be written to {self._directory}: {why}") from error

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
        if self._read_only:
            raise ValueError(f"{self._directory} was opened for reading: Checkpoints(..., keep=None)")
        latest = self.latest_step()
        if latest is not None and step <= latest:
            return
        if eval_loss is not None and not math.isfinite(eval_loss):
            eval_loss = None
        with errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.wait_until_finished()  # the previous save reads its own step
            self._saving = step
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state)),
                metrics=make_record(state, eval_loss, counters),
            )

    def latest_step(self) -> int | None:
        """Returns the newest step that has a checkpoint; None if there is no checkpoint."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def delete_after(self, step: int) -> None:
        """Deletes the checkpoints of steps after `step`."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def set_aside(self, steps: Sequence[int]) -> list[str]:
        """Renames the folders of damaged checkpoints, so that runs no longer read them, and returns the new names.

        The folder 200 becomes damaged-200, or damaged-200-2 if that exists. Nothing is deleted.

        Raises ConfigError if a folder cannot be renamed.
        """
        names = []
        with Cluster().check_equal():
            for step in steps if jax.process_index() == 0 else ():
                names.append(_free_name(self._directory, f"damaged-{step}"))
                try:
                    rename_folder(os.path.join(self._directory, str(step)), os.path.join(self._directory, names[-1]))
                except OSError as error:
                    raise ConfigError(
                        f"checkpoint {self._directory}/{step} is damaged and cannot be renamed: {error.strerror}"
                    ) from error
        self._manager.reload()
        return Cluster().all_gather(names)[0]

    def best_step(self) -> int | None:
        """Returns the step of the checkpoint with the lowest eval loss; None if no checkpoint has one."""
        step = self._manager.best_step()
        if step is None or math.isinf(_eval_loss(self._manager.metrics(step) or {})):
            return None
        return step

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the counters saved as `step`.

        Raises DamagedCheckpointError if their file is damaged, and ConfigError if the step was saved without them.
        """
        _, folder = self._find(step)
        try:
            counters = self._record(step).get("counters")
        except Damage as damage:
            raise DamagedCheckpointError(shown(folder), str(damage), self._before(step)) from damage
        if counters is None:
            raise ConfigError(
                f"checkpoint {shown(folder)} has no counters of examples and tokens, because an earlier version "
                "wrote it: choose another --workdir"
            )
        return counters

    def restore(self, abstract_state: Any, step: int | None = None) -> Any:
        """Returns the state saved as `step` (default: the newest one), bit for bit, with new shardings.

        abstract_state: a tree of jax.ShapeDtypeStruct with shardings. The mesh may differ from that of the saved state.

        Raises ConfigError if there is no such checkpoint or if its arrays differ in name, shape or dtype, and
        DamagedCheckpointError if it is damaged; the same error in all processes.
        """
        step, folder = self._find(step)

        def read(types: Mapping[str, str]) -> Any:
            _check_same_arrays(folder, types, array_types(abstract_state))
            # Not the manager's `restore`, which waits for ever if another process has raised an error.
            args = ocp.args.StandardRestore(abstract_state)
            return ocp.StandardCheckpointHandler().restore(folder / "state", args=args)

        return self._read_whole(step, read)

    def restore_params(self, abstract_params: Mapping[str, Any], step: int | None = None) -> tuple[dict[str, Any], int]:
        """Returns parameters of the state saved as `step` (default: the newest one), bit for bit, and that step.

        They are TrainState.eval_params: the averaged parameters, if the state has them. The rest of the state, such as
        the optimizer's arrays, is not read. The mesh may differ from that of the saved state.

        abstract_params: module -> a tree of jax.ShapeDtypeStruct with shardings. Other modules are not read.

        Raises errors as `restore`, for the arrays of these modules.
        """
        step, folder = self._find(step)

        def read(types: Mapping[str, str]) -> Any:
            field = "ema_params" if any(name.startswith("ema_params/") for name in types) else "params"
            wanted = {field: dict(abstract_params)}
            prefixes = tuple(f"{field}/{module}/" for module in abstract_params)
            saved = {name: kind for name, kind in types.items() if name.startswith(prefixes)}
            _check_same_arrays(folder, saved, array_types(wanted))
            restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
            args = ocp.args.PyTreeRestore(item=wanted, restore_args=restore_args, partial_restore=True)
            return ocp.PyTreeCheckpointHandler().restore(folder / "state", args=args)

        [params] = self._read_whole(step, read).values()
        return params, step

    def _read_whole(self, step: int, read: Callable[[Mapping[str, str]], Any]) -> Any:
        """Returns the tree of arrays that `read` returns, verified. read: takes the types of all saved arrays."""
        folder, before = self._folder(step), self._before(step)
        with same_outcome(folder, before):
            record = self._record(step)
            types = array_types(ocp.StandardCheckpointHandler().metadata(folder / "state").tree)
            if (types_in(record) or types) != types:
                raise Damage("state/_METADATA names other arrays than were saved")
            arrays = read(types)
        sums = checksums(arrays) if types_in(record) else {}  # outside the block, because it communicates
        with same_outcome(folder, before):
            check_arrays(record, sums)
        return arrays

    def _record(self, step: int) -> dict[str, Any]:
        """Returns the contents of a checkpoint's metrics file. Raises Damage."""
        record = self._manager.metrics(step)
        if record is None:
            raise Damage("metrics/metrics is missing or not what was saved")
        return record

    def _before(self, step: int) -> int | None:
        """Returns the step of the checkpoint before `step`."""
        return max((other for other in self.steps() if other < step), default=None)

    def _find(self, step: int | None) -> tuple[int, epath.Path]:
        """Returns `step`, or the newest if None, and its folder, once the save that is being written has ended.

        Raises ConfigError if there is no such checkpoint, or that save failed.
        """
        self.wait()
        step = self.latest_step() if step is None else step
        if step is None or step not in self._manager.all_steps():
            if step is None:
                raise ConfigError(f"no checkpoint in {self._directory}: train this run first")
            raise ConfigError(
                f"no checkpoint of step {step} in {self._directory}: choose one of the steps {self.steps()}"
            )
        return step, self._folder(step)

    def _folder(self, step: int) -> epath.Path:
        return orbax_path(self._directory) / str(step)

    def wait(self) -> None:
        """Returns when every save is on disk. Raises ConfigError if a save failed."""
        with errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and releases the threads. Raises ConfigError if a save failed."""
        with errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.close()


def abstract(state: Any, shardings: Any) -> Any:
    """Returns a tree of jax.ShapeDtypeStruct for `Checkpoints.restore`. `shardings` has the structure of `state`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def _check_same_arrays(folder: epath.Path, saved: dict[str, str], expected: dict[str, str]) -> None:
    """Raises ConfigError if a checkpoint's arrays differ from the expected ones, both as models.parameters.array_types has.

    Orbax also checks names and shapes, but it converts dtypes silently.
    """
    differing = [name for name in {**expected, **saved} if expected.get(name) != saved.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"checkpoint {shown(folder)} contains another state: {name} is {saved.get(name, 'missing')} in it and "
            f"{expected.get(name, 'missing')} now, and {len(differing) - 1} more arrays differ: "
            "use the config of the run that saved it, or choose another --workdir"
        )


class _Manager(ocp.CheckpointManager):
    """Orbax's manager, which would otherwise raise an error for any damaged metrics file in the directory."""

    def metrics(self, step: int) -> dict[str, Any] | None:
        """Returns the contents of a checkpoint's metrics file; None if the file is missing or damaged."""
        try:
            return verified(super().metrics(step))
        except ValueError:
            return None


def _eval_loss(metrics: Mapping[str, Any]) -> float:
    """Returns the eval loss of a checkpoint's metrics; infinity if it has none."""
    loss = metrics.get("eval_loss")
    return math.inf if loss is None else loss


def _free_name(directory: str, name: str) -> str:
    """Returns `name`, or the first of name-2, name-3, ... that does not exist in `directory`."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not exists(os.path.join(directory, name)))
