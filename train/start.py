"""The start of a run in its workdir: a new run, or the continuation of the newest checkpoint."""

import dataclasses
import functools
import gc
import os
import time
from typing import Any

import jax

from cluster.cluster import Cluster
from contract.errors import ConfigError
from evaluation.leakage import check_start
from files.paths import check_writable, in_bucket, real_path
from huggingface.folder import is_huggingface_folder
from run.compiled_run import CompiledRun
from run.step import TrainState
from train.continued_schedule import check_schedule
from train.init_from import check_init_from, start_from
from workdir.bucket_lock import Lock
from workdir.checkpoint import Checkpoints
from workdir.checkpoint_errors import DamagedCheckpointError
from workdir.lock_file import read_holder
from workdir.lost_checkpoints import (
    checkpoints_path,
    has_metrics,
    remove_stale_record,
    write_record,
)
from workdir.run_config import check_same_run, is_imported, read_config, write_config
from workdir.run_tokenizer import write_tokenizer
from workdir.workdir_lock import LOCK_FILE

# Network file systems show a new file to other hosts after up to a minute.
SHARED_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Start:
    """What is known of a run before its first step. Made by `make_start`."""

    workdir: str
    checkpoints: Checkpoints
    step: int  # of the checkpoint that the run continues from; 0 for a new run
    config: dict[str, Any]  # the resolved config, with the corpus
    counters: dict[str, Any] | None  # those of that checkpoint, once `first_state` has read it
    warnings: list[str]  # to be printed at the start of the run
    origin: str = ""  # what `train.init_from` gave, once `first_state` has read it


def make_workdir(workdir: str) -> None:
    """Makes the folder of a run; a bucket needs none.

    Raises ConfigError if the folder cannot be written, or is a Hugging Face folder.
    """
    check_writable(workdir, f"--workdir={workdir}")
    if is_huggingface_folder(workdir):
        raise ConfigError(
            f"--workdir={workdir} is a Hugging Face folder, whose config.json a run would replace: choose another"
        )
    if in_bucket(workdir):
        return
    try:
        os.makedirs(workdir, exist_ok=True)
        if not os.access(workdir, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", workdir)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: choose another folder") from error


def check_shared(workdir: str, lock: Lock | None) -> None:
    """Raises ConfigError, the same line in all processes, unless their workdirs are one folder. Nothing is written.

    lock: that of process 0, of which the other processes must see the file within SHARED_SECONDS. They give None.
    """
    if jax.process_count() == 1:
        return
    expected = Cluster().all_gather(lock and lock.id)[0]
    with Cluster().check_equal():
        end = time.monotonic() + SHARED_SECONDS
        while (holder := read_holder(os.path.join(workdir, LOCK_FILE))) is None or holder.id != expected:
            if time.monotonic() > end:
                raise ConfigError(
                    f"--workdir={workdir} ({real_path(workdir)}) is not the folder of process 0, whose "
                    f"{LOCK_FILE} has not appeared there in {SHARED_SECONDS:.0f} s: give all processes one folder on a "
                    "file system that their hosts share"
                )
            time.sleep(0.2)


def open_checkpoints(workdir: str, *, keep: int) -> Checkpoints:
    """Returns the checkpoints in a run's folder, and begins to delete the remains of saves.

    keep: `train.keep_checkpoints`.
    """
    remove_stale_record(workdir)
    return Checkpoints(checkpoints_path(workdir), keep=keep, before_commit=functools.partial(write_record, workdir))


