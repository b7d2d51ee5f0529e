"""Tokens a second of one training step: `python -m benchmarks.step [SHAPE | --config=...] [--peer='COMMAND']`.

One JSON line. The step is a run's own (train.run), compiled over the mesh, state donated: forward, loss, backward and
optimizer on one batch of full rows, every target scored, no dropout. Tokens are positions, of both stacks of an
encoder-decoder; a step's time is the median of --steps after a warm-up. MFU is by train.flops, where the device's peak
is known (train.hardware), else null.

A shape is GPT-2's, BERT's or T5 v1.1's at other sizes, with plain AdamW and without z-loss or clipping:

    python -m benchmarks.step --architecture=decoder_only --d_model=256 --num_layers=4 --num_heads=4 --d_ff=1024
        --vocab_size=512 --batch_size=8 --length=256 [--target_length=64] [--precision=bfloat16]

With --config the experiment is that file's; --vocab_size stands in for a tokenizer that is not here. Both take
--config.a.b=value. On one GPU: T5-base as UL2 trains it, and a decoder of 1.1B parameters:

    python -m benchmarks.step --config=configs/ul2.py:base --vocab_size=32128 --config.train.batch_size=32
        --config.train.grad_accum_steps=1 --config.model.remat=none --config.optimizer.name=adamw
    python -m benchmarks.step --architecture=decoder_only --d_model=2048 --num_layers=20 --num_heads=16 --d_ff=8192
        --vocab_size=32128 --batch_size=8 --length=2048 --precision=bfloat16

With --peer that command runs in turn with ours, five times each; its JSON line must have "tokens_per_second".
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import NamedSharding
from ml_collections import ConfigDict, config_flags

from benchmarks.processes import PEER_OPTIONS, in_turn
from configs import clm, mlm, span_corruption
from contract.errors import ConfigError
from train import sharding
from train.command import parse_config_flags, run_command
from train.experiment import Experiment, make_experiment
from train.hardware import chip_of
from train.optimizer import make_optimizer
from train.plan.estimate import abstract_batch
from train.run import abstract_state, check_microbatch, compiled_train_step
from train.step import init_state

WARM_UP = 3
SHAPE = {
    "architecture": "decoder_only",
    "d_model": 256,
    "num_layers": 4,
    "num_heads": 4,
    "d_ff": 1024,
    "vocab_size": 512,
    "batch_size": 8,
    "length": 256,
    "target_length": 64,
    "precision": "float32",
}
_CONFIGS = {"decoder_only": clm, "encoder_only": mlm, "encoder_decoder": span_corruption}  # GPT-2, BERT, T5 v1.1


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, where `given` holds those of SHAPE that were, and the overrides of config fields."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[PEER_OPTIONS],
        allow_abbrev=False,
    )
    parser.add_argument("--config", default="", help="an experiment's file, with :preset or without")
    parser.add_argument("--steps", type=int, default=15, help="timed steps (default: 15)")
    for name, value in SHAPE.items():
        choices = list(_CONFIGS) if name == "architecture" else None
        parser.add_argument(f"--{name}", type=type(value), default=argparse.SUPPRESS, choices=choices)
    options, overrides = parser.parse_known_args(arguments)
    options.given = {name: value for name, value in vars(options).items() if name in SHAPE}
    for override in overrides:
        if not override.startswith("--config."):
            parser.error(f"unrecognized argument: {override}")
    if options.steps < 1:
        parser.error(f"--steps={options.steps} must be 1 or more")
    unread = sorted(options.given.keys() - {"vocab_size"})
    if options.config and unread:
        parser.error(f"--{unread[0]} is of a shape, and --config is given: override that config's field instead")
    return options, overrides


def shape_config(shape: dict[str, Any]) -> ConfigDict:
    """The config of a shape, with the optimizer and the loss that PyTorch programs have by default."""
    if shape["d_model"] % shape["num_heads"]:
        raise ConfigError(f"--d_model={shape['d_model']} must be a multiple of --num_heads={shape['num_heads']}")
    config = _CONFIGS[shape["architecture"]].get_config("base")
    config.model.update({name: shape[name] for name in ("d_model", "num_layers", "num_heads", "d_ff")})
    config.model.num_kv_heads = shape["num_heads"]
    config.model.head_dim = shape["d_model"] // shape["num_heads"]
    config.model.dropout_rate = 0.0
    config.model.remat = "none"
    config.data.inputs_length, config.data.targets_length = shape["length"], shape["target_length"]
    config.data.num_sentinels = shape["length"]  # enough at any length
    config.train.batch_size = shape["batch_size"]
    config.precision = shape["precision"]
    config.loss.z_loss = 0.0
    config.optimizer.update({"name": "adamw", "schedule": "constant", "learning_rate": 1e-4, "warmup_steps": 0})
    config.optimizer.update({"b2": 0.999, "weight_decay": 0.01, "clip_norm": 0.0})
    return config


def experiment_of(options: argparse.Namespace, overrides: Sequence[str]) -> Experiment:
    """Raises ConfigError for whatever could not work."""
    flag_values, shape = flags.FlagValues(), SHAPE | options.given
    argv = ["step", *overrides]
    if options.config:
        argv.insert(1, f"--config={options.config}")
        shape["vocab_size"] = options.given.get("vocab_size")
        config = config_flags.DEFINE_config_file("config", flag_values=flag_values, sys_argv=argv)
    else:
        config = config_flags.DEFINE_config_dict("config", shape_config(shape), flag_values=flag_values, sys_argv=argv)
    experiment = make_experiment(parse_config_flags(argv, config, flag_values), vocab_size=shape["vocab_size"])
    if experiment.mesh.backend == "pmap":
        raise ConfigError("config.mesh.backend='pmap' is not measured here: leave it 'jit'")
    return experiment


def full_batch(experiment: Experiment, place: NamedSharding) -> dict[str, jax.Array]:
    """The global batch of an experiment, made up: each row one segment without padding, every target scored."""
    generator, batch = np.random.default_rng(0), {}
    for name, field in abstract_batch(experiment, place).items():
        if name.endswith("_tokens"):
            batch[name] = generator.integers(0, experiment.model.vocab_size, field.shape, field.dtype)
        elif name.endswith("_positions"):
            batch[name] = np.broadcast_to(np.arange(field.shape[1], dtype=field.dtype), field.shape)
        else:
            fill = np.ones if name.endswith(("_segment_ids", "_loss_weights")) else np.zeros
            batch[name] = fill(field.shape, field.dtype)
    return {name: jax.device_put(array, place) for name, array in batch.items()}


def measure(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Runs the step; what was found. first_step_seconds: making the state and the first step, all compilation in it."""
    begin = time.perf_counter()
    mesh = sharding.make_mesh(experiment.mesh)
    check_microbatch(experiment.train, mesh)
    place, optimizer = sharding.batch_sharding(mesh), make_optimizer(experiment.optimizer, experiment.train.steps)
    places = jax.tree.map(lambda shape: shape.sharding, abstract_state(experiment, mesh))
    init = jax.jit(init_state, static_argnums=(0, 1, 2, 3), out_shardings=places)
    state = init(experiment.learner, optimizer, experiment.seed, experiment.model.dtype)
    train_step, batch = compiled_train_step(experiment, optimizer, places, place), full_batch(experiment, place)
    seconds = []
    for _ in range(1 + WARM_UP + steps):
        start = time.perf_counter() if seconds else begin
        state, metrics = train_step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1 + WARM_UP :])
    device, positions = jax.devices()[0], sum(a.size for name, a in batch.items() if name.endswith("_segment_ids"))
    memory = device.memory_stats() or {}
    return {
        "params": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "tokens_per_second": round(positions / median),
        "step_milliseconds": round(1000 * median, 3),
        "first_step_seconds": round(seconds[0], 3),
        "mfu": _mfu(experiment, median, device.device_kind),
        "peak_memory_gib": round(memory["peak_bytes_in_use"] / 2**30, 2) if "peak_bytes_in_use" in memory else None,
        "device": device.device_kind,
        "num_devices": jax.device_count(),
    }


