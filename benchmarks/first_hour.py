"""The first hour on an accelerator: python -m benchmarks.first_hour --out=FILE.json [--minutes=60]

Runs other benchmarks in this order, each in a process of its own: attention kernels against XLA's, single operations,
the steps of T5 base, BERT base and a decoder of 1.08B parameters, the pipeline, a checkpoint of T5 base, and a run that
is killed and continued. On a CPU the same commands have tiny sizes, and take a few minutes.

FILE is one JSON object: the device, and each figure with its bound and the whole line of its benchmark. It is
written after each part. A part that fails, lacks memory or has no time left is a line in it, and the others go on.
Standard output is a table for BENCHMARKS.md, also where FILE cannot be written.

Peers (BENCHMARKS.md) are measured where their commands are given, on one device: --peer_step without sizes, as in
"$PEER_STEP --device=cuda --dtype=bfloat16 --compile", and --peer_pipeline.
"""

import contextlib
import datetime
import json
import operator
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.measuring import json_objects, peer_command
from command.flags import parse_flags, run_command
from command.program import print_note
from contract.errors import ConfigError
from files.atomic import check_output, writing

_FLAGS = flags.FlagValues()
_OUT = flags.DEFINE_string("out", "first_hour.json", "JSON file to write.", _FLAGS)
_MINUTES = flags.DEFINE_float("minutes", 60.0, "Time limit of all parts.", 0.0, 10_000.0, _FLAGS)
_PEER_STEP = flags.DEFINE_string("peer_step", "", "Command of a peer of benchmarks.step, without sizes.", _FLAGS)
_PEER_PIPELINE = flags.DEFINE_string("peer_pipeline", "", "Command of a peer of benchmarks.pipeline.", _FLAGS)

_DEVICE = """import jax, json
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "device": device.device_kind, "num_devices": jax.device_count(),
    "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"), "jax": jax.__version__}))"""
_SIGNS = {"<=": operator.le, ">=": operator.ge}
_IDS = 32128


class Part(NamedTuple):
    """A benchmark: the arguments of `python -m`, and the bounds of figures of its lines."""

    name: str
    command: Sequence[str]
    bounds: dict[str, str]


# Name -> the architecture, layers, heads, width, feed-forward width, rows of a device, length of rows, and least MFU.
STEPS = {
    "T5 base": ("encoder_decoder", 12, 12, 768, 2048, 32, 512, 0.5),
    "BERT base": ("encoder_only", 12, 12, 768, 3072, 64, 512, 0.5),
    "decoder of 1.08B": ("decoder_only", 20, 16, 2048, 8192, 8, 2048, 0.6),
}
_TINY = (2, 2, 32, 32, 2, 32)


def step_part(name: str, device: dict[str, Any], peer: str) -> Part:
    """Returns the part of a model's step: of configs/ul2.py if a T5, otherwise of benchmarks/shapes.py.

    Rematerialization and microbatches are those that a run chooses for the memory of the device.
    """
    arch, *sizes, mfu = STEPS[name]
    config, bounds = "configs/ul2.py:base", {"mfu": f">= {mfu}"}
    layers, heads, width, d_ff, batch, length = _TINY if device["platform"] == "cpu" else sizes
    if arch != "encoder_decoder" or device["platform"] == "cpu":
        config = f"benchmarks/shapes.py:architecture={arch},num_layers={layers},num_heads={heads},d_model={width},"
        config += f"d_ff={d_ff},length={length},target_length={length},precision=bfloat16"
    command = ["benchmarks.step", f"--config={config}", f"--vocab_size={_IDS}", "--config.optimizer.name=adamw"]
    command += [f"--config.train.batch_size={batch * device['num_devices']}", "--config.train.grad_accum_steps=0"]
    command += ["--config.model.remat=auto"]
    if peer:
        peer += f" --arch={arch} --layers={layers} --heads={heads} --d_model={width} --d_ff={d_ff} --batch={batch}"
        command += [f"--peer={peer} --length={length} --target_length={length} --vocab={_IDS}", "--pairs=3"]
        bounds["ratio"] = ">= 1.5"
    return Part(f"step: {name}", command, bounds)


def parts(device: dict[str, Any]) -> list[Part]:
    """Returns the parts of an hour on the device, or of a few minutes on a CPU."""
    tiny = device["platform"] == "cpu"
    small = ("--rows=2", "--length=32", "--d_model=32", "--heads=2", "--d_ff=32", "--vocab_size=512") if tiny else ()
    operations = ("queries_keys_values", "gated_maps", "cross_entropy")
    peer = _PEER_STEP.value if device["num_devices"] == 1 else ""
    pipeline = ("span_corruption", "ul2", *(("--seconds=0.1", "--threads=1") if tiny else ()))
    peer_pipeline = (f"--peer={_PEER_PIPELINE.value}", "--pairs=3") if _PEER_PIPELINE.value else ()
    state = "benchmarks/shapes.py:d_model=32,num_layers=2,num_heads=2" if tiny else "configs/ul2.py:base"
    state_bounds = {"equal": ">= 1", "save_seconds": "<= 60", "restore_seconds": "<= 60"}
    kills = (f"--kills={1 if tiny else 3}", f"--platforms={'cpu' if tiny else ''}")
    pipeline_bounds = {"raw_tokens_per_second": ">= 1e7"} | ({"ratio": ">= 10"} if peer_pipeline else {})
    return [
        Part("kernels", ("benchmarks.kernels", *small), {"error_ratio": "<= 1.5"}),
        Part("operations", ("benchmarks.operations", *operations, *small), {"ratio": "<= 1"}),
        *(step_part(name, device, peer) for name in STEPS),
        Part("pipeline", ("benchmarks.pipeline", *pipeline, *peer_pipeline), pipeline_bounds),
        Part("checkpoint", ("benchmarks.checkpoint", f"--config={state}", f"--vocab_size={_IDS}"), state_bounds),
        Part("resume", ("benchmarks.torture", *kills), {"equal": ">= 1"}),
    ]


