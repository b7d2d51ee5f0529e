"""Single operations of a step in two forms: python -m benchmarks.operations [NAME ...] [--vocab_size=32128] ...

Prints one JSON line for each operation (default: all), its forward and backward pass with all gradients:

    queries_keys_values    ours: one product for the three projections; plain: three products
    gated_maps             ours: a gated feed-forward block with a product for each of its two maps; plain: one product
                           for both
    cross_entropy          ours: logits, loss and accuracy, with the gradient in the compute dtype; plain: JAX's own
                           gradient of jax.nn.log_softmax, and an argmax
    chunked_loss           chunked: the loss in chunks of 32 tokens (objectives/losses/chunked_cross_entropy.py);
                           plain: all logits at once
    dropout                ours: masks of hashed words (models/layers.py); plain: jax.random.bernoulli. The forward and
                           the backward pass cannot be merged

Both forms run alternately. Milliseconds are medians, and ratio is the median over the pairs of runs of the first form's
time divided by the second's. MiB are those of temporary arrays, of results, and those that the program reads and
writes, as the compiler counts them. On one GPU, at the sizes of T5 base:

    python -m benchmarks.operations

With --topology, nothing runs: the TPU compiler compiles both forms for one chip, which needs no TPU (extra "tpu"), and
estimates the cycles of those without loops.

    python -m benchmarks.operations queries_keys_values gated_maps cross_entropy --topology=v5e:1x1
"""

import functools
import json
import re
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx
from jax.sharding import SingleDeviceSharding

from benchmarks.measuring import alternating_seconds, define_sizes
from command.flags import parse_flags, run_command
from configs.base import get_config
from contract.errors import ConfigError
from models.attention import Attention
from models.config import ModelConfig
from models.layers import MLP, activation, dropout, linear_maps, logits_product, recomputed
from models.placement import placed, target_platform
from objectives.losses.chunked_cross_entropy import chunked_cross_entropy
from objectives.losses.cross_entropy import LossOptions, ScoredTokens, cross_entropy
from plan.estimate import parse_topology

_FLAGS = flags.FlagValues()
_SIZES = {"rows": 32, "length": 512, "d_model": 768, "heads": 12, "d_ff": 2048, "vocab_size": 32128, "runs": 20}
_PRECISION = define_sizes(_SIZES, _FLAGS)
_TOPOLOGY = flags.DEFINE_string("topology", "", "Compile for one TPU chip, as v5e:1x1, instead of running.", _FLAGS)

Forms = tuple[dict[str, Callable[..., Any]], tuple[Any, ...]]  # the two forms, and the arguments of both
CHUNK_SIZE = 32


