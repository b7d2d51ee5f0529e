"""What benchmarks share: configs by name, times of functions that run alternately, and other programs' JSON lines."""

import importlib
import json
import pkgutil
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

import configs
from contract.errors import ConfigError
from files.atomic import parse_json

_NOT_EXPERIMENTS = {"base", "architectures", "machines", "recipes", "sizes"}


def define_sizes(sizes: Mapping[str, int], flag_values: flags.FlagValues) -> flags.FlagHolder[str]:
    """Defines a flag for each of `sizes`, name -> default, and --precision, whose holder it returns."""
    for name, default in sizes.items():
        flags.DEFINE_integer(name, default, "Size.", lower_bound=1, flag_values=flag_values)
    precisions = ["bfloat16", "float16", "float32"]
    return flags.DEFINE_enum("precision", "bfloat16", precisions, "Dtype of the computation.", flag_values)


def named_config(name: str, default_preset: str) -> ConfigDict:
    """Returns the config of `name`, a file of configs/ with or without ":preset".

    Raises ConfigError if there is no such file or preset.
    """
    module, _, preset = name.partition(":")
    try:
        return importlib.import_module(f"configs.{module}").get_config(preset or default_preset)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{name!r} must be a file of configs/, optionally with :preset: {error}") from None


def every_variant() -> Iterator[str]:
    """Yields the name of every experiment in configs/: "name", or "name:variant" for each of its variants."""
    modules = {module.name for module in pkgutil.iter_modules(configs.__path__) if not module.ispkg}
    for name in sorted(modules - _NOT_EXPERIMENTS):
        variants = getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", {})
        yield from (f"{name}:{variant}" for variant in variants) if variants else (name,)


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


def rates(count: Callable[[], int], seconds: float) -> list[float]:
    """Returns, for each of five runs of about `seconds` seconds, the sum of what calls of `count` return per second."""
    found = []
    for _ in range(5):
        total, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            total += count()
        found.append(total / elapsed)
    return found


def define_peer(flag_values: flags.FlagValues) -> None:
    """Defines --peer, the command of another implementation's benchmark, and --pairs."""
    flags.DEFINE_string("peer", "", "Command of another implementation, which prints a JSON line.", flag_values)
    flags.DEFINE_integer(
        "pairs", 5, "With --peer: runs of each of the two commands.", lower_bound=1, flag_values=flag_values
    )


def peer_command(peer: str, flag: str = "--peer") -> list[str]:
    """Returns the words of `peer`, the value of `flag`. Raises ConfigError unless the first one can be executed."""
    try:
        command = shlex.split(peer)
    except ValueError as error:
        raise ConfigError(f"{flag}={peer!r} cannot be split into words: {error}: correct its quotes") from None
    if not command or shutil.which(command[0]) is None:
        program = command[0] if command else ""
        raise ConfigError(f"{flag}={peer!r}: there is no program {program!r}: name one of the PATH, or the path of one")
    return command


def json_objects(output: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the JSON objects of the lines that begin with "{", and the first such line that is not JSON, or ""."""
    found, broken = [], ""
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(parse_json(line))
            except ValueError:
                broken = broken or line
    return found, broken


def json_lines(command: Sequence[str]) -> list[dict[str, Any]]:
    """Runs `command` and returns the JSON objects that it prints, one a line. Standard error is not captured.

    Raises ConfigError if the command fails, prints no JSON line, or one that is not whole.
    """
    process = subprocess.run(command, stdout=subprocess.PIPE, errors="replace")
    lines, broken = json_objects(process.stdout)
    if process.returncode or not lines or broken:
        found = f"{len(lines)} JSON lines" + f", and a line that is not JSON: {broken[:200]}" * bool(broken)
        raise ConfigError(f"{shlex.join(command)}: ended with status {process.returncode} and {found}")
    return lines


def _without_peer(argv: Sequence[str]) -> list[str]:
    """Returns the arguments without --peer and --pairs, each written as --name=value or --name value."""
    rest, kept = iter(argv), []
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name.lstrip("-") not in ("peer", "pairs") or not name.startswith("-"):
            kept.append(argument)
        elif not equals:
            next(rest)
    return kept


def peer_lines(module: str, flag_values: flags.FlagValues, *, rate: str) -> list[dict[str, Any]]:
    """Runs `python -m module` and then the command of --peer, each in a new process, --pairs times in all.

    `python -m module` has the other arguments of this command line. The two runs of a pair follow each other, so that
    other work of the machine slows down both; only the ratios of pairs are compared.

    rate: the field of the lines that is compared: of all lines that we print, and the last one of the peer.

    Returns each of our lines, from the run with the median `rate` (the lower of two), with these fields added:
      peer_<rate>: the median over the peer's runs.
      ratio: the median over the pairs of our rate divided by the peer's.
      ratios: the ratios of all pairs.
      peer: the peer's last line.

    Raises ConfigError if the peer is no program, before the first run; if a command fails or the peer's line does not
    contain `rate`, after our lines of the last run are printed.
    """
    peer, our_runs, peer_runs = flag_values["peer"].value, [], []
    command = peer_command(peer)
    arguments = _without_peer(sys.argv[1:])
    for _ in range(flag_values["pairs"].value):
        our_runs.append(json_lines([sys.executable, "-m", module, *arguments]))
        try:
            peer_runs.append(json_lines(command)[-1])
            if rate not in peer_runs[-1]:
                raise ConfigError(f"--peer={peer!r}: the JSON line has no {rate!r}, the field that is compared")
        except ConfigError:
            for line in our_runs[-1]:  # they are measured, whatever the peer does
                print(json.dumps(line), flush=True)
            raise
    results = []
    for runs in zip(*our_runs, strict=True):
        median = statistics.median_low(run[rate] for run in runs)
        ratios = [run[rate] / peer_run[rate] for run, peer_run in zip(runs, peer_runs, strict=True)]
        results.append(
            next(run for run in runs if run[rate] == median)
            | {
                f"peer_{rate}": round(statistics.median(run[rate] for run in peer_runs)),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "peer": peer_runs[-1],
            }
        )
    return results