def run(arguments: Sequence[str], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """Runs Python with `arguments` and returns the JSON lines that it printed, and why it failed in a line, or ""."""
    if seconds <= 0:
        return [], "no time left: raise --minutes"
    command, pipe = [sys.executable, *arguments], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, errors="replace", start_new_session=True)
    try:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:  # also after Ctrl-C, which does not reach a session of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the latter where none is left
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
    except subprocess.TimeoutExpired:
        output, errors = process.communicate()[0], f"killed after {seconds:.0f} seconds: raise --minutes"
    lines, broken = json_objects(output)
    if process.returncode == 0:
        failure = f"a line is not JSON: {broken[:400]}" if broken else "it printed no JSON line"
        return lines, "" if lines and not broken else f"status 0: {failure}"
    said = [line.strip() for line in errors.splitlines() if line.strip()] or ["it printed no error"]
    memory = [line for line in said if "RESOURCE_EXHAUSTED" in line or "out of memory" in line.lower()]
    return lines, f"status {process.returncode}: {(memory or said)[-1][:400]}"


def figures(bounds: dict[str, str], lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns each figure of a part's lines that has a bound; value and met are None where it could not be measured.

    What is not a number does not meet its bound.
    """
    found = []
    for line in lines:
        name = line.get("operation") or line.get("objective") or line.get("architecture", "")
        for figure, bound in bounds.items():
            (sign, limit), value = bound.split(), line.get(figure)
            met = isinstance(value, int | float) and _SIGNS[sign](value, float(limit)) if value is not None else None
            found.append({"of": name, "figure": figure, "value": value, "bound": bound, "met": met})
    return found


def table(report: dict[str, Any]) -> str:
    """Returns the report as a Markdown table."""
    rows = [f"{report['num_devices']} x {report['device']}, jax {report['jax']}, {report['date']}", ""]
    rows += ["| part | of | figure | measured | bound | met |", "|---|---|---|---|---|---|"]
    for part in report["parts"]:
        for row in part["figures"]:
            value, met = row["value"], {None: "", True: "yes", False: "no"}[row["met"]]
            measured = "" if value is None else json.dumps(value).replace("|", "/")
            measured = f"{value:,}" if isinstance(value, int | float) else measured
            rows.append(f"| {part['part']} | {row['of']} | {row['figure']} | {measured} | {row['bound']} | {met} |")
        if part["error"]:
            rows.append(f"| {part['part']} | | | {part['error'].replace('|', '/')} | | no |")
    return "\n".join(rows)


def main() -> None:
    """Runs the parts, writes the file after each and prints the table."""
    parse_flags(_FLAGS, __doc__)
    check_output(_OUT.value)
    for peer in (_PEER_STEP, _PEER_PIPELINE):
        if peer.value:
            peer_command(peer.value, f"--{peer.name}")
    begin = time.monotonic()
    devices, error = run(("-c", _DEVICE), 600)
    if error:
        raise ConfigError(f"JAX does not start: {error}")
    device = devices[-1]
    if _PEER_STEP.value and device["num_devices"] > 1:
        print_note(f"--peer_step is not used: a peer has one device, and JAX has {device['num_devices']} here")
    today = datetime.date.today().isoformat()
    report: dict[str, Any] = {"benchmark": "first_hour", **device, "date": today, "parts": []}
    try:
        _measure(report, parts(device), begin)
    finally:
        print(table(report), flush=True)


def _measure(report: dict[str, Any], chosen: Sequence[Part], begin: float) -> None:
    """Runs the parts, and writes the report to --out after each. begin: of the hour, by time.monotonic."""
    for part in chosen:
        print(f"{part.name}: python -m {shlex.join(part.command)}", file=sys.stderr, flush=True)
        start = time.monotonic()
        lines, error = run(("-m", *part.command), begin + 60 * _MINUTES.value - start)
        seconds = round(time.monotonic() - start, 1)
        command = shlex.join(("python", "-m", *part.command))
        found = {"command": command, "figures": figures(part.bounds, lines), "error": error, "lines": lines}
        report["parts"].append({"part": part.name, "seconds": seconds} | found)
        with writing(_OUT.value) as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    run_command(main)
