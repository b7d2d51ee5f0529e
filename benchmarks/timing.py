"""What benchmarks of named parts share: the names of the command line, and times of functions that run alternately."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from contract.errors import ConfigError


def chosen_names(given: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """Returns the names `given` on the command line, or all that are known. Raises ConfigError for an unknown one.

    what: what a name is of, for messages.
    """
    known = list(known)
    for name in given:
        if name not in known:
            raise ConfigError(f"{what} {name!r} is unknown: use {', '.join(known)}")
    return list(given) or known


def alternating_seconds(
    functions: Mapping[str, Callable[..., Any]], arguments: Sequence[Any], runs: int
) -> dict[str, list[float]]:
    """Returns the seconds of each function of the same arguments: `runs` of them, after one run that is not counted.

    The functions run in turn, so that other load of the machine affects all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for run in range(runs + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            if run:
                seconds[name].append(time.perf_counter() - start)
    return seconds
