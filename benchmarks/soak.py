"""Trains a tiny run for an hour and measures what grows: python -m benchmarks.soak [--minutes=60] [--curve=soak.png]

Trains configs/ul2.py, with evaluations and checkpoints every few seconds, in a temporary folder. Prints one JSON line:

  resident_mib            resident memory at a tenth, at half and at the end of the time
  growth_mib_per_hour     the slope of a line fitted to the resident memory after the first tenth of the time
  threads, open_files     at a tenth of the time and at the end
  speed_ratio             the median steps per second in the last tenth divided by that in the second tenth
  cpu_speed_ratio         the same of the steps per second of CPU time, which other programs on the machine change less

The first tenth is not compared, because caches fill and programs compile in it.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from studies.plot import import_pyplot
from workdir.metrics import read_metrics

_FLAGS = flags.FlagValues()
_MINUTES = flags.DEFINE_float("minutes", 60.0, "Length of the run.", lower_bound=0.1, flag_values=_FLAGS)
_CURVE = flags.DEFINE_string("curve", None, "File of a picture of memory and speed.", _FLAGS)
_SAMPLE_SECONDS = 1.0
_SETTINGS = (
    "train.steps=1000000000",
    "optimizer.schedule=constant",
    "train.log_every=20",
    "train.eval_every=500",
    "train.eval_windows=64",
    "train.checkpoint_every=500",
    "model.d_model=32",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.head_dim=16",
    "model.d_ff=64",
    "train.batch_size=4",
)


class Sample(NamedTuple):
    """What /proc says about a process."""

    seconds: float  # since the start
    resident_mib: float
    cpu_seconds: float
    threads: int
    open_files: int


def read_sample(pid: int, seconds: float) -> Sample:
    """Returns the sample of a process. Raises OSError if the process has ended."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.count(":")
    )
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]  # in user code, in the kernel
    cpu_seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    open_files = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(seconds, int(status["VmRSS"].split()[0]) / 1024, cpu_seconds, int(status["Threads"]), open_files)


def summarize(samples: list[Sample], times: np.ndarray) -> dict[str, Any]:
    """Returns the fields of the JSON line.

    times: float64 [n], the seconds of training at which each line of training metrics was written, ascending.
    """
    length = samples[-1].seconds
    tenth = next(sample for sample in samples if sample.seconds >= length / 10)
    half = next(sample for sample in samples if sample.seconds >= length / 2)
    late = np.array([sample[:2] for sample in samples if sample.seconds >= length / 10])
    slope = np.polyfit(late[:, 0], late[:, 1], 1)[0]
    share = times[1:] / times[-1]
    second_tenth, last_tenth = (share > 0.1) & (share <= 0.2), share > 0.9
    intervals, before_training = np.diff(times), length - times[-1]
    cpu_intervals = np.diff(
        np.interp(times + before_training, [s.seconds for s in samples], [s.cpu_seconds for s in samples])
    )
    return {
        "minutes": round(length / 60, 1),
        "resident_mib": [round(sample.resident_mib) for sample in (tenth, half, samples[-1])],
        "growth_mib_per_hour": round(3600 * slope, 1),
        "threads": [tenth.threads, samples[-1].threads],
        "open_files": [tenth.open_files, samples[-1].open_files],
        "speed_ratio": round(float(np.median(intervals[second_tenth]) / np.median(intervals[last_tenth])), 3),
        "cpu_speed_ratio": round(float(cpu_intervals[second_tenth].mean() / cpu_intervals[last_tenth].mean()), 3),
    }


def soak(minutes: float, folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Trains for `minutes` in `folder`, and returns the fields of the JSON line and the samples."""
    if not Path("/proc/self/status").exists():
        raise ConfigError("benchmarks.soak reads /proc, which this system lacks: run it on Linux")
    workdir = folder / "run"
    command = [sys.executable, "-m", "train.main", "--config=configs/ul2.py", f"--workdir={workdir}"]
    process = subprocess.Popen([*command, *(f"--config.{setting}" for setting in _SETTINGS)], stdout=subprocess.DEVNULL)
    began, samples = time.monotonic(), []
    try:
        while (seconds := time.monotonic() - began) < 60 * minutes and process.poll() is None:
            samples.append(read_sample(process.pid, seconds))
            time.sleep(_SAMPLE_SECONDS)
        if process.poll() is not None:
            raise ConfigError(f"the run has ended with status {process.returncode}: its messages above give the reason")
        process.terminate()
        process.wait(120)
    finally:
        process.kill()
    lines = read_metrics(workdir, "train")
    line = summarize(samples, np.array([line["seconds"] for line in lines]))
    return line | {"steps": lines[-1]["step"], "status": process.returncode}, samples


def draw(samples: list[Sample], path: str) -> None:
    """Draws resident memory, threads and open files over time."""
    values = np.array(samples)
    figure, (memory, counts) = import_pyplot("--curve").subplots(
        2, 1, sharex=True, figsize=(7, 5), layout="constrained"
    )
    memory.plot(values[:, 0] / 60, values[:, 1])
    memory.set_ylabel("resident memory, MiB")
    memory.set_ylim(bottom=0)
    counts.plot(values[:, 0] / 60, [sample.threads for sample in samples], label="threads")
    counts.plot(values[:, 0] / 60, [sample.open_files for sample in samples], "--", label="open files")
    counts.set_ylim(bottom=0)
    counts.set_xlabel("minutes")
    counts.legend()
    figure.savefig(path)


def main() -> None:
    """Trains, and prints the line."""
    parse_flags(_FLAGS, __doc__)
    if not math.isfinite(_MINUTES.value):
        raise ConfigError(f"--minutes={_MINUTES.value} must be finite")
    with tempfile.TemporaryDirectory(prefix="cloze-soak-") as folder:
        line, samples = soak(_MINUTES.value, Path(folder))
    if _CURVE.value:
        draw(samples, _CURVE.value)
    print(json.dumps({"benchmark": "soak"} | line), flush=True)


if __name__ == "__main__":
    run_command(main)
