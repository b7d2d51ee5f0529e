"""Does a job of a study in a process of its own: trains the runs, fine-tunes and measures them."""

import importlib.metadata
import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import parent_process
from typing import Any

import jax

from train.ablate.folder import StudyFolder
from train.ablate.jobs import Job
from train.ablate.measures import FineTuning, Trained
from train.ablate.plan import START_SEED, SWEEP_SEED, Plan, PlannedRun, VariantPlan
from train.ablate.resolve import command, with_fields
from train.ablate.results import Curve, Outcome
from train.ablate.sweep import chosen_values
from train.agreement import code_digest
from train.checkpoint import Checkpoints
from train.command import run_command
from train.experiment import make_experiment
from train.loop import train_and_evaluate
from train.run_config import read_config

STOPPED, BUSY = 75, 76  # the exit statuses of a job that a signal stopped, and of one that another process does


def run_job(job: Job, plan: Plan, out: str) -> None:
    """Does a job, as the target of a process. The exit status is 0, STOPPED, BUSY, or another one for an error.

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
        # Runs of the same shapes have the same programs.
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(os.path.join(out, "compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    run_command(lambda: _JobRunner(job, plan, folder).run())


def _end_with_parent() -> None:
    """Ends this process when its parent ends, so that a study that is killed leaves no run behind."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _JobRunner:
    def __init__(self, job: Job, plan: Plan, folder: StudyFolder):
        self.job, self.plan, self.folder = job, plan, folder
        self.variant: VariantPlan = plan.variants[job.variant]
        values = chosen_values(self.variant, plan, folder) if self.variant.sweep and not job.field else {}
        self.swept: dict[str, Any] = values

    def run(self) -> None:
        seeds = [seed for seed in self.job.seeds if self.folder.outcome(self.job.run_name(seed)) is None]
        if not seeds:
            return
        with self.folder.lock(self.job.name) as is_ours:
            if not is_ours:
                print(f"another process is at {self.job.name}")
                sys.exit(BUSY)
            if self.variant.start is not None:
                self._train(seeds, self.variant.start, "-start")
            self._train(seeds, self.variant.main, "")
            for seed in seeds:
                self._measure(seed)

    def _fields(self, run: PlannedRun, seed: int, suffix: str) -> dict[str, Any]:
        """The config of one run of a seed."""
        name = self.job.run_name(seed)
        changes: dict[str, Any] = {"seed": SWEEP_SEED if self.job.field else seed}
        if suffix == "-start":
            changes["seed"] += START_SEED  # the second run then reads the text in another order
        elif suffix:
            changes["train.init_from"] = self.folder.workdir(name)
        else:
            changes |= {self.job.field: self.job.value} if self.job.field else self.swept
            if self.variant.start is not None:
                changes["train.init_from"] = self.folder.workdir(f"{name}-start")
        return with_fields(run.fields, changes)

    def _train(self, seeds: Sequence[int], run: PlannedRun, suffix: str) -> None:
        """Trains the runs that are not complete, or continues them. Exits if a signal stops them."""
        workdirs = {seed: self.folder.workdir(self.job.run_name(seed) + suffix) for seed in seeds}
        for seed, workdir in workdirs.items():
            if is_complete(workdir):
                continue
            train_and_evaluate(make_experiment(self._fields(run, seed, suffix)), workdir)
            if not is_complete(workdir):
                sys.exit(STOPPED)

    def _measure(self, seed: int) -> None:
        name = self.job.run_name(seed)
        measures = {
            measure_name: measure
            for measure_name, measure in self.plan.measures.items()
            if measure.applies_to(self.variant.name)
        }
        if self.job.field:
            first = self.plan.study.compared[0]
            measures = {first: measures[first]}
        fine_tunings = self._fine_tune(seed, [name for name, one in measures.items() if isinstance(one, FineTuning)])
        trained = Trained(self.folder.workdir(name), fine_tunings)
        values = {measure_name: measure.value(measure_name, trained) for measure_name, measure in measures.items()}
        compared = {k: v for k, v in values.items() if measures[k].is_compared and v is not None}
        self.folder.write_outcome(
            name,
            Outcome(
                variant=self.variant.name,
                seed=seed,
                values=compared,
                samples={k: v for k, v in values.items() if not measures[k].is_compared},
                curve=self._curve(trained.lines),
                num_params=self.variant.num_params,
                steps=self.variant.steps,
                raw_tokens=self.variant.raw_tokens,
                flops=self.variant.flops,
                seconds=trained.lines[-1]["seconds"],
                swept={self.job.field: self.job.value} if self.job.field else self.swept,
                commands=self._commands(seed, fine_tunings),
                heldout_digest=read_config(trained.workdir)["corpus"]["heldout"],
                environment=_environment(),
            ),
        )

    def _fine_tune(self, seed: int, measures: Sequence[str]) -> dict[str, str]:
        """Fine-tunes for `measures`, and returns measure -> workdir. Measures with equal configs share a run."""
        workdirs: dict[str, str] = {}
        for measure in measures:
            run = self.variant.fine_tunings[measure]
            shared = [name for name in workdirs if self.variant.fine_tunings[name] == run]
            if shared:
                workdirs[measure] = workdirs[shared[0]]
                continue
            suffix = f"-{measure}"
            self._train([seed], run, suffix)
            workdirs[measure] = self.folder.workdir(self.job.run_name(seed) + suffix)
        return workdirs

    def _curve(self, lines: Sequence[Mapping[str, Any]]) -> Curve:
        """The held-out loss over the training, with the start's part of it before the first entry."""
        start = self.variant.start
        tokens, flops = (start.raw_tokens, start.flops) if start is not None else (0, 0.0)
        lines = [line for line in lines if line["loss"] is not None]
        return Curve(
            raw_tokens=[tokens + line["raw_tokens"] for line in lines],
            flops=[flops + line["flops"] for line in lines],
            loss=[line["loss"] for line in lines],
        )

    def _commands(self, seed: int, fine_tunings: Mapping[str, str]) -> list[str]:
        name = self.job.run_name(seed)
        runs = [(self.variant.start, "-start")] if self.variant.start is not None else []
        runs += [(self.variant.main, "")]
        for measure, workdir in fine_tunings.items():
            if workdir.endswith(f"-{measure}"):
                runs.append((self.variant.fine_tunings[measure], f"-{measure}"))
        return [
            command(
                "train.main", run.config, self._fields(run, seed, suffix), workdir=self.folder.workdir(name + suffix)
            )
            for run, suffix in runs
        ]


def _environment() -> dict[str, str]:
    """Returns what this process runs on: name -> text."""
    devices = jax.devices()
    versions = {package: importlib.metadata.version(package) for package in ("jax", "flax", "optax", "numpy")}
    return {
        "device": f"{devices[0].device_kind} x {len(devices)}",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        **versions,
        "code": code_digest(),
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
