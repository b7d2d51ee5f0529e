"""The jobs of a study: what one process does, in the order in which a worker does them."""

import dataclasses
import re
from typing import Any

from contract.errors import ConfigError
from studies.plan import Plan


@dataclasses.dataclass(frozen=True)
class Job:
    """Trains and measures runs of one variant.

    Attributes:
      seeds: more than one are trained side by side.
      field, value: of a sweep, whose runs are measured by the first measure alone; field is "" otherwise.
    """

    variant: str
    seeds: tuple[int, ...]
    field: str = ""
    value: Any = None

    @property
    def name(self) -> str:
        """The name of the job's log, such as "bert_40-seed0"."""
        if self.field:
            return f"{self.variant}-{self.field.rpartition('.')[2]}={self.value}"
        return self.run_name(self.seeds[0]) + (f"-to-{self.seeds[-1]}" if len(self.seeds) > 1 else "")

    def run_name(self, seed: int) -> str:
        """The name of a run's workdir, outcome and failure."""
        return self.name if self.field else f"{self.variant}-seed{seed}"


def jobs_of(plan: Plan) -> list[Job]:
    """Returns all jobs of a study, each after those that it needs.

    The jobs of seed 0 precede those of seed 1, so that an unfinished study compares all variants. Where learning rates
    are swept, all jobs of a variant follow one another.
    """
    seeds = tuple(range(plan.study.seeds))
    groups = [(seed,) for seed in seeds]
    sweeps = {
        name: [Job(name, (0,), field, value) for field, values in variant.sweep.items() for value in values]
        for name, variant in plan.variants.items()
    }
    if plan.swept:
        return [job for name in plan.variants for job in (*sweeps[name], *(Job(name, group) for group in groups))]
    return [Job(name, group) for group in groups for name in plan.variants]


def jobs_of_worker(plan: Plan, jobs: list[Job], worker: int, num_workers: int) -> list[Job]:
    """Returns the jobs of worker `worker`, from 0, of `num_workers`.

    Where learning rates are swept, a worker has whole variants, because the runs of a variant need its sweep.

    Raises ConfigError if the worker has no job.
    """
    if plan.swept:
        names = list(plan.variants)[worker::num_workers]
        chosen, kind, total = [job for job in jobs if job.variant in names], "variants", len(plan.variants)
    else:
        chosen, kind, total = jobs[worker::num_workers], "jobs", len(jobs)
    if not chosen:
        raise ConfigError(
            f"--worker={worker}/{num_workers} has nothing to do, because the study has {total} {kind}: use at most "
            f"{total} workers"
        )
    return chosen


def parse_worker(text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n". Raises ConfigError unless 0 <= i < n."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None:
        raise ConfigError(f"--worker={text} must be i/n, such as 0/4 for the first of four workers")
    worker, num_workers = int(match[1]), int(match[2])
    if worker >= num_workers:
        raise ConfigError(
            f"--worker={text} is out of range: the workers of {num_workers} are 0/{num_workers} to "
            f"{num_workers - 1}/{num_workers}"
            if num_workers
            else f"--worker={text} is out of range: there must be 1 worker or more"
        )
    return worker, num_workers
