"""The start of a run in its workdir: a new run, or the continuation of the newest checkpoint."""

import dataclasses
import gc
from collections.abc import Mapping
from typing import Any

import numpy as np

from cluster.cluster import Cluster
from contract.errors import ConfigError
from evaluation.leakage import check_start
from experiment.config import OptimizerConfig, TrainConfig, from_mapping
from experiment.experiment import Experiment
from experiment.objective import with_steps
from experiment.outside import check_code, code_of
from experiment.schedules import cycles_of, make_schedule
from huggingface.folder import is_huggingface_folder
from run.compiled_run import CompiledRun
from run.step import TrainState
from train.init_from import check_init_from, start_from
from workdir.checkpoint import Checkpoints, DamagedCheckpointError
from workdir.run_config import check_same_run, missing_sections
from workdir.workdir import LOCK_FILE, Workdir

_SHARED_SECONDS = 60.0
# Of the peak rate, and of the rate: schedules are computed in float32.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Start:
    """What is known of a run before its first step. Made by `make_start`."""

    workdir: Workdir
    checkpoints: Checkpoints
    step: int  # of the checkpoint that the run continues from; 0 for a new run
    config: dict[str, Any]  # the resolved config, with the corpus
    warnings: list[str]  # to be printed at the start of the run
    # Known once `restore_newest_intact` has read the checkpoint:
    counters: dict[str, Any] | None = None  # those of the checkpoint
    origin: str = ""  # where the state is from, for people


def check_new_run(workdir: Workdir) -> None:
    """Makes the folder of a run. Raises OSError, and ConfigError for a Hugging Face folder."""
    if is_huggingface_folder(workdir.path):
        raise ConfigError(
            f"--workdir={workdir} is a Hugging Face folder, whose config.json a run would replace: choose another"
        )
    workdir.create()


def check_shared(workdir: Workdir, lock: str | None) -> None:
    """Raises ConfigError, the same line in all of several processes, unless their workdirs are one folder.

    lock: the id of the lock of process 0, which the other processes must see. They give None.
    """
    expected = Cluster().all_gather(lock)[0]
    with Cluster().check_equal():
        if not workdir.sees_lock(expected, seconds=_SHARED_SECONDS):
            raise ConfigError(
                f"--workdir={workdir} is not the folder of process 0, whose {LOCK_FILE} has not appeared there in "
                f"{_SHARED_SECONDS:.0f} s: give all processes one folder on a file system that their hosts share"
            )


def make_start(run: CompiledRun, workdir: Workdir, checkpoints: Checkpoints) -> Start:
    """Returns the start of `run` in `workdir` from the newest checkpoint, and writes nothing.

    Raises ConfigError if the workdir contains another run or an imported model, if the learning rate of a continued run
    would change without a choice (check_schedule), if the file of its objective has changed (check_code), if held-out
    text of a new run is training text of the run that `train.init_from` names, and if that run or folder has another
    model or vocabulary.
    """
    experiment, corpora, step = run.experiment, run.corpora, checkpoints.latest_step() or 0
    # Not the names of the stores' folders, which differ where the files' modification times alone differ.
    corpus = {
        "fingerprint": corpora.content_digest,
        "tokenizer": experiment.tokenizer.fingerprint,
        "heldout": corpora.heldout_digest,
    }
    config = experiment.config | {"corpus": corpus} | code_of(experiment.learner, experiment.denoisers)
    if step:
        saved = workdir.config()
        check_code(saved.get("code"), f"{workdir}/config.json")
        warnings = [f"the run continues with a changed config: {change}" for change in _changes(saved, config)]
        warnings += check_schedule(saved, experiment, step)
    else:
        if workdir.is_imported:
            raise ConfigError(
                f"--workdir={workdir} contains a model of train.convert or Model.save, and no run to continue: choose "
                f"another --workdir, and start from this one with --config.train.init_from={workdir}"
            )
        if workdir.has_metrics and workdir.metrics():
            _changes(workdir.config(), config)
        warnings = check_init_from(experiment) + check_start(experiment, corpora) if experiment.train.init_from else []
    return Start(workdir, checkpoints, step, config, warnings)


