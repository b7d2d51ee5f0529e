"""Seconds to the first step of deeper and deeper models: `python -m benchmarks.compile [LAYERS ...]`.

One JSON line. Each depth (default: 4, 12 and 48 layers) of one small decoder is made, compiled and run for one step in
a new process, JAX's cache of compiled programs off, three times in turn; seconds are medians, from making the state to
the end of that step, without Python's imports. ratio: the last depth's to the first's, the median over the turns.
"""

import argparse
import json
import statistics
import sys

from benchmarks.processes import json_lines
from train.command import run_command

LAYERS = (4, 12, 48)
RUNS = 3
# So small that running the step, which grows with depth, is nothing beside compiling it.
SHAPE = {"architecture": "decoder_only", "d_model": 64, "num_heads": 4, "d_ff": 128, "vocab_size": 512}
SHAPE |= {"batch_size": 2, "length": 32}


def first_step_seconds(num_layers: int) -> float:
    arguments = [f"--{name}={value}" for name, value in SHAPE.items()]
    command = [sys.executable, "-m", "benchmarks.step", *arguments, f"--num_layers={num_layers}", "--steps=1"]
    (line,) = json_lines(command, {"JAX_ENABLE_COMPILATION_CACHE": "false"})
    return line["first_step_seconds"]


def main() -> None:
    """Measures and prints the line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", type=int, help="depths (default: 4 12 48)")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each depth (default: 3)")
    options = parser.parse_args()
    layers = options.layers or list(LAYERS)
    turns = [[first_step_seconds(depth) for depth in layers] for _ in range(options.runs)]
    line = {
        "benchmark": "compile",
        "num_layers": layers,
        "first_step_seconds": [round(statistics.median(column), 3) for column in zip(*turns, strict=True)],
        "ratio": round(statistics.median(turn[-1] / turn[0] for turn in turns), 3),
        "runs": options.runs,
        **SHAPE,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
