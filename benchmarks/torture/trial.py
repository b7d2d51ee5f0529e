"""A small run of train.main in a folder of its own, which can be killed and continued, and compared with another."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workdir.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
STEPS, EVAL_EVERY, CHECKPOINT_EVERY = 60, 6, 20
TIME_LIMIT = 300.0  # seconds of one start; a start that takes more hangs
# Metrics that measure time.
_TIMED = ("tokens_per_second", "data_wait_fraction", "seconds", "mfu")
# Lines of gloo, which several of its C++ threads write at once.
_FROM_GLOO = re.compile(r"\[Gloo\]|Rank|peer ranks")


class Difference(Exception):
    """A run that was interrupted and continued differs from the untouched run, or a start did not end as it must."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run and its token store, both in `folder`.

    Attributes:
      folder: contains workdir/, cache/ and the output of the latest start of each process.
      num_processes: of each start.
      num_devices: simulated CPU devices of each process.
      compiled: folder of JAX's compilation cache, which all trials share.
      overrides: fields of the config in addition to those of `arguments`, such as ("seed=1",).
    """

    folder: Path
    compiled: Path
    num_processes: int = 1
    num_devices: int = 1
    overrides: Sequence[str] = ()

    @property
    def workdir(self) -> Path:
        """The folder of the run."""
        return self.folder / "workdir"

    @property
    def cache(self) -> Path:
        """The folder of the token store."""
        return self.folder / "cache"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.workdir / "checkpoints"

    def num_lines(self) -> int:
        """Returns the number of lines of metrics."""
        try:
            return (self.workdir / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def start(self) -> list[subprocess.Popen]:
        """Starts the processes of the run, or of its continuation."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.num_devices}",
        }
        join: list[list[str]] = [[]]
        if self.num_processes > 1:
            address = f"--coordinator_address=localhost:{_free_port()}"
            join = [
                [address, f"--num_processes={self.num_processes}", f"--process_id={index}"]
                for index in range(self.num_processes)
            ]
        processes = []
        for index, flags in enumerate(join):
            with contextlib.ExitStack() as files:
                out, err = (files.enter_context(open(self.output(index, name), "w")) for name in ("out", "err"))
                command = [sys.executable, "-m", "train.main", *self._arguments(), *flags]
                processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err))
        return processes

    def output(self, process: int, name: str) -> Path:
        """Returns the file of what a process has written in its latest start. name: "out" or "err".

        Not in the folder of the trial, whose file system may be full.
        """
        return self.folder.with_name(f"{self.folder.name}-{process}.{name}")

    def errors(self, process: int = 0) -> list[str]:
        """Returns the lines that a process wrote to standard error in its latest start."""
        text = self.output(process, "err").read_text(errors="replace")
        return [line for line in text.splitlines() if line.strip() and not _FROM_GLOO.search(line)]

    def run_to_end(self, *, time_limit: float = TIME_LIMIT) -> int:
        """Starts the run, waits for its end, and returns the exit status of process 0."""
        return wait(self.start(), time_limit)[0]

    def _arguments(self) -> list[str]:
        fields = [
            "data.source=text",
            f"data.path={Path(json.__file__).parents[1] / 'asyncio' / '*.py'}",  # 0.5 MB of Python in 33 files
            f"data.cache_dir={self.cache}",
            "data.inputs_length=32",
            "data.targets_length=32",
            "model.num_layers=1",
            "model.d_model=32",
            "model.num_heads=2",
            "model.num_kv_heads=2",
            "model.head_dim=16",
            "model.d_ff=32",
            "model.dropout_rate=0.1",
            "optimizer.warmup_steps=4",
            f"train.steps={STEPS}",
            "train.batch_size=8",
            "train.grad_accum_steps=2",
            "train.ema_decay=0.9",
            "train.log_every=1",
            f"train.eval_every={EVAL_EVERY}",
            "train.eval_windows=32",
            f"train.checkpoint_every={CHECKPOINT_EVERY}",
            *self.overrides,
        ]
        return ["--config=configs/ul2.py", f"--workdir={self.workdir}", *(f"--config.{field}" for field in fields)]


def wait(processes: Sequence[subprocess.Popen], time_limit: float = TIME_LIMIT) -> list[int]:
    """Returns the exit statuses of `processes` after their end.

    Raises Difference, and kills them, if they have not ended within `time_limit` seconds.
    """
    end = time.monotonic() + time_limit
    try:
        return [process.wait(max(0.0, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise Difference(f"a process has not ended within {time_limit:.0f} s: {processes[0].args}") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()


def remove(trial: Trial) -> None:
    """Removes the files of a trial."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    for index in range(trial.num_processes):
        for name in ("out", "err"):
            trial.output(index, name).unlink(missing_ok=True)


def check_equal(trial: Trial, untouched: Trial) -> None:
    """Raises Difference unless two finished runs have the same metrics, parameters, optimizer arrays and token store.

    Arrays are compared bit for bit, as Orbax alone reads them. Metrics that measure time are not compared.
    """
    for name, ours, theirs in (
        ("metrics", metrics_of(trial), metrics_of(untouched)),
        ("token stores", _store_of(trial), _store_of(untouched)),
    ):
        if ours != theirs:
            place = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), "length")
            raise Difference(f"{trial.folder}: the {name} differ from the untouched run's at {place}")
    ours, theirs = arrays_of(trial), arrays_of(untouched)
    if ours.keys() != theirs.keys():
        raise Difference(f"{trial.folder}: the checkpoints have different arrays")
    for name, array in ours.items():
        if array.tobytes() != theirs[name].tobytes():
            raise Difference(f"{trial.folder}: {name} differs from the untouched run's")


def metrics_of(trial: Trial) -> list[dict[str, Any]]:
    """Returns the lines of metrics without those metrics that measure time."""
    lines = (trial.workdir / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in _TIMED} for line in lines]


def arrays_of(trial: Trial) -> dict[str, np.ndarray]:
    """Returns the arrays of the last checkpoint by their paths."""
    arrays = Checkpoints(trial.checkpoints, keep=None).arrays(STEPS)
    return {name: np.asarray(array) for name, array in arrays.items()}


def _store_of(trial: Trial) -> list[tuple[str, Any]]:
    [store] = [folder for folder in trial.cache.iterdir() if not folder.name.startswith(".")]
    return [(path.name, _contents(path)) for path in sorted(store.iterdir())]


def _contents(path: Path) -> bytes | Mapping[str, Any]:
    return json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]