def restore_newest_intact(run: CompiledRun, start: Start) -> tuple[Start, TrainState]:
    """Returns the start and the state of the newest checkpoint that is not damaged. There must be a checkpoint.

    Damaged checkpoints are renamed, with a warning in the start: the run will save these steps again. Raises
    ConfigError, and renames nothing, if all of them are damaged.
    """
    checkpoints, damaged = start.checkpoints, []
    for step in reversed(checkpoints.steps()):
        try:
            counters, state = checkpoints.counters(step), checkpoints.restore(run.state_shapes, step)
        except DamagedCheckpointError as error:
            damaged.append((step, error.folder, error.what))
            gc.collect()  # the error's traceback is part of a cycle that holds the arrays
            continue
        names = checkpoints.set_aside([number for number, *_ in damaged]) if damaged else []
        warnings = [
            f"checkpoint {folder} is damaged ({what}): it is now named {name}, and the run continues from step {step}"
            for (_, folder, what), name in zip(damaged, names, strict=True)
        ]
        changes = {"step": step, "counters": counters, "origin": f"continuing from step {step}"}
        return dataclasses.replace(start, warnings=[*start.warnings, *warnings], **changes), state
    raise ConfigError(
        f"all checkpoints of --workdir={start.workdir} are damaged, steps {[step for step, *_ in damaged][::-1]} "
        f"(of step {damaged[0][0]}: {damaged[0][2]}): restore that folder from a copy, or choose another --workdir"
    )


def make_state(run: CompiledRun, start: Start) -> tuple[Start, TrainState]:
    """Returns the start and a state before the first step, possibly with the Transformer of `train.init_from`."""
    state, init_from = run.init_state(), run.experiment.train.init_from
    if not init_from:
        return start, state
    params, lines = start_from(run, state.params, init_from)
    return dataclasses.replace(start, origin="\n".join(lines)), state.starting_with(params)


def _changes(saved: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Returns the changes of `check_same_run`, with schedules of the objective in steps, not in shares of a run."""
    if not missing_sections(saved):  # otherwise check_same_run names them
        saved, config = ({**c, "objective": with_steps(c["objective"], c["train"]["steps"])} for c in (saved, config))
    return check_same_run(saved, config)


def check_schedule(saved: Mapping[str, Any], experiment: Experiment, step: int) -> list[str]:
    """Checks that a run of config `saved` continues after `step` at its learning rate, and returns warnings.

    Another rate of the next update, or of one that the run has made, is accepted, with a warning, only where
    `optimizer.cycles` is set to another value: config.json would otherwise have a schedule that the run did not have.

    Args:
      saved: the run's config, as nested dicts, with train.epochs resolved.
      experiment: of the continued run. It differs from `saved` in workdir.run_config.MAY_CHANGE alone.
      step: of the checkpoint from which the run continues.

    Raises ConfigError, one line with the last rate that differs and the values of `optimizer.cycles` to choose from,
    for a rate that changes without such a choice; and for fewer steps than the run has made.
    """
    optimizer, steps = experiment.optimizer, experiment.train.steps
    old = from_mapping(OptimizerConfig, saved["optimizer"], "optimizer")
    old_steps = from_mapping(TrainConfig, saved["train"], "train").steps
    epochs = experiment.train.epochs
    length = f"train.epochs={epochs:g}, {steps} steps," if epochs else f"train.steps={steps}"
    if steps < step:
        raise ConfigError(
            f"{length} is below step {step}, from which the run continues: set train.steps={step} or more, or choose "
            "another --workdir"
        )
    if (old, old_steps) == (optimizer, steps):
        return []
    updates = np.arange(min(step + 1, steps))  # those that the run has made, and the next one if there is one
    rates, new_rates = (
        np.broadcast_to(make_schedule(*schedule)(updates), updates.shape)
        for schedule in ((old, old_steps), (optimizer, steps))
    )
    differs = ~np.isclose(rates, new_rates, rtol=_ROUNDING, atol=_ROUNDING * optimizer.learning_rate)
    if not differs.any():
        return []
    last = updates[differs][-1]
    change = f"the learning rate after step {last} from {rates[last]:.6g} to {new_rates[last]:.6g}"
    if optimizer.cycles not in ("", old.cycles):
        return [f"optimizer.cycles={optimizer.cycles} changes {change}"]
    cycles, end = old.cycles or f"0-{old_steps}", cycles_of(old, old_steps)[-1].end
    further = f" or {cycles},{end}-{steps} (then a new warm-up and {optimizer.schedule} schedule)" * (steps > end)
    raise ConfigError(
        f"{length} changes {change}, because the run had {old_steps} steps: set optimizer.cycles={cycles} (the "
        f"schedule so far){further}"
    )
