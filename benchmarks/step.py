"""Tokens per second of a training step: python -m benchmarks.step [--config=FILE] [--vocab_size=N] [--peer='COMMAND']

Prints one JSON line. The step is a run's own (run/compiled_run.py), compiled over the mesh, with donated state: forward
pass, loss, backward pass and optimizer on one batch of full rows, without dropout. As many positions of a row are
scored as the objective can score: all of CLM's, and of MLM's those at which the learner computes logits. Tokens are
positions, those of both stacks of an encoder-decoder. The time of a step is the median of --steps steps after a
warm-up. MFU counts FLOPs as models/flops.py does; it is null for devices whose peak is not known (cluster/devices.py).

The default config is benchmarks/shapes.py: GPT-2, BERT or T5 v1.1 with any sizes, plain AdamW, no z-loss or clipping:

    python -m benchmarks.step --config=benchmarks/shapes.py:architecture=decoder_only,d_model=256,num_heads=4
        --vocab_size=512 [--config.a.b=value ...]

On one GPU: T5-base as UL2 trains it, and a decoder of 1.1B parameters:

    python -m benchmarks.step --config=configs/ul2.py:base --vocab_size=32128 --config.train.batch_size=32
        --config.train.grad_accum_steps=1 --config.model.remat=none --config.optimizer.name=adamw
    python -m benchmarks.step --config=benchmarks/shapes.py:d_model=2048,num_layers=20,num_heads=16,d_ff=8192,
        batch_size=8,length=2048,precision=bfloat16 --vocab_size=32128

With --peer, this benchmark and the command of another implementation alternate, --pairs runs each. The other JSON line
must have "tokens_per_second".
"""

import json
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from absl import flags
from jax.sharding import Mesh, NamedSharding

from benchmarks import shapes
from benchmarks.measuring import define_peer, peer_lines
from cluster.devices import chip_of
from command.flags import config_fields, config_name, config_overrides, define_config, parse_flags, run_command
from contract.errors import ConfigError
from experiment.experiment import Experiment, make_experiment
from experiment.optimizer import make_optimizer
from huggingface.origin import with_origin_fields
from run import sharding
from run.compiled_run import abstract_state, check_mesh, compiled_train_step, initial_state, seed_array
from run.memory import abstract_batch, resolve_memory, this_machine
from run.step import TrainState

WARM_UP_STEPS = 3

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
define_peer(_FLAGS)
_STEPS = flags.DEFINE_integer("steps", 15, "Timed steps.", lower_bound=1, flag_values=_FLAGS)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 512, "Ids of the vocabulary.", lower_bound=1, flag_values=_FLAGS)


def parsed_experiment(usage: str = __doc__) -> Experiment:
    """Parses the command line and returns its experiment. usage: for --help. Raises ConfigError if it cannot work."""
    argv = sys.argv
    if not any(argument.partition("=")[0] == "--config" for argument in argv):  # overrides can only follow the config
        argv = [argv[0], f"--config={shapes.__file__}", *argv[1:]]
    parse_flags(_FLAGS, usage, argv)
    config = with_origin_fields(config_fields(_FLAGS), config_overrides(_FLAGS))
    experiment = make_experiment(config, vocab_size=_VOCAB_SIZE.value)
    if experiment.mesh.backend == "pmap":
        raise ConfigError("mesh.backend='pmap' cannot be measured here: set mesh.backend='jit'")
    return experiment


def full_batch(experiment: Experiment, batch_sharding: NamedSharding) -> dict[str, jax.Array]:
    """Returns a global batch of random tokens: each row is one segment without padding.

    Every position at which the learner computes logits is scored.
    """
    generator, batch = np.random.default_rng(0), {}
    for name, field in abstract_batch(experiment, batch_sharding).items():
        if name.endswith("_tokens"):
            batch[name] = generator.integers(0, experiment.model.vocab_size, field.shape, field.dtype)
        elif name.endswith("_positions"):
            batch[name] = np.broadcast_to(np.arange(field.shape[1], dtype=field.dtype), field.shape)
        elif name.endswith(("_loss_weights", "_loss_denominators")):
            scored = np.arange(field.shape[1]) < experiment.learner.num_logits(field.shape[1])
            batch[name] = np.broadcast_to(scored.astype(field.dtype), field.shape)
        else:
            fill = np.ones if name.endswith("_segment_ids") else np.zeros
            batch[name] = fill(field.shape, field.dtype)
    return {name: jax.device_put(array, batch_sharding) for name, array in batch.items()}


def new_state(experiment: Experiment) -> tuple[Mesh, optax.GradientTransformation, TrainState]:
    """Returns the mesh, the optimizer and the state before the first step, on the devices."""
    mesh = sharding.make_mesh(experiment.mesh)
    check_mesh(experiment, mesh)
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps, experiment.model)
    state_shardings = jax.tree.map(lambda shape: shape.sharding, abstract_state(experiment, mesh))
    init = jax.jit(initial_state, static_argnums=(0, 1), out_shardings=state_shardings)
    return mesh, optimizer, init(experiment, optimizer, seed_array(experiment.seed))


def measure(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Runs the warm-up and `steps` timed steps and returns the fields of the JSON line that depend on the machine.

    first_step_seconds is the time from the creation of the state to the end of the first step, with all compilation.
    """
    begin = time.perf_counter()
    mesh, optimizer, state = new_state(experiment)
    batch_sharding, seed = sharding.batch_sharding(mesh), seed_array(experiment.seed)
    state_shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    train_step = compiled_train_step(experiment, optimizer, state_shardings, batch_sharding)
    batch = full_batch(experiment, batch_sharding)
    seconds = []
    for _ in range(1 + WARM_UP_STEPS + steps):
        start = time.perf_counter() if seconds else begin
        state, metrics = train_step(state, batch, seed)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1 + WARM_UP_STEPS :])
    device = jax.devices()[0]
    chip = chip_of(device.device_kind)
    positions = sum(array.size for name, array in batch.items() if name.endswith("_segment_ids"))
    memory = device.memory_stats() or {}
    return {
        "params": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "tokens_per_second": round(positions / median),
        "step_milliseconds": round(1000 * median, 3),
        "first_step_seconds": round(seconds[0], 3),
        "mfu": chip and round(experiment.train_step_flops / (median * chip.peak_flops * jax.device_count()), 4),
        "peak_memory_gib": round(memory["peak_bytes_in_use"] / 2**30, 2) if "peak_bytes_in_use" in memory else None,
        "device": device.device_kind,
        "num_devices": jax.device_count(),
    }


def settings(experiment: Experiment) -> dict[str, Any]:
    """Returns the fields of the JSON line that are needed to repeat the measurement."""
    return {
        "config": config_name(_FLAGS),
        "overrides": config_overrides(_FLAGS),
        "architecture": experiment.model.architecture,
        "batch_size": experiment.train.batch_size,
        "grad_accum_steps": experiment.train.grad_accum_steps,
        "remat": experiment.model.remat,
        "steps": _STEPS.value,
        "jax": jax.__version__,
    }


def main() -> None:
    """Measures the step, or alternates with --peer, and prints the line."""
    experiment = parsed_experiment()  # raises before anything is measured
    if _FLAGS["peer"].value:
        (line,) = peer_lines("benchmarks.step", _FLAGS, rate="tokens_per_second")
    else:
        experiment = resolve_memory(experiment, this_machine())
        line = {"benchmark": "step"} | settings(experiment) | measure(experiment, _STEPS.value)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