def _model_config() -> ModelConfig:
    length, d_model, heads, d_ff = (_FLAGS[name].value for name in ("length", "d_model", "heads", "d_ff"))
    if d_model % heads:
        raise ConfigError(f"--d_model={d_model} must be a multiple of --heads={heads}")
    model = get_config().model.to_dict() | {"d_model": d_model, "d_ff": d_ff, "mlp": "gated_gelu"}
    model |= {"num_heads": heads, "num_kv_heads": heads, "head_dim": d_model // heads}
    return ModelConfig(**model | {"vocab_size": 1, "max_length": length, "dtype": _PRECISION.value})


def _states() -> jax.Array:
    shape = tuple(_FLAGS[name].value for name in ("rows", "length", "d_model"))
    return jax.random.normal(jax.random.key(0), shape).astype(_PRECISION.value)


def queries_keys_values() -> Forms:
    """Returns functions to the gradients of the projections' parameters and of their states [B, L, D]."""
    structure, params = nnx.split(Attention(_model_config(), rngs=nnx.Rngs(params=0)))

    def loss(params: Any, states: jax.Array, *, joined: bool) -> jax.Array:
        with placed(splits_kernels=not joined):
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
        with placed(splits_kernels=False):
            block = nnx.merge(structure, params)
            output = joined(block, states) if joins else block(states)
        return jnp.square(output.astype(jnp.float32)).sum()

    forms = {name: functools.partial(loss, joins=name == "plain") for name in ("ours", "plain")}
    return {name: jax.grad(form, (0, 1)) for name, form in forms.items()}, (params, _states())


def _loss_arguments() -> tuple[jax.Array, jax.Array, ScoredTokens]:
    """Returns states [B, L, D], an output table [D, V] and the targets."""
    states, vocab_size = _states(), _FLAGS["vocab_size"].value
    table_key, target_key = jax.random.split(jax.random.key(1))
    table = jax.random.normal(table_key, (states.shape[-1], vocab_size)) * states.shape[-1] ** -0.5
    targets = jax.random.randint(target_key, states.shape[:2], 0, vocab_size)
    return states, table, ScoredTokens(targets, jnp.ones(targets.shape), jnp.zeros(targets.shape, jnp.int32))


def cross_entropy_loss() -> Forms:
    """Returns functions to the summed loss, the correct tokens, and the gradients of states and output table."""

    def logits(product: Callable[..., jax.Array], states: jax.Array, table: jax.Array) -> jax.Array:
        return product(states.reshape(-1, states.shape[-1]), table).reshape(*states.shape[:2], -1)

    def ours(states: jax.Array, table: jax.Array, scored: ScoredTokens) -> tuple[jax.Array, jax.Array]:
        options = LossOptions(num_groups=1, z_loss=0.0, label_smoothing=0.0)
        sums = cross_entropy(logits(logits_product, states, table), scored, options)
        return sums.minimized_sum, sums.correct_sum

    def plain(states: jax.Array, table: jax.Array, scored: ScoredTokens) -> tuple[jax.Array, jax.Array]:
        product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
        logits_BxLxV = logits(product, states, table.astype(states.dtype))
        log_probabilities = jnp.take_along_axis(jax.nn.log_softmax(logits_BxLxV), scored.targets_BxL[..., None], -1)
        return -log_probabilities.sum(), (logits_BxLxV.argmax(-1) == scored.targets_BxL).sum()

    forms = {"ours": ours, "plain": plain}
    gradients = {name: jax.value_and_grad(form, (0, 1), has_aux=True) for name, form in forms.items()}
    return gradients, _loss_arguments()


def chunked_loss() -> Forms:
    """Returns functions to the mean loss with T5's z-loss, and the gradients of states and output table."""

    def loss(states: jax.Array, table: jax.Array, scored: ScoredTokens, *, chunk_size: int) -> jax.Array:
        def logits_of(table: jax.Array, states: jax.Array) -> jax.Array:
            return (states.reshape(-1, states.shape[-1]) @ table).reshape(*states.shape[:-1], -1)

        options = LossOptions(num_groups=1, z_loss=1e-4, label_smoothing=0.0)
        sums = chunked_cross_entropy(logits_of, table, states, scored, options, chunk_size=chunk_size)
        return sums.minimized_sum / sums.weight_sum

    forms = {name: functools.partial(loss, chunk_size=size) for name, size in (("chunked", CHUNK_SIZE), ("plain", 0))}
    return {name: jax.value_and_grad(form, (0, 1)) for name, form in forms.items()}, _loss_arguments()


def dropout_masks() -> Forms:
    """Returns functions to the gradient of states [B, L, D] through dropout, and to its result."""
    rate = 0.1

    def plain(x: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)

    def gradient(form: Callable[..., jax.Array], x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pull_back = jax.vjp(lambda x: form(x, key), x)
        y = jax.lax.optimization_barrier(y)  # between the passes, as the other layers of a model
        return y, pull_back(jnp.tanh(y))[0]

    ours = functools.partial(dropout, rate=rate, broadcast_positions=False)
    forms = {"ours": lambda x, key: ours(x, key=key), "plain": plain}
    return {name: functools.partial(gradient, form) for name, form in forms.items()}, (_states(), jax.random.key(2))


OPERATIONS: dict[str, Callable[[], Forms]] = {
    "queries_keys_values": queries_keys_values,
    "gated_maps": gated_maps,
    "cross_entropy": cross_entropy_loss,
    "chunked_loss": chunked_loss,
    "dropout": dropout_masks,
}


def measure(make_forms: Callable[[], Forms], topology: str = "") -> dict[str, Any]:
    """Returns the MiB of both forms and, without a TPU `topology`, their milliseconds and the ratio of these."""
    functions, arguments = make_forms()
    shapes, platform = arguments, target_platform()
    if topology:
        devices, platform = parse_topology(topology).devices, "tpu"
        if not devices:
            raise ConfigError(f"--topology={topology} must be a TPU's, such as v5e:1x1: others have no compiler")
        sharding = SingleDeviceSharding(devices[0])
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    line, compiled = {}, {}
    for name, function in functions.items():
        with placed(platform=platform, splits_kernels=False):
            compiled[name] = jax.jit(function).lower(*shapes).compile()
        memory = compiled[name].memory_analysis()
        line[f"{name}_temporary_mib"] = round(memory.temp_size_in_bytes / 2**20, 1)
        line[f"{name}_results_mib"] = round(memory.output_size_in_bytes / 2**20, 1)
        line[f"{name}_accessed_mib"] = round(compiled[name].cost_analysis()["bytes accessed"] / 2**20, 1)
        if topology and " while(" not in (program := compiled[name].as_text()):
            line[f"{name}_cycles"] = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', program)))
    if topology:
        return line
    seconds = alternating_seconds(compiled, arguments, _FLAGS["runs"].value)
    line |= {f"{name}_milliseconds": round(1000 * statistics.median(times), 3) for name, times in seconds.items()}
    line["ratio"] = round(statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)), 3)
    return line


def main() -> None:
    """Measures or compiles each operation and prints its line."""
    names = parse_flags(_FLAGS, __doc__, positional=True) or list(OPERATIONS)
    for name in names:
        if name not in OPERATIONS:
            raise ConfigError(f"operation {name!r} is unknown: use {', '.join(OPERATIONS)}")
    if _TOPOLOGY.value:
        jax.config.update("jax_platforms", "cpu")  # nothing runs on this machine's accelerator
    sizes = {name: _FLAGS[name].value for name in _SIZES} | {"precision": _PRECISION.value}
    for name in names:
        line = {"benchmark": "operations", "operation": name} | measure(OPERATIONS[name], _TOPOLOGY.value) | sizes
        print(json.dumps(line | {"device": _TOPOLOGY.value or jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    run_command(main)
