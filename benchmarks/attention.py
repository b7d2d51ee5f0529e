"""Milliseconds of the attention kernels alone: python -m benchmarks.attention [CASE ...] [--kernels=xla,cudnn]

Prints one JSON line for each case (default: all) and kernel, of the attention of one layer without its projections:

    causal         GPT-2's: causal, packed rows of four segments
    one_segment    T5's encoder: a relative bias, one segment in a row
    packed         T5's encoder: a relative bias, packed rows
    prefix         a causal decoder with a relative bias; half of each segment is its prefix
    dropout        BERT's: one segment in a row, dropout of 0.1

forward_milliseconds is the forward pass, and milliseconds the forward and the backward pass, with the gradients of
queries, keys, values and the bias. Both are medians; the kernels of a case run alternately. temporary_bytes is the
compiler's, of both passes. A kernel that does not support the case or this machine has nulls and the reason.

On one GPU:

    python -m benchmarks.attention
    python -m benchmarks.attention --head_dim=256 --heads=8
"""

import functools
import json
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks.measuring import alternating_seconds, chosen_names
from command.flags import parse_flags, run_command
from configs.base import get_config
from contract.errors import ConfigError
from models.attention import KeysValues
from models.config import ModelConfig
from models.kernels import choose_attention, make_attention_fn
from models.placement import target_platform

SEGMENTS = 4  # of a packed row
CASES = {  # of the model and of the rows; `prefix`: half of each segment
    "causal": {"causal": True, "packed": True},
    "one_segment": {"positions": "relative"},
    "packed": {"positions": "relative", "packed": True},
    "prefix": {"positions": "relative", "packed": True, "causal": True, "prefix": True},
    "dropout": {"dropout_rate": 0.1},
}

_FLAGS = flags.FlagValues()
_KERNELS = flags.DEFINE_list("kernels", ["xla", "cudnn"], "Values of model.attention.", flag_values=_FLAGS)
_SIZES = {"rows": 32, "length": 512, "heads": 12, "head_dim": 64, "runs": 20}
for _name, _default in _SIZES.items():
    flags.DEFINE_integer(_name, _default, "Size.", lower_bound=1, flag_values=_FLAGS)
_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["bfloat16", "float16", "float32"], "Dtype of queries, keys and values.", _FLAGS
)


def model_config(case: dict[str, Any], kernel: str) -> ModelConfig:
    """Returns the fields that the kernels read. Raises ConfigError for an unknown kernel."""
    model = get_config().model.to_dict()
    model |= {"num_heads": _FLAGS["heads"].value, "num_kv_heads": _FLAGS["heads"].value, "vocab_size": 1}
    model |= {"head_dim": _FLAGS["head_dim"].value, "max_length": _FLAGS["length"].value, "attention": kernel}
    model |= {"positions": case.get("positions", "learned"), "dropout_rate": case.get("dropout_rate", 0.0)}
    try:
        return ModelConfig(**model, dtype=_PRECISION.value, one_segment="packed" not in case)
    except ValueError as error:
        raise ConfigError(f"--kernels={kernel}: {error}") from error


def rows_of(case: dict[str, Any]) -> dict[str, jax.Array]:
    """Returns the segments [B, L] of rows whose last eighth is padding, and the prefixes if the case has them."""
    rows, length = _FLAGS["rows"].value, _FLAGS["length"].value
    used = length - length // 8
    index = np.arange(length)
    size = -(-used // (SEGMENTS if "packed" in case else 1))
    segments = np.where(index < used, 1 + index // size, 0)
    arrays = {"segment_ids": segments} | ({"prefix": index % size < size // 2} if "prefix" in case else {})
    return {name: jnp.broadcast_to(jnp.asarray(x), (rows, length)) for name, x in arrays.items()}


def measure(case: dict[str, Any], kernels: list[str]) -> dict[str, dict[str, Any]]:
    """Returns the measured fields of each kernel, or the reason why it does not support the case."""
    B, L, H, K = (_FLAGS[name].value for name in ("rows", "length", "heads", "head_dim"))
    rows = rows_of(case)
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(B, H, L, K)] * 3 + ([(1, H, L, L)] if "positions" in case else [])
    arrays = [jax.random.normal(key, shape, jnp.float32) for key, shape in zip(keys, shapes, strict=False)]
    arrays = [x.astype(_PRECISION.value) for x in arrays[:3]] + arrays[3:]
    dropout = {"dropout_rate": 0.1, "dropout_key": jax.random.key(1)} if "dropout_rate" in case else {}

    def attend(config: ModelConfig, query: jax.Array, keys: jax.Array, values: jax.Array, bias=None) -> jax.Array:
        attention_fn = make_attention_fn(
            config,
            rows["segment_ids"],
            rows["segment_ids"],
            causal="causal" in case,
            bidirectional_mask_BxS=rows.get("prefix"),
            bias_1xHxQxS=bias,
        )
        return attention_fn(query, KeysValues(keys, values), scale=K**-0.5, **dropout)

    measured: dict[str, dict[str, Any]] = {}
    forward, step = {}, {}
    for kernel in kernels:
        config = model_config(case, kernel)
        try:
            choose_attention(config, target_platform(), length=L, per_row_masks="prefix" in case)
        except ValueError as error:
            measured[kernel] = {"forward_milliseconds": None, "milliseconds": None, "reason": str(error)}
            continue
        of_kernel = functools.partial(attend, config)
        loss = lambda *arrays, attend=of_kernel: attend(*arrays).astype(jnp.float32).sum()  # noqa: E731
        forward[kernel] = jax.jit(of_kernel).lower(*arrays).compile()
        step[kernel] = jax.jit(jax.value_and_grad(loss, tuple(range(len(arrays))))).lower(*arrays).compile()
        measured[kernel] = {"temporary_bytes": step[kernel].memory_analysis().temp_size_in_bytes}
    for field, functions in (("forward_milliseconds", forward), ("milliseconds", step)):
        for kernel, seconds in alternating_seconds(functions, arrays, _FLAGS["runs"].value).items():
            measured[kernel][field] = round(1000 * statistics.median(seconds), 3)
    return measured


def main() -> None:
    """Measures each case and prints its lines."""
    names = chosen_names(parse_flags(_FLAGS, __doc__, positional=str), CASES, "case")
    sizes = {name: _FLAGS[name].value for name in _SIZES} | {"precision": _PRECISION.value}
    device = jax.devices()[0].device_kind
    for name in names:
        for kernel, fields in measure(CASES[name], list(_KERNELS.value)).items():
            line = {"benchmark": "attention", "case": name, "kernel": kernel} | fields | sizes | {"device": device}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
