"""Where a token stands: T5's relative position buckets, and rotary embeddings. Learned ones are an embedding table.

Suffixes: B batch, L length, Q queries, K keys, H heads; W = Q + K - 1 different relative positions.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig

Rotation = tuple[Array, Array]  # cosines and sines of the angles, each float32 [B, 1, L, head_dim / 2]


def relative_position_bucket(
    relative_position: Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """T5's bucket of each relative position (key index - query index): int32, shaped like the argument.

    Bidirectional: the lower half of the buckets is for keys before the query, the upper half for keys after it.
    Causal: keys after the query share bucket 0 with the query's own. In each half near distances have a bucket each,
    farther ones share logarithmically wider buckets, and all that is past the last edge shares the last one.
    Source: T5 and Mesh TensorFlow, `_relative_position_bucket`. They take a logarithm on the device; here the edges
    are integers worked out on the host, so that no device's logarithm can move one.
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    distance = jnp.abs(relative_position) if bidirectional else jnp.maximum(-relative_position, 0)
    edges = _bucket_edges(side, max_distance)
    bucket = (distance[..., None] >= edges).sum(-1, dtype=jnp.int32)
    return bucket + side * (relative_position > 0) if bidirectional else bucket


def _bucket_edges(num_buckets: int, max_distance: int) -> np.ndarray:
    """int32 [num_buckets - 1]: the smallest distance in each bucket but the first."""
    exact = num_buckets // 2
    steps = np.arange(num_buckets - exact) / (num_buckets - exact)
    # The small number undoes rounding where a power is a whole number: 8 * 16^(2/8) is 32, not 33.
    logarithmic = np.ceil(exact * (max_distance / exact) ** steps - 1e-6)
    return np.concatenate([np.arange(1, exact), logarithmic]).astype(np.int32)


class RelativePositionBias(nnx.Module):
    """T5's learned bias on attention scores, one table [H, buckets] for all layers of a stack.

    It looks at indices in the row, not at the positions field: a packed segment's tokens are neighbours in the row,
    and the mask hides the rest.
    """

    def __init__(self, config: ModelConfig, *, bidirectional: bool, rngs: nnx.Rngs):
        self.bidirectional = bidirectional
        self.num_buckets = config.relative_num_buckets
        self.max_distance = config.relative_max_distance
        shape = (config.num_heads, config.relative_num_buckets)
        self.embedding = nnx.Param(initializers.relative_bias(config)(rngs.params(), shape, jnp.float32))

    def __call__(self, num_queries: int, num_keys: int, query_offset: Array | int = 0) -> Array:
        """float32 [1, H, Q, K]: the bias of each query and key; query i has index `query_offset` + i, key j index j.

        There are only W biases a head, on the diagonals of [Q, K]. So the table is read W times and the diagonals are
        laid out by reshaping: no gather of Q x K entries, and no scatter in its gradient.
        """
        relative_position_W = jnp.arange(1 - num_queries, num_keys) - query_offset
        bucket_W = relative_position_bucket(
            relative_position_W,
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        one_hot_WxN = jax.nn.one_hot(bucket_W, self.num_buckets)
        bias_HxW = jnp.einsum("HN,WN->HW", self.embedding[...], one_hot_WxN, precision="highest")
        return _diagonals(bias_HxW, num_queries)[None]


def _diagonals(values_HxW: Array, num_queries: int) -> Array:
    """[H, Q, K] whose entry (q, k) is `values_HxW` at k - q + Q - 1.

    Q copies of a row of W + 1, read as rows of W, slide one step to the right from each row to the next.
    """
    heads, width = values_HxW.shape
    padded = jnp.pad(values_HxW, ((0, 0), (0, 1)))
    rows = jnp.broadcast_to(padded[:, None], (heads, num_queries, width + 1)).reshape(heads, -1)
    return rows[:, : num_queries * width].reshape(heads, num_queries, width)[:, :, num_queries - 1 :]


def rotation(positions_BxL: Array, head_dim: int, theta: float) -> Rotation:
    """Angles of rotary position embeddings (RoFormer): position * theta^(-2i / head_dim) for each pair i."""
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    angles = positions_BxL[:, None, :, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BxHxLxK: Array, rotation: Rotation) -> Array:
    """Turns each pair of features by its angle, in float32; same shape and dtype.

    Feature i is paired with i + head_dim / 2 (GPT-NeoX, Llama's released weights), not with its neighbour (RoFormer).
    """
    cos, sin = rotation
    first, second = jnp.split(x_BxHxLxK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BxHxLxK.dtype)
