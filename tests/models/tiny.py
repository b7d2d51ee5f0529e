"""A small Transformer whose sizes all differ, and batches written by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import T5_V1_1
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import apply, init_params

FIELDS = T5_V1_1["small"] | dict(
    num_layers=2,
    d_model=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    d_ff=20,
    relative_num_buckets=8,
    relative_max_distance=12,
    rope_theta=100.0,
    remat="none",
    scan_unroll=1,
    attention="auto",
    vocab_size=50,
    max_length=12,
    dtype="float32",
)


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**FIELDS, **changes})


@functools.cache
def params(config: ModelConfig, seed: int = 0) -> Params:
    """Initial parameters plus noise, so that no bias is 0 and no scale is 1 and each affects the result."""
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32) for leaf in leaves])


run = jax.jit(apply, static_argnums=0)  # (config, params, batch) -> logits


def rows(side: str, segments: list[list[int]], tokens: Any) -> dict[str, jnp.ndarray]:
    """The batch fields of "encoder" or "decoder" rows with these segment ids and tokens; positions restart per segment.

    Padding (segment 0) has position 0.
    """
    positions = [[row[:i].count(segment) if segment else 0 for i, segment in enumerate(row)] for row in segments]
    values = {"input_tokens": tokens, "segment_ids": segments, "positions": positions}
    return {f"{side}_{name}": jnp.asarray(value, jnp.int32) for name, value in values.items()}


def by_path(params: Params) -> dict[str, Any]:
    """The leaves of a nested dict by their paths, such as "encoder/final_norm/scale"."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Each parameter's path and shape, without allocating any."""
    params = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    return {path: leaf.shape for path, leaf in by_path(params).items()}
