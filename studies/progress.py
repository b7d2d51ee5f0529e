"""Shows the progress of a study: a live table on a terminal, a line for each job in a file or a pipe."""

import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from studies.jobs import Job
from studies.plan import Plan


class StudyProgress:
    """The progress of a worker's jobs.

    Args:
      jobs: of this worker.
      value: the name of a run -> its first measure as text; "" if the run is not complete.
    """

    def __init__(self, plan: Plan, jobs: Sequence[Job], value: Callable[[str], str], console: Console | None = None):
        self._plan, self._jobs, self._value = plan, jobs, value
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._values: dict[str, str] = {}  # run -> its first measure
        self._states: dict[str, str] = {}  # job -> what the table shows
        self._work = {job.name: len(job.seeds) * _flops(plan, job) for job in jobs}
        self._done: dict[str, float] = {}  # job -> share of its work that is done
        self._skipped = 0.0  # work that was complete before this start
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=2, transient=False)

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._console.is_interactive:
            self._live.stop()

    def start(self, job: Job) -> None:
        """Shows that a job has begun."""
        self._states[job.name] = "0%"
        self._done[job.name] = 0.0

    def update(self, job: Job, steps: Sequence[int]) -> None:
        """Shows the last steps of a job's runs."""
        share = sum(steps) / (len(steps) * max(self._plan.variants[job.variant].main.steps, 1))
        self._states[job.name] = f"{share:.0%}" if share < 1 else "measuring"
        self._done[job.name] = min(share, 1.0) * 0.9  # the rest: fine-tuning and measures

    def finish(self, job: Job, text: str, *, failed: bool = False) -> None:
        """Shows the end of a job."""
        if text == "complete already":
            self._skipped += self._work[job.name]
        self._done[job.name] = 1.0
        self._states[job.name] = "failed" if failed else text
        number = self._jobs.index(job) + 1
        left = f"  {self.time_left()}" if number < len(self._jobs) and text != "complete already" else ""
        if not self._console.is_interactive or failed:
            self._console.print(
                f"{number:>{len(str(len(self._jobs)))}}/{len(self._jobs)}  {job.name}: {text}{left}", soft_wrap=True
            )

    def time_left(self) -> str:
        """Returns the estimated time to the end, such as "1:02 h left"; "" without an estimate.

        The rest of the FLOPs takes as long for each as those since the start of the command.
        """
        total = sum(self._work.values())
        done = sum(self._work[name] * share for name, share in self._done.items()) - self._skipped
        if done <= 0:
            return ""
        seconds = (time.monotonic() - self._began) * (total - self._skipped - done) / done
        minutes = round(seconds / 60)
        return f"{minutes // 60}:{minutes % 60:02} h left" if minutes >= 60 else f"{max(minutes, 1)} min left"

    def _render(self) -> Group:
        study, seeds = self._plan.study, range(self._plan.study.seeds)
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column(f"variant ({study.compared[0]})")
        for seed in seeds:
            table.add_column(f"seed {seed}", justify="right")
        for name in self._plan.variants:
            table.add_row(name, *(self._cell(name, seed) for seed in seeds))
        sweeping = [job.name for job in self._jobs if job.field and 0 <= self._done.get(job.name, 1.0) < 1]
        total = max(sum(self._work.values()), 1e-9)
        done = sum(self._work[name] * share for name, share in self._done.items())
        bar = ProgressBar(total=total, completed=done, width=40)
        line = Table.grid(padding=(0, 2))
        line.add_row(bar, f"{done / total:.0%}", self.time_left(), *(f"sweep: {name}" for name in sweeping))
        return Group(table, line)

    def _cell(self, variant: str, seed: int) -> Text:
        name = f"{variant}-seed{seed}"
        value = self._values.get(name) or self._value(name)
        if value:
            self._values[name] = value  # the file of a complete run is read once
            return Text(value, "green")
        job = next((j for j in self._jobs if j.variant == variant and seed in j.seeds and not j.field), None)
        state = self._states.get(job.name, "") if job is not None else "other worker"
        return Text(state, "bold red" if state == "failed" else "")


def _flops(plan: Plan, job: Job) -> float:
    """The FLOPs of a seed of a job: of its training and, if it is not of a sweep, of its fine-tunings."""
    variant = plan.variants[job.variant]
    fine_tunings = [] if job.field else variant.distinct_fine_tunings
    return variant.flops + sum(run.flops for run in fine_tunings)
