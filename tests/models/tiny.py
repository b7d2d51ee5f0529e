"""A small Transformer whose sizes all differ, and batches written by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import T5_V1_1
from models.config import ModelConfig
from models.parameters import Params, leaf_name
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
    """Random values, different from the initial 0 and 1, so that each parameter affects the result.

    The model's own initializers take longer to compile than most of the tests.
    """
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(lambda: init_params(config, jax.random.key(0)))

    def draw(path, leaf):
        return np.float32(leaf_name(path).endswith("scale") + 0.2 * rng.standard_normal(leaf.shape))

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.partial(jax.jit, static_argnums=(0, 1))
def initial(config: ModelConfig, paths: tuple[str, ...]) -> list[jax.Array]:
    """The initial values of the parameters at `paths` alone: the compiler leaves out all others."""
    leaves = by_path(init_params(config, jax.random.key(0)))
    return [leaves[path] for path in paths]


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
