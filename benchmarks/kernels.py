"""A run's attention kernel against XLA's operations, on this device: python -m benchmarks.kernels [--layers=2] ...

Prints one JSON line for each of GPT-2, BERT and T5 v1.1 (benchmarks/shapes.py): the gradient of the loss by all
parameters, of one batch of full rows in --precision, with the kernel that a run takes on this device
(models/kernels.py) and with XLA's. Errors are relative distances of a gradient from XLA's in float32, the norm of the
difference over the norm. error_ratio is the kernel's error over XLA's own in --precision: about 1 where the kernel
computes the same, exactly 1 where a run takes XLA's.
"""

import json
from typing import Any

import jax
import optax
from absl import flags

from benchmarks import shapes
from benchmarks.measuring import define_sizes
from benchmarks.step import full_batch
from command.flags import parse_flags, run_command
from experiment.experiment import Experiment, make_experiment
from learners.learner import Batch
from models.parameters import Params
from models.placement import platform_of
from run import sharding
from run.compiled_run import attention_of, on_mesh

_FLAGS = flags.FlagValues()
_SIZES = {"rows": 8, "length": 512, "d_model": 768, "layers": 2, "heads": 12, "d_ff": 2048, "vocab_size": 512}
_PRECISION = define_sizes(_SIZES, _FLAGS)


def make_shape(architecture: str, attention: str, precision: str) -> Experiment:
    """Returns the experiment of an architecture with the sizes of the command line."""
    sizes = {name: _FLAGS[name].value for name in _SIZES}
    renamed = {"num_layers": sizes["layers"], "num_heads": sizes["heads"], "batch_size": sizes["rows"]}
    values = renamed | {name: sizes[name] for name in ("d_model", "d_ff", "length")}
    values |= {"architecture": architecture, "target_length": sizes["length"], "precision": precision}
    config = shapes.get_config(",".join(f"{name}={value}" for name, value in values.items()))
    config.model.attention = attention
    return make_experiment(config.to_dict(), vocab_size=sizes["vocab_size"])


def gradient(experiment: Experiment, params: Params) -> Params:
    """Returns the gradient, float32, of the loss of one batch by `params`."""
    learner = experiment.learner
    batch_sharding = sharding.batch_sharding(sharding.make_mesh(experiment.mesh))

    def loss(params: Params, batch: Batch) -> jax.Array:
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=True)[0]

    return jax.jit(on_mesh(jax.grad(loss), batch_sharding))(params, full_batch(experiment, batch_sharding))


def measure(architecture: str) -> dict[str, Any]:
    """Returns the fields of the line of one architecture."""
    experiment = make_shape(architecture, "auto", _PRECISION.value)
    exact = make_shape(architecture, "xla", "float32")
    params = jax.jit(exact.learner.init_params)(jax.random.key(0))
    with jax.default_matmul_precision("highest"):
        reference = gradient(exact, params)

    def error(found: Params) -> float:
        return float(optax.tree.norm(optax.tree.sub(found, reference)) / optax.tree.norm(reference))

    kernel, reason = attention_of(experiment, platform_of(jax.devices()[0]))
    kernel_error = error(gradient(experiment, params))
    xla_error = kernel_error
    if kernel != "xla":
        xla_error = error(gradient(make_shape(architecture, "xla", _PRECISION.value), params))
    return {
        "architecture": architecture,
        "attention": kernel,
        "reason": reason,
        "error": kernel_error,
        "xla_error": xla_error,
        "error_ratio": round(kernel_error / xla_error, 3) if xla_error else None,
    }


def main() -> None:
    """Compares each architecture and prints its line."""
    parse_flags(_FLAGS, __doc__)
    sizes = {name: _FLAGS[name].value for name in _SIZES} | {"precision": _PRECISION.value}
    for architecture in shapes.CONFIGS:
        line = {"benchmark": "kernels"} | measure(architecture) | sizes
        print(json.dumps(line | {"device": jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    run_command(main)
