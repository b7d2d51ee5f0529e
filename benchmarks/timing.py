"""Times of compiled functions that run alternately, so that other load of the machine affects all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def alternating_seconds(
    functions: Mapping[str, Callable[..., Any]], arguments: Sequence[Any], runs: int
) -> dict[str, list[float]]:
    """Returns the seconds of each function of the same arguments: `runs` of them, after one run that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for run in range(runs + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            if run:
                seconds[name].append(time.perf_counter() - start)
    return seconds