def make_start(
    run: CompiledRun, workdir: str, checkpoints: Checkpoints, *, step: int | None = None, start_anew: bool = False
) -> Start:
    """Returns the start of `run` in `workdir` from the checkpoint `step` (default: the newest), and writes nothing.

    start_anew: whether a run in `workdir` that has no checkpoint may have another config: its metrics are discarded.

    Raises ConfigError if the workdir contains another run or an imported model, if the learning rate of a continued run
    would change without a choice (train/continued_schedule.py), if held-out text of a new run is training text of the
    run that `train.init_from` names, and if that run or folder has another model or vocabulary.
    """
    experiment, newest = run.experiment, checkpoints.latest_step() or 0
    step = newest if step is None else step
    # Not the names of the stores' folders, which differ where the files' modification times alone differ.
    corpus = {
        "fingerprint": run.corpora.content_digest,
        "tokenizer": experiment.tokenizer.fingerprint,
        "heldout": run.corpora.heldout_digest,
    }
    config = experiment.config | {"corpus": corpus}
    if step:
        saved = read_config(workdir)
        changes = check_same_run(saved, config)
        warnings = [f"the run continues with a changed config: {change}" for change in changes]
        warnings += check_schedule(saved, experiment, step)
    else:
        if is_imported(workdir):
            raise ConfigError(
                f"--workdir={workdir} contains a model that train.convert imported, and no run to continue: choose "
                f"another --workdir, and start from this one with --config.train.init_from={workdir}"
            )
        if has_metrics(workdir) and not start_anew:
            _check_same_config(workdir, config)
        warnings = [*check_start(run), *check_init_from(experiment)] if experiment.train.init_from else []
    if step < newest:
        warnings.append(f"returns from step {newest} to the checkpoint of step {step}")
    return Start(workdir, checkpoints, step, config, None, warnings)


def write_start(run: CompiledRun, start: Start) -> None:
    """Writes a copy of the tokenizer, the resolved config, and whether the run has a checkpoint, in the workdir."""
    write_tokenizer(start.workdir, run.experiment.tokenizer)
    write_config(start.workdir, start.config)
    if start.step:
        write_record(start.workdir, start.step)


def first_state(run: CompiledRun, start: Start) -> tuple[Start, TrainState]:
    """Returns the start with its counters, and the state of its checkpoint or a new one.

    A new state may have another run's Transformer (train.init_from). Raises DamagedCheckpointError.
    """
    if start.step:
        state = start.checkpoints.restore(run.state_shapes, start.step)
        return dataclasses.replace(start, counters=start.checkpoints.counters(start.step)), state
    state, init_from = run.init_state(), run.experiment.train.init_from
    if not init_from:
        return start, state
    params, step = start_from(run, state.params, init_from)
    origin = f"parameters of {init_from}" + ("" if step is None else f", step {step}")
    return dataclasses.replace(start, origin=origin), state.starting_with(params)


def first_whole_state(run: CompiledRun, start: Start) -> tuple[Start, TrainState]:
    """Returns what `first_state` does, from an earlier checkpoint where the newest ones are damaged.

    The damaged ones are then renamed, with a warning in the start: the run will save these steps again. Raises
    ConfigError, and renames nothing, if all of them are damaged.
    """
    damaged: list[tuple[Any, str]] = []  # folders, and what is wrong with them
    steps = [step for step in reversed(start.checkpoints.steps()) if step <= start.step]
    for step in steps or [0]:
        try:
            found, state = first_state(run, dataclasses.replace(start, step=step))
            break
        except DamagedCheckpointError as error:
            damaged.append((error.folder, error.what))
        gc.collect()  # the error's traceback is part of a cycle that holds the arrays
    else:
        raise ConfigError(
            f"all checkpoints of --workdir={start.workdir} are damaged, steps {steps[::-1]} (of step {steps[0]}: "
            f"{damaged[0][1]}): restore that folder from a copy, or choose another --workdir"
        )
    names = start.checkpoints.set_aside(steps[: len(damaged)]) if damaged else []
    warnings = [
        f"checkpoint {folder} is damaged ({what}): it is now named {name}, and the run continues from step {step}"
        for (folder, what), name in zip(damaged, names, strict=True)
    ]
    return dataclasses.replace(found, warnings=[*found.warnings, *warnings]), state


def _check_same_config(workdir: str, config: dict[str, Any]) -> None:
    """Raises ConfigError if the metrics in `workdir`, of a run without a checkpoint, are those of another config."""
    try:
        check_same_run(read_config(workdir), config)
    except ConfigError as error:
        raise ConfigError(f"{error}, or discard its metrics with --start_anew=True") from error
