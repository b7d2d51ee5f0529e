"""Checkpoints of the training state, written by Orbax in the background and atomically."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from contract.errors import ConfigError
from contract.os_errors import describe_os_error, os_error_in
from train.orbax_noise import silence_orbax
from train.paths import array_types


class Checkpoints:
    """The checkpoints in `directory`, a folder for each step. With several processes, each must call every method.

    A step's folder gets its name after all its contents are on disk, so an interrupted save is never mistaken for a
    checkpoint. The remains of such a save are deleted when the run continues.

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
        self._directory = os.path.abspath(directory)
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
        )
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
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
          counters: the state of train.counters.Counters, JSON values. Those of process 0 are written.

        Raises ConfigError if the previous save failed, and ValueError if `directory` was opened for reading.
        """
        if self._read_only:
            raise ValueError(f"{self._directory} was opened for reading: Checkpoints(..., keep=None)")
        if eval_loss is not None and not math.isfinite(eval_loss):
            eval_loss = None
        with _errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.wait_until_finished()  # the previous save reads its own step
            self._saving = step
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state)),
                metrics={"eval_loss": eval_loss, "counters": counters},
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

    def best_step(self) -> int | None:
        """Returns the step of the checkpoint with the lowest eval loss; None if no checkpoint has one."""
        step = self._manager.best_step()
        if step is None or math.isinf(_eval_loss(self._manager.metrics(step))):
            return None
        return step

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the counters saved as `step`. Raises ConfigError if it was saved without them."""
        counters = (self._manager.metrics(step) or {}).get("counters")
        if counters is None:
            raise ConfigError(
                f"checkpoint {self._manager.directory / str(step)} has no counters of examples and tokens, because an "
                "earlier version wrote it: choose another --workdir"
            )
        return counters

    def restore(self, abstract_state: Any, step: int | None = None) -> Any:
        """Returns the state saved as `step` (default: the newest one), bit for bit, with new shardings.

        abstract_state: a tree of jax.ShapeDtypeStruct with shardings. The mesh may differ from that of the saved state.

        Raises ConfigError if there is no such checkpoint, if it is damaged, or if its arrays differ in name, shape or
        dtype.
        """
        step, folder = self._find(step)
        with _reading(folder):
            _check_same_arrays(folder, array_types(_saved(folder)), array_types(abstract_state))
            args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state))
            return self._manager.restore(step, args=args)["state"]

    def restore_params(self, abstract_params: Mapping[str, Any], step: int | None = None) -> tuple[dict[str, Any], int]:
        """Returns parameters of the state saved as `step` (default: the newest one), bit for bit, and that step.

        They are TrainState.eval_params: the averaged parameters, if the state has them. The rest of the state, such as
        the optimizer's arrays, is not read. The mesh may differ from that of the saved state.

        abstract_params: module -> a tree of jax.ShapeDtypeStruct with shardings. Other modules are not read.

        Raises ConfigError if there is no such checkpoint, if it is damaged, or if the arrays of these modules differ in
        name, shape or dtype.
        """
        step, folder = self._find(step)
        with _reading(folder):
            saved = _saved(folder)
            field = "params" if saved.get("ema_params") is None else "ema_params"
            wanted = {field: dict(abstract_params)}
            read = {field: {module: leaves for module, leaves in saved[field].items() if module in wanted[field]}}
            _check_same_arrays(folder, array_types(read), array_types(wanted))
            args = ocp.args.PyTreeRestore(
                item=wanted,
                restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                partial_restore=True,
            )
            return ocp.PyTreeCheckpointHandler().restore(folder / "state", args=args)[field], step

    def _find(self, step: int | None) -> tuple[int, Path]:
        """Returns `step`, or the newest if None, and its folder. Raises ConfigError if there is no such checkpoint."""
        step = self.latest_step() if step is None else step
        if step is None or step not in self._manager.all_steps():
            if step is None:
                raise ConfigError(f"no checkpoint in {self._directory}: train this run first")
            raise ConfigError(
                f"no checkpoint of step {step} in {self._directory}: choose one of the steps {self.steps()}"
            )
        return step, self._manager.directory / str(step)

    def wait(self) -> None:
        """Returns when every save is on disk. Raises ConfigError if a save failed."""
        with _errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and releases the threads. Raises ConfigError if a save failed."""
        with _errors_in_one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.close()


def abstract(state: Any, shardings: Any) -> Any:
    """Returns a tree of jax.ShapeDtypeStruct for `Checkpoints.restore`. `shardings` has the structure of `state`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def _saved(folder: Path) -> Any:
    """Returns the tree of a checkpoint's state: the dtype and the shape of each array, without the arrays."""
    return ocp.StandardCheckpointHandler().metadata(folder / "state").tree


def _check_same_arrays(folder: Path, saved: dict[str, str], expected: dict[str, str]) -> None:
    """Raises ConfigError if a checkpoint's arrays differ from the expected ones, both as train.paths.array_types has.

    Orbax also checks names and shapes, but it converts dtypes silently.
    """
    differing = [name for name in {**expected, **saved} if expected.get(name) != saved.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"checkpoint {folder} contains another state: {name} is {saved.get(name, 'missing')} in it and "
            f"{expected.get(name, 'missing')} now, and {len(differing) - 1} more arrays differ: "
            "use the config of the run that saved it, or choose another --workdir"
        )


def _eval_loss(metrics: Mapping[str, Any]) -> float:
    """Returns the eval loss of a checkpoint's metrics; infinity if it has none."""
    loss = metrics["eval_loss"]
    return math.inf if loss is None else loss


def _reading(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Within this context, errors of Orbax and TensorStore become a ConfigError that names the checkpoint."""
    return _errors_in_one_line(f"checkpoint {folder} cannot be read (to use an earlier one, move this folder away)")


@contextlib.contextmanager
def _errors_in_one_line(what: str) -> Iterator[None]:
    """Raises every error within this context as a ConfigError with the line "what: reason".

    Errors of Orbax and TensorStore have many types.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else os_error_in(str(error))
        reason = reason or " ".join(str(error).split())
        if len(reason) > 300:  # the cause ("No space left on device") is at the end
            reason = f"{reason[:140]} ... {reason[-140:]}"
        raise ConfigError(f"{what}: {reason}") from error
