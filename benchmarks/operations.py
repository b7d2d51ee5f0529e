"""Milliseconds of single operations of a step next to their plain forms: python -m benchmarks.operations [NAME ...]

Prints one JSON line for each operation (default: all), its forward and backward pass with all gradients:

    queries_keys_values    one product for the three projections; plain: three products
    gated_maps             a gated feed-forward block with a product for each of its two maps; plain: one product for
                           both
    cross_entropy          logits, loss and accuracy, with the gradient in the compute dtype; plain: JAX's own gradient
                           of jax.nn.log_softmax, and an argmax

Both forms run alternately. Milliseconds are medians, and ratio is the median over the pairs of runs of our time divided
by the plain form's. On one GPU, at the sizes of T5 base:

    python -m benchmarks.operations

With --topology, nothing runs: the TPU compiler compiles both forms for one chip, which needs no TPU (extra "tpu"). The
lines then have the MiB of temporary arrays and those that the program reads and writes, as the compiler counts them.

    python -m benchmarks.operations --topology=v5e:1x1
"""

import functools
import json
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx
from jax.sharding import SingleDeviceSharding

from benchmarks.measuring import alternating_seconds, chosen_names
from command.flags import parse_flags, run_command
from configs.base import get_config
from contract.errors import ConfigError
from models.attention import Attention
from models.config import ModelConfig
from models.layers import MLP, activation, linear_maps, logits_product, recomputed
from models.placement import compiled_for, target_platform
from objectives.losses.cross_entropy import LossOptions, ScoredTokens, cross_entropy
from plan.estimate import parse_topology

_FLAGS = flags.FlagValues()
_SIZES = {"rows": 32, "length": 512, "d_model": 768, "heads": 12, "d_ff": 2048, "vocab_size": 32128, "runs": 20}
for _name, _default in _SIZES.items():
    flags.DEFINE_integer(_name, _default, "Size.", lower_bound=1, flag_values=_FLAGS)
_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["bfloat16", "float16", "float32"], "Dtype of the computation.", _FLAGS
)
_TOPOLOGY = flags.DEFINE_string("topology", "", "Compile for one TPU chip, as v5e:1x1, instead of running.", _FLAGS)

Forms = tuple[dict[str, Callable[..., Any]], tuple[Any, ...]]  # "ours" and "plain", and the arguments of both


