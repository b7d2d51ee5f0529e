"""Time of K seeds side by side, against one after another: python -m benchmarks.seeds [--seeds=3] [as benchmarks.step]

Prints one JSON line. The steps are those of train.main and of studies/side_by_side.py, with the shape or the config, the
batch and the further flags of benchmarks/step.py. A round times K ordinary steps, one after another, and then one step
of K seeds. `ratio` is the median over --steps rounds, after a warm-up, of the second time divided by the first: below 1
seeds are faster side by side. The two alternate, so that other work of the machine slows down both.

    python -m benchmarks.seeds --seeds=4 --architecture=decoder_only --d_model=256 --num_layers=4 --num_heads=4
        --d_ff=1024 --vocab_size=512 --batch_size=8 --length=256
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks.step import WARM_UP_STEPS, full_batch, make_benchmark_experiment, parse, settings
from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from experiment.experiment import Experiment
from experiment.optimizer import make_optimizer
from plan.memory_choice import resolve_memory, this_machine
from run import sharding
from run.compiled_run import (
    abstract_state,
    check_mesh,
    compiled_train_step,
    initial_state,
    seed_array,
)
from studies.side_by_side import compiled_side_by_side_step, stacked_sharding

_FLAGS = flags.FlagValues()
_SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds that train side by side.", lower_bound=1, flag_values=_FLAGS)


def measure(experiment: Experiment, num_seeds: int, rounds: int) -> dict[str, Any]:
    """Runs the warm-up and `rounds` timed rounds, and returns the fields of the JSON line that depend on the machine.

    Peak memory is that of both programs and their states together.
    """
    mesh = sharding.make_mesh(experiment.mesh)
    check_mesh(experiment, mesh)
    batch_sharding = sharding.batch_sharding(mesh)
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps)
    shardings = jax.tree.map(lambda shape: shape.sharding, abstract_state(experiment, mesh))
    stacked_shardings = jax.tree.map(stacked_sharding, shardings)
    init = jax.jit(initial_state, static_argnums=(0, 1), out_shardings=shardings)
    seeds = np.stack([seed_array(experiment.seed + k) for k in range(num_seeds)])
    stack = jax.jit(lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees), out_shardings=stacked_shardings)
    stacked_state = stack(*(init(experiment, optimizer, seed) for seed in seeds))
    state, batch = init(experiment, optimizer, seeds[0]), full_batch(experiment, batch_sharding)
    stacked_batch = {
        name: jax.device_put(np.stack([np.asarray(array)] * num_seeds), stacked_sharding(batch_sharding))
        for name, array in batch.items()
    }
    step = compiled_train_step(experiment, optimizer, shardings, batch_sharding)
    stacked_step = compiled_side_by_side_step(experiment, optimizer, shardings, batch_sharding)
    alone, together = [], []
    for _ in range(1 + WARM_UP_STEPS + rounds):
        begin = time.perf_counter()
        for seed in seeds:
            state = _finished(step, state, batch, seed)
        middle = time.perf_counter()
        stacked_state = _finished(stacked_step, stacked_state, stacked_batch, seeds)
        alone.append(middle - begin)
        together.append(time.perf_counter() - middle)
    alone, together = alone[1 + WARM_UP_STEPS :], together[1 + WARM_UP_STEPS :]
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return {
        "params": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "ratio": round(statistics.median(b / a for a, b in zip(alone, together, strict=True)), 3),
        "one_after_another_milliseconds": round(1000 * statistics.median(alone), 3),
        "side_by_side_milliseconds": round(1000 * statistics.median(together), 3),
        "peak_memory_gib": round(memory["peak_bytes_in_use"] / 2**30, 2) if "peak_bytes_in_use" in memory else None,
        "device": device.device_kind,
        "num_devices": jax.device_count(),
    }


def _finished(step: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the state after a step, once the device has made it."""
    state, _ = jax.block_until_ready(step(*arguments))
    return state


def main() -> None:
    """Measures and prints the line."""
    own = [argument for argument in sys.argv if argument.startswith("--seeds=")]
    parse_flags(_FLAGS, __doc__, [sys.argv[0], *own])
    arguments = [argument for argument in sys.argv if argument not in own]
    if any(argument.startswith("--peer") for argument in arguments):
        raise ConfigError("--peer is not a flag of benchmarks.seeds, which compares two programs of this project")
    overrides = parse(arguments, __doc__)
    experiment = make_benchmark_experiment(overrides)
    experiment = resolve_memory(experiment, this_machine(), side_by_side=_SEEDS.value)
    fields = settings(experiment, overrides)
    line = {"benchmark": "seeds", "seeds": _SEEDS.value} | fields | measure(experiment, _SEEDS.value, fields["steps"])
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
