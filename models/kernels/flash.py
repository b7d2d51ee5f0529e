"""Flash attention for TPUs, with what other kernels lack: T5's bias, masks that differ between rows, and dropout.

Masks and dropout are computed within the kernels, and the gradient of the bias is summed over rows there, so no array
has an entry for each row, query and key.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from models.attention import KeysValues
from models.kernels.dropout import dropout_seeds
from models.kernels.flash_backward import backward
from models.kernels.flash_forward import forward
from models.kernels.flash_grid import Options
from models.kernels.padding import pad
from models.kernels.tpu_blocks import block_and_padded_length
from models.placement import OverDevices, first_position, whole_rows

LARGEST_BLOCK = 512  # queries or keys that a core holds in its memory at a time

# The dimensions of the arguments of `_attend` for models.placement.OverDevices
_ON_DEVICES = {
    "query": "BHQK",
    "keys": "BGSK",
    "values": "BGSK",
    "bias": "HQS",
    "query_vectors": "BVQ",
    "key_vectors": "BVS",
    "visible_blocks": "BXY",
    "seeds": "B2H",
    "first_query": "11",
}


class FlashMask(NamedTuple):
    """The mask of `attention_mask`, as vectors of each row that are padded to whole blocks: V vectors, int32.

    A query attends to a key if the first vectors, segments, are equal and no other entry of the key, such as its index
    in a causal row, is above the query's.
    """

    query_vectors: Array  # [B, V, Q]
    key_vectors: Array  # [B, V, S]
    visible_blocks: Array  # [B, blocks of queries, blocks of keys]: 0 for blocks in which all keys are masked


def flash_mask(
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    causal: bool,
    bidirectional_mask_BxS: Array | None,
    order_BxL: Array | None,
) -> FlashMask:
    """Returns the mask of `attention_mask` of the same arguments, also for queries of a part of the positions."""
    of_queries = [query_segment_ids_BxQ]
    of_keys = [jnp.where(key_segment_ids_BxS == 0, -1, key_segment_ids_BxS)]  # -1: no query's segment
    if causal:
        indices_BxS = jnp.broadcast_to(jnp.arange(key_segment_ids_BxS.shape[1]), key_segment_ids_BxS.shape)
        num_queries = query_segment_ids_BxQ.shape[1]
        indices_Q = first_position(num_queries) + jnp.arange(num_queries)
        of_queries.append(jnp.broadcast_to(indices_Q, query_segment_ids_BxQ.shape))
        of_keys.append(
            indices_BxS if bidirectional_mask_BxS is None else jnp.where(bidirectional_mask_BxS, -1, indices_BxS)
        )
    if order_BxL is not None:
        of_queries.append(order_BxL)
        of_keys.append(whole_rows(order_BxL))
    block_q, padded_q = block_and_padded_length(query_segment_ids_BxQ.shape[1], LARGEST_BLOCK)
    block_s, padded_s = block_and_padded_length(key_segment_ids_BxS.shape[1], LARGEST_BLOCK)
    largest = jnp.iinfo(jnp.int32).max
    query_vectors = [pad(vector.astype(jnp.int32), 1, padded_q) for vector in of_queries]
    key_vectors = [pad(vector.astype(jnp.int32), 1, padded_s, largest if j else -1) for j, vector in enumerate(of_keys)]
    return FlashMask(
        jnp.stack(query_vectors, 1),
        jnp.stack(key_vectors, 1),
        _visible_blocks(query_vectors, key_vectors, block_q, block_s).astype(jnp.int32),
    )


def _visible_blocks(query_vectors: list[Array], key_vectors: list[Array], block_q: int, block_s: int) -> Array:
    """Returns bool [B, blocks of queries, blocks of keys]: False only if all keys of the block are masked.

    Compares the smallest and the largest entries of blocks, so some blocks without a visible key are True.
    """
    largest = jnp.iinfo(jnp.int32).max
    query_blocks = [vector.reshape(len(vector), -1, 1, block_q) for vector in query_vectors]
    key_blocks = [vector.reshape(len(vector), 1, -1, block_s) for vector in key_vectors]
    query_segments, key_segments = query_blocks[0], key_blocks[0]
    visible = jnp.where(query_segments == 0, largest, query_segments).min(-1) <= key_segments.max(-1)
    visible &= jnp.where(key_segments == -1, largest, key_segments).min(-1) <= query_segments.max(-1)
    for of_queries, of_keys in zip(query_blocks[1:], key_blocks[1:], strict=True):
        visible &= of_keys.min(-1) <= of_queries.max(-1)
    return visible


def flash_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask: FlashMask,
    bias_1xHxQxS: Array | None,
    over_devices: OverDevices,
    scale: float,
    dropout_rate: float = 0.0,
    dropout_broadcast_positions: bool = False,
    dropout_key: Array | None = None,
    interpret: bool = False,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: float32 or bfloat16. Dropout makes other draws.

    mask: from `flash_mask`.
    over_devices: see models/placement.py.
    interpret: run the kernels in Pallas's interpreter, slowly but on any platform, for tests.
    """
    B, H, Q, _K = query_BxHxQxK.shape
    padded_q, padded_s = mask.query_vectors.shape[2], mask.key_vectors.shape[2]
    arrays = {
        "query": pad(query_BxHxQxK, 2, padded_q),
        "keys": pad(keys_values.keys, 2, padded_s),
        "values": pad(keys_values.values, 2, padded_s),
        **mask._asdict(),
    }
    if bias_1xHxQxS is not None:
        arrays["bias"] = pad(pad(bias_1xHxQxS[0].astype(jnp.float32), 1, padded_q), 2, padded_s)
    if dropout_key is not None and dropout_rate:
        arrays["seeds"] = dropout_seeds(dropout_key, B, H)
        arrays["first_query"] = jnp.full((1, 1), first_position(Q), jnp.int32)
    options = Options(scale, dropout_rate, dropout_broadcast_positions, interpret)
    names = tuple(arrays)

    def attend(*of_device: Array) -> Array:
        return _attend(options, dict(zip(names, of_device, strict=True)))

    attend_over_devices = over_devices(attend, [_ON_DEVICES[name] for name in names], "BHQK")
    return attend_over_devices(*arrays.values())[:, :, :Q]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: Options, arrays: dict[str, Array]) -> Array:
    """Returns the output [B, H, Q, K].

    arrays: by the names of _ON_DEVICES; "bias" may be absent, and "seeds" with "first_query".
    """
    return _attend_forward(options, arrays)[0]


def _attend_forward(options, arrays):
    output, logsumexp = forward(options, arrays)
    return output, arrays | {"output": output, "logsumexp": logsumexp}


def _attend_backward(options, residuals, output_bar):
    gradients = backward(options, residuals | {"output_bar": output_bar})
    return ({name: gradients.get(f"{name}_bar") for name in _ON_DEVICES if name in residuals},)


_attend.defvjp(_attend_forward, _attend_backward)
