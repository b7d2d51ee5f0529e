"""Does the jobs of a worker, each in a process of its own, until all are complete or a signal arrives."""

import multiprocessing
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from contract.errors import ConfigError
from studies.folder import Failure, StudyFolder
from studies.job import BUSY, DIVERGED, STOPPED, run_job
from studies.jobs import Job
from studies.plan import Plan
from studies.progress import StudyProgress
from workdir.metrics import read_metrics

_POLL_SECONDS = 0.5
_ERROR_CHARS = 400


def run_jobs(jobs: Sequence[Job], plan: Plan, folder: StudyFolder, progress: StudyProgress) -> bool:
    """Does the jobs that are not complete. Returns False if a signal has ended this before the last of them.

    A job that fails leaves its error in the folder, and the next job begins. A process of its own per job keeps the
    failures of one, such as a device that is out of memory, from the others.
    """
    with _Signals() as signals:
        for job in jobs:
            if signals.received:
                return False
            try:
                if all([folder.is_complete(job.run_name(seed)) for seed in job.seeds]):
                    progress.finish(job, "complete already")
                    continue
            except ConfigError as error:
                progress.finish(job, f"damaged: {error}", failed=True)
                continue
            for seed in job.seeds:
                folder.clear_failure(job.run_name(seed))
            progress.start(job)
            log = folder.log(job.name)
            printed = log.stat().st_size if log.exists() else 0
            process = multiprocessing.get_context("spawn").Process(target=run_job, args=(job, plan, str(folder.path)))
            signals.start(process)
            while process.exitcode is None:
                process.join(_POLL_SECONDS)
                signals.forward(process)
                progress.update(job, [_step(folder.workdir(job.run_name(seed))) for seed in job.seeds])
            if process.exitcode == STOPPED or (signals.received and process.exitcode):
                return False
            if process.exitcode == BUSY:
                progress.finish(job, "another process is at it")
            elif process.exitcode:
                error = last_error(log, process.exitcode, printed)
                for name in map(job.run_name, job.seeds):
                    if not folder.is_complete(name) and folder.failure(name) is None:
                        folder.write_failure(name, Failure(error, diverged=process.exitcode == DIVERGED))
                progress.finish(job, f"failed: {error}", failed=True)
            else:
                progress.finish(job, "done")
    return not signals.received


def _step(workdir: str) -> int:
    """The step of the last line of a run's training metrics."""
    try:
        lines = read_metrics(workdir, "train")
    except ConfigError:  # there is none before the first step
        return 0
    return lines[-1]["step"] if lines else 0


def last_error(log: Path, exitcode: int, begin: int = 0) -> str:
    """Returns the reason for a job's failure, one line, from its log. begin: the bytes of earlier tries."""
    text = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
    errors = re.findall(r"^error: (.*)$", text, re.MULTILINE)
    if errors and exitcode in (1, DIVERGED):
        return errors[-1][:_ERROR_CHARS]
    if exitcode < 0:
        return f"the process was ended by signal {signal.Signals(-exitcode).name}; its log is {log}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1][:_ERROR_CHARS] if lines else 'no message'}; its log is {log}"


class _Signals:
    """Within this context SIGTERM and SIGINT end the running job, which saves a checkpoint; a second one kills it."""

    def __init__(self) -> None:
        self.received = 0
        self._forwarded = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @staticmethod
    def start(process: multiprocessing.process.BaseProcess) -> None:
        """Starts a process that ignores Ctrl-C, which the terminal sends to both, until it has a handler of its own."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.start()
        signal.signal(signal.SIGINT, handler)

    def forward(self, process: multiprocessing.process.BaseProcess) -> None:
        """Sends what was received, and not sent before, to the process of a job."""
        if self.received > self._forwarded and process.is_alive():
            process.terminate() if self.received == 1 else process.kill()
        self._forwarded = self.received

    def _handle(self, *_) -> None:
        self.received += 1