def _model_config() -> ModelConfig:
    length, d_model, heads, d_ff = (_FLAGS[name].value for name in ("length", "d_model", "heads", "d_ff"))
    if d_model % heads:
        raise ConfigError(f"--d_model={d_model} must be a multiple of --heads={heads}")
    model = get_config().model.to_dict() | {"d_model": d_model, "d_ff": d_ff, "mlp": "gated_gelu"}
    model |= {"num_heads": heads, "num_kv_heads": heads, "head_dim": d_model // heads}
    return ModelConfig(**model | {"vocab_size": 1, "max_length": length}, dtype=_PRECISION.value)


def _states() -> jax.Array:
    shape = tuple(_FLAGS[name].value for name in ("rows", "length", "d_model"))
    return jax.random.normal(jax.random.key(0), shape).astype(_PRECISION.value)


def queries_keys_values() -> Forms:
    """Returns functions to the gradients of the projections' parameters and of their states [B, L, D]."""
    structure, params = nnx.split(Attention(_model_config(), rngs=nnx.Rngs(params=0)))

    def loss(params: Any, states: jax.Array, *, joined: bool) -> jax.Array:
        with compiled_for(target_platform(), lambda function, *_: function, splits_outputs=not joined):
            query, keys_values = nnx.merge(structure, params).queries_keys_values(states, None)
        return sum(jnp.square(x.astype(jnp.float32)).sum() for x in (query, *keys_values))

    forms = {name: functools.partial(loss, joined=name == "ours") for name in ("ours", "plain")}
    return {name: jax.grad(form, (0, 1)) for name, form in forms.items()}, (params, _states())


def gated_maps() -> Forms:
    """Returns functions to the gradients of a feed-forward block's parameters and of its states [B, L, D]."""
    config = _model_config()
    structure, params = nnx.split(MLP(config, rngs=nnx.Rngs(params=0)))

    def joined(block: MLP, states_BxLxD: jax.Array) -> jax.Array:
        inner = linear_maps(states_BxLxD.reshape(-1, config.d_model), block.wi_0, block.wi_1)
        project = recomputed(lambda gate, linear: block.wo(activation(config)(gate) * linear))  # as MLP's own
        return project(*inner).reshape(states_BxLxD.shape)

    def loss(params: Any, states: jax.Array, *, joins: bool) -> jax.Array:
        with compiled_for(target_platform(), lambda function, *_: function):
            block = nnx.merge(structure, params)
            output = joined(block, states) if joins else block(states)
        return jnp.square(output.astype(jnp.float32)).sum()

    forms = {name: functools.partial(loss, joins=name == "plain") for name in ("ours", "plain")}
    return {name: jax.grad(form, (0, 1)) for name, form in forms.items()}, (params, _states())


def cross_entropy_loss() -> Forms:
    """Returns functions to the summed loss, the correct tokens, and the gradients of states and output table."""
    rows, length, d_model, vocab_size = (_FLAGS[name].value for name in ("rows", "length", "d_model", "vocab_size"))
    state_key, table_key, target_key = jax.random.split(jax.random.key(0), 3)
    states = jax.random.normal(state_key, (rows * length, d_model)).astype(_PRECISION.value)
    table = jax.random.normal(table_key, (d_model, vocab_size)) * d_model**-0.5
    targets = jax.random.randint(target_key, (rows, length), 0, vocab_size)

    def ours(states: jax.Array, table: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = logits_product(states, table).reshape(rows, length, vocab_size)
        scored = ScoredTokens(targets, jnp.ones(targets.shape), jnp.zeros(targets.shape, jnp.int32))
        sums = cross_entropy(logits, scored, LossOptions(num_groups=1, z_loss=0.0, label_smoothing=0.0))
        return sums.minimized_sum, sums.correct_sum

    def plain(states: jax.Array, table: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = jnp.matmul(states, table.astype(states.dtype), preferred_element_type=jnp.float32)
        logits = product.reshape(rows, length, vocab_size)
        log_probabilities = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
        return -log_probabilities.sum(), (logits.argmax(-1) == targets).sum()

    forms = {"ours": ours, "plain": plain}
    gradients = {name: jax.value_and_grad(form, (0, 1), has_aux=True) for name, form in forms.items()}
    return gradients, (states, table, targets)


OPERATIONS = {
    "queries_keys_values": queries_keys_values,
    "gated_maps": gated_maps,
    "cross_entropy": cross_entropy_loss,
}


def measure(make_forms: Callable[[], Forms]) -> dict[str, float]:
    """Returns the milliseconds of both forms and their ratio."""
    functions, arguments = make_forms()
    compiled = {name: jax.jit(function).lower(*arguments).compile() for name, function in functions.items()}
    seconds = alternating_seconds(compiled, arguments, _FLAGS["runs"].value)
    pairs = zip(seconds["ours"], seconds["plain"], strict=True)
    line = {f"{name}_milliseconds": round(1000 * statistics.median(seconds[name]), 3) for name in ("ours", "plain")}
    return line | {"ratio": round(statistics.median(ours / plain for ours, plain in pairs), 3)}


def compiled_size(make_forms: Callable[[], Forms], topology: str) -> dict[str, float]:
    """Returns the MiB of both forms' temporary arrays, and of what they read and write, on a TPU chip of `topology`."""
    devices = parse_topology(topology).devices
    if not devices:
        raise ConfigError(f"--topology={topology} must be a TPU's, such as v5e:1x1: there is no compiler for others")
    sharding = SingleDeviceSharding(devices[0])
    functions, arguments = make_forms()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    line = {}
    for name, function in functions.items():
        with compiled_for("tpu", lambda function, *_: function):
            compiled = jax.jit(function).lower(*shapes).compile()
        line[f"{name}_temporary_mib"] = round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1)
        line[f"{name}_accessed_mib"] = round(compiled.cost_analysis()["bytes accessed"] / 2**20, 1)
    return line


def main() -> None:
    """Measures or compiles each operation and prints its line."""
    names = chosen_names(parse_flags(_FLAGS, __doc__, positional=str), OPERATIONS, "operation")
    sizes = {name: _FLAGS[name].value for name in _SIZES} | {"precision": _PRECISION.value}
    topology = _TOPOLOGY.value
    if topology:
        jax.config.update("jax_platforms", "cpu")  # nothing runs on this machine's accelerator
    for name in names:
        result = compiled_size(OPERATIONS[name], topology) if topology else measure(OPERATIONS[name])
        line = {"benchmark": "operations", "operation": name} | result | sizes
        print(json.dumps(line | {"device": topology or jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    run_command(main)
