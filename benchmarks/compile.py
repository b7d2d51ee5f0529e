"""Seconds to the first step of models of several depths: python -m benchmarks.compile [LAYERS ...] [--runs=N]

Prints one JSON line. A step of a small decoder of each depth (default: 4, 12 and 48 layers) runs in a new process,
without JAX's cache of compiled programs. All depths are measured --runs times, in turn. Seconds are medians, from the
creation of the state to the end of the step, without Python's imports. ratio is the median over the runs of the last
depth's seconds divided by the first depth's.
"""

import json
import statistics
import sys

from absl import flags

from benchmarks.measuring import json_lines
from command.flags import parse_flags, run_command

LAYERS = (4, 12, 48)
# So small that the time of the step, which grows with depth, is negligible relative to its compilation.
SHAPE = {"architecture": "decoder_only", "d_model": 64, "num_heads": 4, "d_ff": 128, "vocab_size": 512}
SHAPE |= {"batch_size": 2, "length": 32}

_FLAGS = flags.FlagValues()
_RUNS = flags.DEFINE_integer("runs", 3, "Runs of each depth.", lower_bound=1, flag_values=_FLAGS)


def first_step_seconds(num_layers: int) -> float:
    """Returns the seconds to the first step of a model of this depth, measured in a new process."""
    arguments = [f"--{name}={value}" for name, value in SHAPE.items()]
    command = [sys.executable, "-m", "benchmarks.step", *arguments, f"--num_layers={num_layers}", "--steps=1"]
    (line,) = json_lines(command, {"JAX_ENABLE_COMPILATION_CACHE": "false"})
    return line["first_step_seconds"]


def main() -> None:
    """Measures each depth and prints the line."""
    layers = parse_flags(_FLAGS, __doc__, positional=int) or list(LAYERS)
    repetitions = [[first_step_seconds(depth) for depth in layers] for _ in range(_RUNS.value)]
    line = {
        "benchmark": "compile",
        "num_layers": layers,
        "first_step_seconds": [round(statistics.median(column), 3) for column in zip(*repetitions, strict=True)],
        "ratio": round(statistics.median(seconds[-1] / seconds[0] for seconds in repetitions), 3),
        "runs": _RUNS.value,
        **SHAPE,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