def _mfu(experiment: Experiment, seconds: float, device_kind: str) -> float | None:
    chip = chip_of(device_kind)
    if chip is None:
        return None
    return round(experiment.train_step_flops / (seconds * chip.peak_flops * jax.device_count()), 4)


def settings(experiment: Experiment, options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    """What a reader must know to measure the same again."""
    model, data = experiment.model, experiment.data
    return {
        "config": options.config,
        "overrides": list(overrides),
        "architecture": model.architecture,
        "batch_size": experiment.train.batch_size,
        "grad_accum_steps": experiment.train.grad_accum_steps,
        "inputs_length": data.inputs_length,
        "targets_length": data.targets_length if model.architecture == "encoder_decoder" else None,
        "optimizer": experiment.optimizer.name,
        "chunk_size": experiment.config["loss"]["chunk_size"],
        "steps": options.steps,
        "jax": jax.__version__,
        "model": dataclasses.asdict(model),
    }


def main() -> None:
    """Measures, or runs measurements in turn with the peer's, and prints the line."""
    options, overrides = parse(sys.argv[1:])
    experiment = experiment_of(options, overrides)
    if options.peer:
        _, arguments = PEER_OPTIONS.parse_known_args(sys.argv[1:])
        turns = {"peer": options.peer, "pairs": options.pairs, "rate": "tokens_per_second"}
        (line,) = in_turn("benchmarks.step", arguments, **turns)
    else:
        line = {"benchmark": "step"} | settings(experiment, options, overrides) | measure(experiment, options.steps)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
