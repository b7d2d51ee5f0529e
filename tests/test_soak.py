"""What benchmarks.soak says of the samples of a run."""

import os

import numpy as np
import pytest

from benchmarks.soak import Sample, read_sample, summarize


def test_growth_speed_and_handles():
    # 100 s: memory 100 MiB in the first tenth, then 200 MiB and 1 MiB more every 10 s; half of the CPU's time.
    samples = [Sample(t, 100.0 if t < 10 else 200 + t / 10, t / 2, 8 if t < 50 else 9, 20) for t in range(101)]
    # A line every second until 90 s, then every 2 s.
    times = np.array([*range(1, 91), *range(92, 101, 2)], float)
    line = summarize(samples, times)
    assert line == {
        "minutes": 1.7,
        "resident_mib": [201, 205, 210],
        "growth_mib_per_hour": pytest.approx(360.0),
        "threads": [8, 9],
        "open_files": [20, 20],
        "speed_ratio": 0.5,
        "cpu_speed_ratio": 0.5,
    }


def test_a_sample_of_this_process():
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs /proc")
    sample = read_sample(os.getpid(), 1.5)
    assert (
        sample.seconds == 1.5
        and sample.resident_mib > 10
        and sample.cpu_seconds > 0.1
        and sample.threads >= 1
        and sample.open_files >= 3
    )
    with open(os.devnull):
        assert read_sample(os.getpid(), 1.5).open_files == sample.open_files + 1
