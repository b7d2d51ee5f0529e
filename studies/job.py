"""Does a job of a study in a process of its own: trains the runs, fine-tunes and measures them."""

import contextlib
import importlib.metadata
import math
import os
import platform
import sys
import threading
from multiprocessing import parent_process
from typing import Any

import jax

from cluster.cluster import code_digest
from command.flags import TRAINING_MEMORY, run_command
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies.folder import Failure, StudyFolder
from studies.jobs import Job
from studies.measures import FineTuning
from studies.plan import AFTER_START_SEED, SWEEP_SEED, Plan, PlannedRun
from studies.results import Curve, Outcome
from studies.sweep import chosen_values, untried
from studies.trained import TOTALS, Trained
from train.loop import train_and_evaluate
from train.recorder import DivergedError
from workdir.checkpoint import Checkpoints
from workdir.resolve import command, with_fields
from workdir.run_config import read_config

_START = "-start"  # suffix of the workdir of a variant's start
# The exit statuses of a job that a signal stopped, of one that another process does, and of one that diverged.
STOPPED, BUSY, DIVERGED = 75, 76, 77


def run_job(job: Job, plan: Plan, out: str) -> None:
    """Does a job, as the target of a process. Exits with 0, STOPPED, BUSY, DIVERGED, or another status for an error.

    Everything that is printed is appended to the job's log.
    """
    os.setsid()  # Ctrl-C in the terminal reaches the command, which ends the job
    folder = StudyFolder(out)
    log = os.open(folder.log(job.name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if jax.config.jax_compilation_cache_dir is None:
        # Runs of the same shapes have the same programs. Programs for one host's CPU may not run on another's.
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(os.path.join(out, "compiled", platform.node())))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    run_command(lambda: _run(job, plan, folder), memory_remedy=TRAINING_MEMORY)


def _run(job: Job, plan: Plan, folder: StudyFolder) -> None:
    try:
        _check_sweep(job, plan, folder)
        _JobRunner(job, plan, folder).run()
    except DivergedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(DIVERGED)


def _check_sweep(job: Job, plan: Plan, folder: StudyFolder) -> None:
    """Exits with BUSY if another process does a run of the sweep that the job needs."""
    for name in [] if job.field else untried(plan.variants[job.variant], folder):
        with folder.lock(name) as is_ours:
            _busy_unless(is_ours, name)


def _end_with_parent() -> None:
    """Ends this process when its parent ends, so that a study that is killed leaves no run behind."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _JobRunner:
    """The stages of a job, in order: a start, the run, and the fine-tunings of its measures."""

    def __init__(self, job: Job, plan: Plan, folder: StudyFolder):
        self.job, self.folder = job, folder
        self.variant = variant = plan.variants[job.variant]
        self.swept: dict[str, Any] = {job.field: job.value} if job.field else chosen_values(variant, plan, folder)
        measures = plan.measures
        if job.field:
            first = plan.study.compared[0]
            measures = {first: measures[first]}
        self.measures = {name: measure for name, measure in measures.items() if measure.applies_to(variant.name)}
        # Suffix of the workdir -> run.
        self.stages: dict[str, PlannedRun] = {_START: variant.start} if variant.start is not None else {}
        self.stages[""] = variant.main
        self.fine_tuned: dict[str, str] = {}  # measure -> suffix; measures with equal configs share a run
        for name, measure in self.measures.items():
            if isinstance(measure, FineTuning):
                run = variant.fine_tunings[name]
                shared = [suffix for suffix, other in self.stages.items() if suffix and other == run]
                self.fine_tuned[name] = shared[0] if shared else f"-{name}"
                self.stages.setdefault(self.fine_tuned[name], run)

    def run(self) -> None:
        """Does what is not complete. Exits with BUSY if another process does it."""
        seeds = [seed for seed in self.job.seeds if self.folder.outcome(self.job.run_name(seed)) is None]
        with contextlib.ExitStack() as stack:
            for seed in seeds:
                name = self.job.run_name(seed)
                _busy_unless(stack.enter_context(self.folder.lock(name)), name)
            trained = seeds
            for suffix in self.stages:
                trained = self._train(trained, suffix)
            for seed in trained:
                self.folder.write_outcome(self.job.run_name(seed), self._outcome(seed))
            if trained != seeds:
                raise ConfigError(f"{len(seeds) - len(trained)} of {len(seeds)} seeds failed")

    def _workdir(self, seed: int, suffix: str) -> str:
        return self.folder.workdir(self.job.run_name(seed) + suffix)

    def _fields(self, seed: int, suffix: str) -> dict[str, Any]:
        """The config of a stage."""
        changes: dict[str, Any] = {"seed": SWEEP_SEED if self.job.field else seed}
        if suffix not in ("", _START):
            changes["train.init_from"] = self._workdir(seed, "")
        elif not suffix:
            changes |= self.swept
            if self.variant.start is not None:
                changes |= {"seed": changes["seed"] + AFTER_START_SEED, "train.init_from": self._workdir(seed, _START)}
        return with_fields(self.stages[suffix].fields, changes)

    def _train(self, seeds: list[int], suffix: str) -> list[int]:
        """Trains the runs of a stage that are not complete, or continues them. Exits if a signal stops them.

        Returns the seeds whose runs are complete. One seed that diverges ends all that are trained side by side; they
        are then trained one after another, and the failure of each is written.

        Raises ConfigError for the failure of a single seed.
        """
        workdirs = {seed: self._workdir(seed, suffix) for seed in seeds}
        left = {seed: workdir for seed, workdir in workdirs.items() if not is_complete(workdir)}
        experiments = {seed: make_experiment(self._fields(seed, suffix)) for seed in left}
        complete = [seed for seed in seeds if seed not in left]
        for seed, workdir in left.items():
            try:
                _stop_unless(train_and_evaluate(experiments[seed], workdir))
                complete.append(seed)
            except ConfigError as error:
                if len(self.job.seeds) == 1:
                    raise
                failure = Failure(str(error), diverged=isinstance(error, DivergedError))
                self.folder.write_failure(self.job.run_name(seed), failure)
        return sorted(complete)

    def _outcome(self, seed: int) -> Outcome:
        """Measures a trained run."""
        fine_tunings = {name: self._workdir(seed, suffix) for name, suffix in self.fine_tuned.items()}
        start = self._workdir(seed, _START) if self.variant.start is not None else ""
        trained = Trained(self._workdir(seed, ""), start, fine_tunings)
        values = {name: measure.value(name, trained) for name, measure in self.measures.items()}
        before = trained.before
        lines = [line for line in trained.lines if line["loss"] is not None]
        return Outcome(
            variant=self.variant.name,
            seed=seed,
            values={k: v for k, v in values.items() if self.measures[k].is_compared and _is_finite(v)},
            samples={k: v for k, v in values.items() if not self.measures[k].is_compared},
            curve=Curve(
                raw_tokens=[before["raw_tokens"] + line["raw_tokens"] for line in lines],
                flops=[before["flops"] + line["flops"] for line in lines],
                loss=[line["loss"] for line in lines],
            ),
            num_params=self.variant.num_params,
            steps=self.variant.steps,
            **{total: before[total] + trained.lines[-1][total] for total in TOTALS},
            swept=self.swept,
            commands=[
                command("train.main", run.config, self._fields(seed, suffix), workdir=self._workdir(seed, suffix))
                for suffix, run in self.stages.items()
            ],
            heldout_digest=self.variant.heldout_digest,
            environment=_environment(),
        )


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _busy_unless(is_ours: bool, name: str) -> None:
    """Exits with BUSY if another process has the lock of a run."""
    if not is_ours:
        print(f"another process is at {name}")
        sys.exit(BUSY)


def _stop_unless(complete: bool) -> None:
    """Exits with STOPPED if a signal has stopped the training."""
    if not complete:
        sys.exit(STOPPED)


def _environment() -> dict[str, str]:
    """Returns what this process runs on: name -> text."""
    devices = jax.devices()
    versions = {package: importlib.metadata.version(package) for package in ("jax", "flax", "optax", "numpy")}
    return {
        "device": f"{devices[0].device_kind} x {len(devices)}",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        **versions,
        "hash of the source code": code_digest(),
    }


def is_complete(workdir: str) -> bool:
    """Whether the run in `workdir` has been trained to its end."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path) or not os.path.isdir(os.path.join(workdir, "checkpoints")):
        return False
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    step = checkpoints.latest_step()
    checkpoints.close()
    return step is not None and step >= read_config(workdir)["train"]["steps"]
