"""A Transformer small enough to run anywhere, with no two sizes alike, and rows laid out by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig
from models.transformer import Params, apply, init_params

FIELDS = dict(
    architecture="encoder_decoder",
    num_layers=2,
    d_model=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    d_ff=20,
    embedding_size=0,
    mlp="gated_gelu",
    positions="relative",
    relative_num_buckets=8,
    relative_max_distance=12,
    rope_theta=100.0,
    norm="rms",
    norm_position="pre",
    norm_epsilon=1e-6,
    use_bias=False,
    tie_embeddings=False,
    scale_logits=False,
    scale_attention=False,
    embedding_norm=False,
    prediction_head="linear",
    num_token_types=0,
    initializer="t5",
    initializer_range=0.02,
    dropout_rate=0.0,
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
    """Parameters of which none is at 0 or 1, so that each shows in the result: biases and scales get noise too."""
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32) for leaf in leaves])


run = jax.jit(apply, static_argnums=0)  # (config, params, batch) -> logits


def rows(side: str, segments: list[list[int]], tokens: Any) -> dict[str, jnp.ndarray]:
    """Fields of "encoder" or "decoder" rows with these segment ids and tokens; positions restart with each segment."""
    positions = [[row[:i].count(segment) if segment else 0 for i, segment in enumerate(row)] for row in segments]
    values = {"input_tokens": tokens, "segment_ids": segments, "positions": positions}
    return {f"{side}_{name}": jnp.asarray(value, jnp.int32) for name, value in values.items()}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Each parameter's path and shape, worked out without allocating any."""
    tree = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}
