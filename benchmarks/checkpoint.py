"""Time to save and to restore a training state: python -m benchmarks.checkpoint [--config=FILE] [--vocab_size=N]

Prints one JSON line. The state is that of the first step of the config (as in benchmarks.step), on the devices of this
machine, and is written to a temporary folder with its checksums, as a run does. A run waits blocked_seconds for a save,
while the arrays are copied from the devices; save_seconds is until all of it is on disk. Restoring includes the
verification of checksums. equal is whether every restored array equals the saved one.
"""

import json
import tempfile
import time
from typing import Any

import jax

from benchmarks.step import new_state, parsed_experiment
from command.flags import run_command
from experiment.experiment import Experiment
from workdir.checkpoint import Checkpoints, abstract


def measure(experiment: Experiment, folder: str) -> dict[str, Any]:
    """Saves the state to `folder`, restores it, and returns the fields of the JSON line."""
    _, _, state = jax.block_until_ready(new_state(experiment))
    checkpoints = Checkpoints(folder, keep=1)
    start = time.perf_counter()
    checkpoints.save(1, state)
    blocked = time.perf_counter()
    checkpoints.wait()
    saved = time.perf_counter()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    restored = jax.block_until_ready(checkpoints.restore(abstract(state, shardings)))
    seconds = {"blocked": blocked - start, "save": saved - start, "restore": time.perf_counter() - saved}
    return {
        "gib": round(sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 2**30, 3),
        **{f"{name}_seconds": round(value, 3) for name, value in seconds.items()},
        "equal": all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), state, restored))),
    }


def main() -> None:
    """Measures the save and the restore, and prints the line."""
    experiment = parsed_experiment(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        line = {"benchmark": "checkpoint"} | measure(experiment, folder)
    print(json.dumps(line | {"device": jax.devices()[0].device_kind, "num_devices": jax.device_count()}), flush=True)


if __name__ == "__main__":
    run_command(main)
