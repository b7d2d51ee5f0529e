"""Runs on a file system that is too small, and continues them after it has grown."""

import contextlib
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.torture.trial import Difference, Trial, check_equal
from contract.errors import ConfigError

ENDS_WITHIN = 60.0  # seconds after the last write that succeeded


def fill_disks(number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Fills `number` file systems of random sizes, and returns the fields of the JSON line.

    A start on a full file system must end with one line that names a file or folder, and soon. After the file system
    has grown, the same command must continue the run to an end that equals the untouched run's.

    Raises Difference for anything else, and ConfigError without the right to mount a tmpfs.
    """
    if os.geteuid():
        raise ConfigError("--full_disk needs root, to mount a tmpfs: run it in a container")
    chance = random.Random(seed)
    untouched = Trial(folder / "untouched", folder / "compiled")
    if untouched.run_to_end():
        raise Difference(f"{untouched.folder}: failed: {untouched.errors()}")
    total = sum(path.stat().st_size for path in untouched.folder.rglob("*") if path.is_file())
    full_in: Counter[str] = Counter()
    longest = 0.0
    for index in range(number):
        trial = Trial(folder / f"disk-{index}", folder / "compiled")
        with _tmpfs(trial.folder, chance.randrange(2**14, total)) as grow:
            status, seconds = _run_until_full(trial)
            if not status:
                full_in["never full"] += 1
                continue
            errors = trial.errors()
            if len(errors) != 1 or not errors[0].startswith("error: "):
                raise Difference(f"{trial.folder}: status {status} and {len(errors)} lines of errors: {errors[-3:]}")
            longest = max(longest, seconds)
            full_in[_stage(trial)] += 1
            print(f"disk {index}: {errors[0]}", flush=True)
            grow(4 * total)
            if trial.run_to_end():
                raise Difference(f"{trial.folder}: cannot be continued: {trial.errors()}")
            check_equal(trial, untouched)
    return {"full_disks": number, "full_in": dict(full_in), "longest_seconds_after_the_last_write": round(longest, 1)}


def _stage(trial: Trial) -> str:
    if trial.num_lines():
        return "training"
    return "start" if (trial.workdir / "config.json").exists() else "token store"


def _run_until_full(trial: Trial) -> tuple[int, float]:
    """Runs the trial, and returns its status and the seconds from the last change of a file to its end."""
    status = trial.run_to_end()
    ended = time.time()
    newest = max(path.stat().st_mtime for path in [trial.folder, *trial.folder.rglob("*")])
    return status, ended - newest


@contextlib.contextmanager
def _tmpfs(folder: Path, size: int) -> Iterator[Any]:
    """Yields a function that changes the size, in bytes, of a tmpfs that is mounted at `folder`."""
    folder.mkdir(parents=True)
    _command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield lambda larger: _command("mount", "-o", f"remount,size={larger}", str(folder))
    finally:
        _command("umount", "--lazy", str(folder))


def _command(*arguments: str) -> None:
    process = subprocess.run(arguments, capture_output=True, text=True)
    if process.returncode:
        raise ConfigError(f"{' '.join(arguments)} failed: {process.stderr.strip()}")
