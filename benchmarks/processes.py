"""Benchmarks in processes of their own: the JSON lines that they print, and ours in turn with a peer's."""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from contract.errors import ConfigError

# Parent of a benchmark's own parser.
PEER_OPTIONS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
PEER_OPTIONS.add_argument("--peer", default="", help="command of a peer that prints a JSON line: run in turn with ours")
PEER_OPTIONS.add_argument("--pairs", type=int, default=5, help="with --peer: how often each of the two runs")


def json_lines(command: Sequence[str], environment: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Runs `command`, with `environment` added to this process's, and returns the JSON objects that it prints.

    What it writes to standard error goes to ours. Raises ConfigError where it cannot run, fails or prints none.
    """
    name = shlex.join(command)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    except OSError as error:
        raise ConfigError(f"{name}: cannot be run ({error.strerror}): give a path that this shell would run") from None
    if done.returncode:
        raise ConfigError(f"{name}: ended with status {done.returncode}: what it wrote above says why")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise ConfigError(f"{name}: printed no JSON line: it must print one, as the benchmark itself does")
    return lines


def in_turn(module: str, arguments: Sequence[str], *, peer: str, pairs: int, rate: str) -> list[dict[str, Any]]:
    """`python -m module` and the command `peer` in turn, ours first, each in a new process, `pairs` times.

    Two runs one after the other meet the same machine, whatever else it does; only their ratio is compared. So each of
    our lines comes back as in the run that had the median of field `rate`, with peer_`rate`, the peer's median,
    `ratio`, the median over the pairs of ours to the peer's, `ratios`, all of them, and `peer`, its last line.
    """
    if pairs < 1:
        raise ConfigError(f"--pairs={pairs} must be 1 or more")
    ours, theirs = [], []
    for _ in range(pairs):
        ours.append(json_lines([sys.executable, "-m", module, *arguments]))
        theirs.append(json_lines(shlex.split(peer))[-1])
    if rate not in theirs[0]:
        raise ConfigError(f"--peer={peer!r}: its JSON line has no {rate!r}, which is what ours is compared by")
    results = []
    for runs in zip(*ours, strict=True):
        median = statistics.median_low(run[rate] for run in runs)
        ratios = [run[rate] / line[rate] for run, line in zip(runs, theirs, strict=True)]
        results.append(
            next(run for run in runs if run[rate] == median)
            | {
                f"peer_{rate}": round(statistics.median(line[rate] for line in theirs)),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "peer": theirs[-1],
            }
        )
    return results
