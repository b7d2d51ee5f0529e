"""Checkpoints of the training state: written in the background, whole or not at all, by Orbax."""

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from contract.errors import ConfigError
from train.paths import array_types


class Checkpoints:
    """The checkpoints in `directory`, one folder a step. In a multi-process run every process calls every method.

    `keep`: on each save all but the `keep` newest and the one with the lowest eval loss are deleted. None: for a
    program that only reads, perhaps while the run goes on; nothing is created, cleaned or deleted, and save raises.

    A step's folder gets its name after all of it is on disk, so an interrupted save is never taken for a checkpoint;
    what it left is deleted when the run continues. Raises ConfigError where `directory` cannot be made.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int | None):
        if keep is not None and keep < 1:
            raise ConfigError(
                f"config.train.keep_checkpoints={keep} must be at least 1: a run continues from the newest"
            )
        # Its errors come as exceptions as well; what else it logs (retries, clean-up, timing) is not the user's.
        logging.getLogger("absl").addFilter(_not_from_orbax)
        self._directory = os.path.abspath(directory)
        self._read_only = keep is None
        # Each has a file of metrics, with or without an eval loss; a folder without it was being deleted.
        best = checkpoint_managers.BestN(
            get_metric_fn=_eval_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            create=not self._read_only,
            cleanup_tmp_directories=not self._read_only,
            best_fn=_eval_loss,
            best_mode="min",
            preservation_policy=checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(keep), best]),
        )
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except OSError as error:
            raise ConfigError(f"checkpoints cannot be kept in {self._directory}: {error.strerror}") from error

    def save(self, step: int, state: Any, *, eval_loss: float | None = None) -> None:
        """Starts to write `state`, a tree of arrays, as `step`; returns when the arrays may be donated or changed.

        `eval_loss`: nats per token on the held-out data at this step; None or not finite: never the best. Nothing
        is done where `step` is not above `latest_step()`. Raises ConfigError where the save before this one failed.
        """
        if self._read_only:
            raise ValueError(f"{self._directory} was opened for reading: Checkpoints(..., keep=None)")
        if eval_loss is not None and not math.isfinite(eval_loss):
            eval_loss = None
        with _one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.save(
                step, args=ocp.args.Composite(state=ocp.args.StandardSave(state)), metrics={"eval_loss": eval_loss}
            )

    def latest_step(self) -> int | None:
        """The newest step that has a checkpoint, or None."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of lowest eval loss among the checkpoints; None where none was saved with one."""
        step = self._manager.best_step()
        if step is None or math.isinf(_eval_loss(self._manager.metrics(step))):
            return None
        return step

    def restore(self, abstract_state: Any, step: int | None = None) -> Any:
        """The state saved as `step` (default: the newest), bit for bit, placed as `abstract_state` says.

        `abstract_state`: a tree of jax.ShapeDtypeStruct with shardings; its mesh need not be the one that saved. Raises
        ConfigError where there is no such checkpoint, where it is damaged, and where its arrays are others.
        """
        step = self.latest_step() if step is None else step
        if step is None or step not in self._manager.all_steps():
            which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise ConfigError(f"{which} in {self._directory}: it has steps {list(self._manager.all_steps())}")
        where = self._manager.directory / str(step)
        with _one_line(f"checkpoint {where} cannot be read (to use an earlier one move it away)"):
            _check_same_arrays(where, abstract_state)
            args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state))
            return self._manager.restore(step, args=args)["state"]

    def wait(self) -> None:
        """Returns when every save is on disk. Raises ConfigError where one failed."""
        with _one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and lets go of the threads. Raises ConfigError where a save failed."""
        with _one_line(f"a checkpoint in {self._directory} could not be written"):
            self._manager.close()


def abstract(state: Any, shardings: Any) -> Any:
    """What `Checkpoints.restore` takes: the shapes and dtypes of `state` with a tree of shardings like it."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def _check_same_arrays(where: os.PathLike, abstract_state: Any) -> None:
    """Raises ConfigError where the checkpoint's arrays are not those of `abstract_state`, by name, shape and dtype.

    Orbax checks names and shapes as well, but converts dtypes in silence.
    """
    saved = array_types(ocp.StandardCheckpointHandler().metadata(where / "state"))
    wanted = array_types(abstract_state)
    differing = [name for name in {**wanted, **saved} if wanted.get(name) != saved.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"checkpoint {where} holds another state: {name} is {saved.get(name, 'not there')} in it and "
            f"{wanted.get(name, 'not there')} now, and {len(differing) - 1} more differ: "
            "use the config of its run, or choose another --workdir"
        )


def _eval_loss(metrics: dict[str, float | None]) -> float:
    loss = metrics["eval_loss"]
    return math.inf if loss is None else loss


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turns what Orbax and TensorStore raise, which is as wide as Exception, into one line for the user."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        if len(reason) > 300:  # the cause ("No space left on device") comes last
            reason = f"{reason[:140]} ... {reason[-140:]}"
        raise ConfigError(f"{what}: {reason}") from error
