"""Position encodings: T5's relative position biases, rotary embeddings, and the positions of targets.

Learned positions are an `Embedding`.

Suffixes: B batch, L length, Q queries, K keys, H heads; W = Q + K - 1 distinct relative positions.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models import initializers
from models.config import ModelConfig
from models.layers import Embedding, Linear

Rotation = tuple[Array, Array]  # cosines and sines of the angles, each float32 [B, 1, L, rotary_features / 2]


def relative_position_bucket(
    relative_position: Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """Returns T5's bucket of each relative position (key index - query index, int): int32, same shape.

    Bidirectional: the first half of the buckets is for keys at or before the query, the second half for keys after it.
    Causal: all buckets are for keys at or before the query; keys after it are in bucket 0. Within each direction, half
    of the buckets hold one distance each, the others hold logarithmically wider ranges, and the last one also holds
    all distances from max_distance on.

    Source: `_relative_position_bucket` of Mesh TensorFlow, which T5 uses. Deviation: Mesh TensorFlow takes a
    logarithm on the device; here the host computes the edges of the buckets, so buckets are equal on all devices.
    """
    per_direction = num_buckets // 2 if bidirectional else num_buckets
    distance = jnp.abs(relative_position) if bidirectional else jnp.maximum(-relative_position, 0)
    edges = _bucket_edges(per_direction, max_distance)
    bucket = (distance[..., None] >= edges).sum(-1, dtype=jnp.int32)
    return bucket + per_direction * (relative_position > 0) if bidirectional else bucket


def _bucket_edges(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the smallest distance in each bucket after the first, int32 [num_buckets - 1]."""
    exact = num_buckets // 2
    steps = np.arange(num_buckets - exact) / (num_buckets - exact)
    # 1e-6 guards against rounding errors where a power is an integer: ceil(8 * 16^(2/8)) must be 32, not 33.
    logarithmic = np.ceil(exact * (max_distance / exact) ** steps - 1e-6)
    return np.concatenate([np.arange(1, exact), logarithmic]).astype(np.int32)


class RelativePositionBias(nnx.Module):
    """T5's learned bias on attention scores: one table [H, buckets] for all layers of a stack.

    Relative positions are differences of row indices, not of the batch's positions field. Within a packed segment the
    two differences are equal, and attention between segments is masked.
    """

    def __init__(self, config: ModelConfig, *, bidirectional: bool, rngs: nnx.Rngs):
        self.bidirectional = bidirectional
        self.num_buckets = config.relative_num_buckets
        self.max_distance = config.relative_max_distance
        shape = (config.num_heads, config.relative_num_buckets)
        self.embedding = nnx.Param(initializers.relative_bias(config)(rngs.params(), shape, jnp.float32))

    def __call__(self, num_queries: int, num_keys: int, query_offset: Array | int = 0) -> Array:
        """Returns the bias of each query (row index `query_offset` + i) and key (row index j), float32 [1, H, Q, K].

        A head has only W distinct biases, one for each diagonal of [Q, K]. The table is read W times, and reshaping
        copies each value along its diagonal, without a gather of Q x K entries or a scatter in the gradient.
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
    """Returns [H, Q, K], in which entry (h, q, k) is `values_HxW[h, k - q + Q - 1]`.

    Q copies of a padded row of W + 1 values, reshaped to rows of W, shift by one step from each row to the next.
    """
    heads, width = values_HxW.shape
    padded = jnp.pad(values_HxW, ((0, 0), (0, 1)))
    rows = jnp.broadcast_to(padded[:, None], (heads, num_queries, width + 1)).reshape(heads, -1)
    return rows[:, : num_queries * width].reshape(heads, num_queries, width)[:, :, num_queries - 1 :]


def rotation(config: ModelConfig, positions_BxL: Array, *, is_local: bool = False) -> Rotation:
    """Returns cosines and sines of the angles position * theta^(-2i / n) for pair i of n features (RoFormer).

    n is model.rotary_features. theta is model.rope_theta, or with `is_local` model.local_rope_theta. With a
    model.rope_scaling_factor above 1 the frequencies of model.rope_theta are those of Llama 3.1: waves longer than
    model.rope_original_length are longer by the factor, those shorter than a quarter of it are as they were, and
    between them the frequencies are interpolated.
    """
    theta, n = config.local_rope_theta if is_local else config.rope_theta, config.rotary_features
    frequencies = theta ** -(np.arange(0, n, 2, dtype=np.float32) / n)
    if config.rope_scaling_factor > 1 and not is_local:
        waves = config.rope_original_length * frequencies / (2 * np.pi)  # in the original length
        kept = np.clip((waves - 1) / (4 - 1), 0, 1)
        frequencies = (frequencies * (kept + (1 - kept) / config.rope_scaling_factor)).astype(np.float32)
    angles = positions_BxL[:, None, :, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BxHxLxK: Array, rotation: Rotation) -> Array:
    """Rotates pairs of the first features by their angles, computed in float32; same shape and dtype as x.

    Deviation from RoFormer: of n features that have angles, i is paired with i + n / 2, not with its neighbour.
    GPT-NeoX and Hugging Face's Llama do the same.
    """
    cos, sin = rotation
    pairs = cos.shape[-1]
    first, second, rest = jnp.split(x_BxHxLxK.astype(jnp.float32), (pairs, 2 * pairs), axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
    return rotated.astype(x_BxHxLxK.dtype)


def continued_positions(
    positions_BxL: Array, segment_ids_BxL: Array, encoder_positions_BxE: Array, encoder_segment_ids_BxE: Array
) -> Array:
    """Returns the decoder's positions, int32 [B, L], counted on from the encoder's text of the same segment (RedLLM).

    RedLLM (Zhang et al. 2025, arXiv 2510.26622) has inputs of one length. Here position 0 follows the last token of the
    segment's inputs, however long the row of the encoder is.
    """
    is_same_BxLxE = segment_ids_BxL[:, :, None] == encoder_segment_ids_BxE[:, None]
    return positions_BxL + jnp.where(is_same_BxLxE, encoder_positions_BxE[:, None] + 1, 0).max(-1)


class TargetPositions(nnx.Module):
    """The second position encoding of sigma-GPT (Pannatier et al. 2024, arXiv 2404.09562): where the next token is.

    The encoding is added to the embeddings. With learned positions: a second table, of the target's position. With
    rotary positions: a linear map of the cosines and sines of the angles of the offset from the position of the token
    that is read to the target's. A query can then attend to what is around its target, because a rotation by this
    offset is linear in them.

    Deviation: sigma-GPT concatenates both encodings, of half the width each. A sum can represent this, and leaves the
    model without the second encoding as it was. sigma-GPT has no rotary positions.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        if config.positions == "learned":
            self.position_embedder = Embedding(config, config.max_length, rngs=rngs)
        else:
            width, init = config.embedding_width, initializers.matrix(config)
            self.offset_projection = Linear(config, config.rotary_features, width, init, rngs=rngs)

    def __call__(self, positions_BxL: Array, target_positions_BxL: Array | None) -> Array:
        """Maps the positions of the tokens that are read, and of the targets, int32, to [B, L, columns].

        target_positions: None: `positions`, from left to right.
        """
        config = self.config
        target_positions_BxL = positions_BxL if target_positions_BxL is None else target_positions_BxL
        if config.positions == "learned":
            return self.position_embedder(target_positions_BxL)
        angles = rotation(config, target_positions_BxL - positions_BxL)
        features = jnp.concatenate(angles, axis=-1).reshape(-1, config.rotary_features)
        return self.offset_projection(features).reshape(*positions_BxL.shape, -1)
