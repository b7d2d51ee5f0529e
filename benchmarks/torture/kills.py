"""Kills a run with SIGKILL at random moments of every stage, continues it, and compares it with the untouched run."""

import dataclasses
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.torture.trial import EVAL_EVERY, STEPS, TIME_LIMIT, Difference, Trial, check_equal, remove, wait

MOST_KILLS_OF_A_RUN = 6
_POLL_SECONDS = 0.001


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a start.

    Attributes:
      begun: (trial, what `before` returned) -> whether the stage has begun. After a kill: whether the run was in it.
      seconds: a kill comes at a random moment of this time after the stage was seen to begin.
      after_random_step: whether to wait for a random step first, so that any save or evaluation may be interrupted.
    """

    begun: Callable[[Trial, "Before"], bool]
    seconds: float
    after_random_step: bool = False


@dataclasses.dataclass(frozen=True)
class Before:
    """What a trial's folder contained before a start."""

    building: frozenset[str]  # unfinished token stores
    saving: frozenset[str]  # unfinished checkpoints
    num_lines: int  # of metrics
    began: float  # time.time()


def _building(trial: Trial) -> frozenset[str]:
    return frozenset(path.name for path in trial.cache.glob(".*"))


def _saving(trial: Trial) -> frozenset[str]:
    return frozenset(path.name for path in trial.checkpoints.glob("*tmp*"))


def _evaluating(trial: Trial, _: Before) -> bool:
    """Returns whether the newest line of metrics is that of training at a step that is evaluated."""
    path = trial.workdir / "metrics.jsonl"
    last = path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2] if path.exists() else b""
    steps = range(EVAL_EVERY, STEPS + 1, EVAL_EVERY)
    return any(f'"step": {step}, "split": "train"'.encode() in last for step in steps)


def _has_config(trial: Trial, before: Before) -> bool:
    path = trial.workdir / "config.json"
    return path.exists() and path.stat().st_mtime >= before.began


# In the order in which the stage of a killed run is found out: the first that applies.
STAGES = {
    "store": Stage(lambda trial, before: bool(_building(trial) - before.building), 1.0),
    "evaluation": Stage(_evaluating, 0.1, after_random_step=True),
    "save": Stage(lambda trial, before: bool(_saving(trial) - before.saving), 0.1, after_random_step=True),
    "step": Stage(lambda trial, before: trial.num_lines() > before.num_lines, 0.2, after_random_step=True),
    "compile": Stage(_has_config, 2.0),
    "start": Stage(lambda trial, before: True, 3.0),
}


def torture(kills: int, num_processes: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kills runs `kills` times, continues them to their end, and returns the fields of the JSON line.

    Every run is killed up to `MOST_KILLS_OF_A_RUN` times. With several processes, a random one is killed; the others
    must end by themselves, with a status other than 0.

    Raises Difference at the first run that differs from the untouched one, and keeps its folder.
    """
    chance = random.Random(seed)
    untouched = Trial(folder / "untouched", folder / "compiled", num_processes)
    _must_end_well(untouched)
    killed: Counter[str] = Counter()
    runs, longest = 0, 0.0
    while killed.total() < kills:
        trial = Trial(folder / f"run-{runs}", folder / "compiled", num_processes)
        for _ in range(chance.randint(1, MOST_KILLS_OF_A_RUN)):
            if killed.total() == kills:
                break
            stage, seconds = _start_and_kill(trial, _next_stage(killed, trial), chance)
            killed[stage] += stage != ""
            longest = max(longest, seconds)
            place = f"killed at {stage}" if stage else "had ended"
            print(f"run {runs}: {place} ({killed.total()} of {kills})", flush=True)
            if not stage:
                break
        _must_end_well(trial)
        check_equal(trial, untouched)
        remove(trial)
        runs += 1
    line: dict[str, Any] = {"kills": killed.total(), "runs": runs, "equal": runs, "processes": num_processes}
    line |= {"killed_at": {stage: killed[stage] for stage in STAGES}}
    if num_processes > 1:
        line["longest_seconds_until_the_others_ended"] = round(longest, 1)
    return line


def _next_stage(killed: Counter[str], trial: Trial) -> str:
    """Returns the stage with the fewest kills so far; that of the token store only while there is none."""
    has_store = trial.cache.exists() and len(list(trial.cache.iterdir())) > len(_building(trial))
    return min((stage for stage in STAGES if stage != "store" or not has_store), key=lambda stage: killed[stage])


def _start_and_kill(trial: Trial, stage: str, chance: random.Random) -> tuple[str, float]:
    """Starts a run and kills it. Returns the stage in which it was, "" if it had ended, and how long the others ran."""
    before = Before(_building(trial), _saving(trial), trial.num_lines(), time.time())
    first_line = before.num_lines
    if STAGES[stage].after_random_step:
        first_line = chance.randint(before.num_lines, max(before.num_lines, STEPS + STEPS // EVAL_EVERY - 1))
    processes = trial.start()
    end = time.monotonic() + TIME_LIMIT
    while not (trial.num_lines() >= first_line and STAGES[stage].begun(trial, before)):
        if any(process.poll() is not None for process in processes):
            break
        if time.monotonic() > end:
            _kill(processes)
            raise Difference(f"{trial.folder}: {stage} has not begun within {TIME_LIMIT:.0f} s")
        time.sleep(_POLL_SECONDS)
    time.sleep(chance.uniform(0.0, STAGES[stage].seconds))
    victim = chance.choice(processes)
    if all(process.poll() is not None for process in processes):
        statuses = wait(processes)
        if any(statuses):
            raise Difference(f"{trial.folder}: ended with {statuses}: {trial.errors()}")
        return "", 0.0
    victim.kill()
    killed_at = time.monotonic()
    statuses = wait(processes)
    if len(processes) > 1 and statuses.count(0) not in (0, len(statuses) - 1):
        raise Difference(f"{trial.folder}: a process was killed, and the statuses are {statuses}")
    seconds = time.monotonic() - killed_at
    return next(name for name, stage in STAGES.items() if stage.begun(trial, before)), seconds


def _kill(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _must_end_well(trial: Trial) -> None:
    """Raises Difference unless the run makes all of its steps, with nothing on standard error."""
    statuses = wait(trial.start())
    if any(statuses) or trial.errors():
        raise Difference(f"{trial.folder}: ended with {statuses}: {trial.errors()}")
