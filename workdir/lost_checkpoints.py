"""Whether a run without a checkpoint never had one, or has lost its checkpoints.

A run that was killed before its first checkpoint starts again from step 0 and repeats everything. A run whose
checkpoints were deleted would do the same and discard its metrics, so it is refused.

RECORD, a file in the workdir, has the step of the run's first checkpoint. It is written while that checkpoint has its
temporary folder, right before the folder gets its name. So a run without a checkpoint has lost its checkpoints if it
has RECORD and no temporary folder of that step.
"""

import os

import jax

from contract.errors import ConfigError
from files.atomic import read_json, write_json
from files.paths import exists, in_bucket, is_folder, list_names, remove
from workdir.bucket_checkpoints import is_committed
from workdir.metrics_file import metrics_path, read_metrics
from workdir.run_config import config_version, is_imported, read_config

RECORD = "first_checkpoint.json"


def checkpoints_path(workdir: str) -> str:
    """Returns the folder of a run's checkpoints."""
    return os.path.join(workdir, "checkpoints")


def write_record(workdir: str, step: int) -> None:
    """Writes RECORD, unless it exists, in process 0. step: of a checkpoint that exists, or whose contents do."""
    if jax.process_index() == 0 and not exists(_record(workdir)):
        write_json(_record(workdir), {"step": step})


def remove_stale_record(workdir: str) -> None:
    """Removes RECORD, if it exists, in process 0, unless the run in `workdir` has a checkpoint.

    Called before the temporary folders are deleted, and after `check_not_lost` in all processes.
    """
    is_stale = exists(_record(workdir)) and not _steps(_names(checkpoints_path(workdir)))
    if is_stale and jax.process_index() == 0:
        remove(_record(workdir))


def check_not_lost(workdir: str, *, start_anew: bool) -> None:
    """Checks that a run in `workdir`, if there is one, can continue, or may start from step 0.

    Called before the folder of the checkpoints is opened, which creates it and begins to delete the remains of saves.

    start_anew: whether a run that has lost its checkpoints is discarded.

    Raises ConfigError where it has lost them and is not discarded, and where `start_anew` would discard a checkpoint.
    """
    if is_imported(workdir):
        return  # train.start.make_start refuses it
    folder = checkpoints_path(workdir)
    names = _names(folder)
    if saved := _steps(names):
        if start_anew:
            raise ConfigError(
                f"--start_anew=True: --workdir={workdir} has a checkpoint of step {max(saved)}: remove the flag to "
                f"continue from it, or choose another --workdir, or delete {workdir}"
            )
        return
    if start_anew:
        return
    steps = [line["step"] for line in read_metrics(workdir)] if exists(metrics_path(workdir)) else []
    if reason := _reason(workdir, names, max(steps, default=0)):
        metrics = f" with metrics up to step {max(steps)}" if steps else ""
        raise ConfigError(
            f"--workdir={workdir} contains a run{metrics}, but {reason}: put back what is missing, choose another "
            f"--workdir, or discard the run: delete {workdir}, or start from step 0 with --start_anew=True"
        )


def has_metrics(workdir: str) -> bool:
    """Returns whether metrics.jsonl in `workdir` has a line. Raises ConfigError if it is no file of metrics."""
    return exists(metrics_path(workdir)) and bool(read_metrics(workdir))


def _reason(workdir: str, names: list[str], last_step: int) -> str:
    """Returns why a run without a checkpoint must not start from step 0; "" if it never had a checkpoint.

    names: the entries of the folder of checkpoints. last_step: of the run's metrics; 0 without metrics.
    """
    folder, has_config = checkpoints_path(workdir), exists(os.path.join(workdir, "config.json"))
    lost = f"{folder} has no checkpoint any more" if is_folder(folder) else f"{folder} does not exist"
    if exists(_record(workdir)):
        step = read_json(_record(workdir), remedy=f"delete {workdir}, or start anew with --start_anew=True").get("step")
        return "" if any(name.startswith(f"{step}.") for name in names) else lost
    if not last_step:
        return ""
    if not is_folder(folder) and not in_bucket(folder):  # a run makes this folder before its metrics
        return lost
    if not has_config:  # a run writes this file before its metrics
        return f"{workdir}/config.json does not exist"
    if config_version(workdir) == 1 and not names and _has_saved(workdir, last_step):
        return lost  # that version wrote no record
    return ""


def _has_saved(workdir: str, last_step: int) -> bool:
    """Returns whether a run has saved a checkpoint, as far as its metrics show. last_step: of these.

    A finished run has. So seems one that was killed between its last line and its only save.
    """
    try:
        train = read_config(workdir)["train"]
        return last_step > train["checkpoint_every"] or last_step >= train["steps"]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{workdir}/config.json cannot be read: it lacks train.steps or train.checkpoint_every"
        ) from error


def _steps(names: list[str]) -> list[int]:
    """Returns the steps of checkpoints. names: the entries of their folder."""
    return [int(name) for name in names if name.isdecimal()]


def _names(folder: str) -> list[str]:
    """Returns the entries of the folder of checkpoints. Only those of complete checkpoints are numbers."""
    try:
        names = list_names(folder)
        # In a bucket, a checkpoint has its name from the beginning of its save on.
        return [f"{name}.save" if name.isdecimal() and not is_committed(f"{folder}/{name}") else name for name in names]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error


def _record(workdir: str) -> str:
    return os.path.join(workdir, RECORD)
