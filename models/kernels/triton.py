"""A fused attention kernel for NVIDIA GPUs, in Pallas, compiled by Triton; triton_blocks.py has its programs.

The mathematics is FlashAttention 2's (Dao 2023), and `dot_product_attention`'s: any mask of `attention_mask`, computed
from vectors; a bias [1, H, Q, S] apart from the mask, whose gradient is summed over rows in float32; dropout. No array
has an entry for each row, head, query and key.

Checked in Pallas's interpreter, and compiled by Triton for A100 and H100, but never yet run on a GPU.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from models.attention import KeysValues
from models.kernels import triton_blocks
from models.kernels.dropout import dropout_seeds
from models.kernels.padding import pad_to_multiple
from models.kernels.triton_blocks import DIMENSIONS, Options
from models.placement import OverDevices

LARGEST_HEAD_DIM = 256

_Arrays = dict[str, Array]  # by the names of triton_blocks.DIMENSIONS


def mask_and_bias_arrays(
    head_dim: int,
    mask_Bx1xQxS: Array,
    query_segment_ids_BxQ: Array,
    key_segment_ids_BxS: Array,
    *,
    bidirectional_mask_BxS: Array | None,
    order_BxL: Array | None,
    bias_1xHxQxS: Array | None,
) -> _Arrays:
    """Returns the kernel's arrays that all layers of a stack share: those of the mask, and the bias.

    The mask must be `attention_mask` of the other arguments. Only the ranges of blocks are computed from it, in which
    some query attends to some key: the kernel skips the other blocks.
    """
    size = _block(head_dim)
    arrays = {"query_segment_ids": query_segment_ids_BxQ, "key_segment_ids": key_segment_ids_BxS}
    if bidirectional_mask_BxS is not None:
        arrays["bidirectional_mask"] = bidirectional_mask_BxS.astype(jnp.int32)
    if order_BxL is not None:
        arrays |= {"query_order": order_BxL, "key_order": order_BxL}
    arrays = {name: pad_to_multiple(x, 1, size) for name, x in arrays.items()}
    if bias_1xHxQxS is not None:
        arrays["bias"] = pad_to_multiple(pad_to_multiple(bias_1xHxQxS[0].astype(jnp.float32), 1, size), 2, size)
    mask_BxQxS = pad_to_multiple(pad_to_multiple(mask_Bx1xQxS[:, 0], 1, size), 2, size)
    B, Q, S = mask_BxQxS.shape
    blocks = mask_BxQxS.reshape(B, Q // size, size, S // size, size).any((2, 4))
    return arrays | {"key_blocks": _ranges(blocks), "query_blocks": _ranges(blocks.swapaxes(1, 2))}


def _ranges(blocks_BxNxM: Array) -> Array:
    """Returns int32 [B, N, 2]: the index of the first True of each row and one more than that of the last; 0 and 0."""
    first, end = blocks_BxNxM.argmax(-1), blocks_BxNxM.shape[-1] - blocks_BxNxM[..., ::-1].argmax(-1)
    ranges = jnp.stack([first, end], -1) * blocks_BxNxM.any(-1)[..., None]
    return ranges.astype(jnp.int32)


def triton_attention(
    query_BxHxQxK: Array,
    keys_values: KeysValues,
    *,
    mask_and_bias: _Arrays,
    causal: bool,
    over_devices: OverDevices,
    scale: float,
    dropout_rate: float = 0.0,
    dropout_broadcast_positions: bool = False,
    dropout_key: Array | None = None,
    interpret: bool = False,
) -> Array:
    """Returns [B, H, Q, K], as `dot_product_attention`: bfloat16 or float16, scores and softmax in float32.

    mask_and_bias: from `mask_and_bias_arrays`, for the head dim of the queries.
    causal: as in `attention_mask`.
    over_devices: see models/placement.py.
    interpret: run the kernel in Pallas's interpreter, slowly but on any platform, for tests.

    Deviation from `dot_product_attention`: dropout draws from models/kernels/dropout.py, so that the two functions
    keep different probabilities for the same key.
    """
    B, H, Q, K = query_BxHxQxK.shape
    options = Options(
        scale=scale,
        causal=causal,
        dropout_rate=dropout_rate,
        dropout_broadcast_positions=dropout_broadcast_positions,
        block=_block(K),
        interpret=interpret,
    )
    # Triton's tensors have powers of two as sizes, and its matrix products at least 16.
    padded_K = max(16, 2 ** math.ceil(math.log2(K)))
    pad = lambda x: pad_to_multiple(pad_to_multiple(x, 2, options.block), 3, padded_K)  # noqa: E731
    arrays = {"query": pad(query_BxHxQxK), "keys": pad(keys_values.keys), "values": pad(keys_values.values)}
    arrays |= mask_and_bias
    if dropout_key is not None and dropout_rate:
        arrays["seeds"] = dropout_seeds(dropout_key, B, H)
    names = list(arrays)

    def attend(*arrays: Array) -> Array:
        return _attend(options, dict(zip(names, arrays, strict=True)))

    attend_over_devices = over_devices(attend, [DIMENSIONS[name] for name in names], DIMENSIONS["output"])
    return attend_over_devices(*arrays.values())[:, :, :Q, :K]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: Options, arrays: _Arrays) -> Array:
    return _attend_forward(options, arrays)[0]


def _attend_forward(options: Options, arrays: _Arrays) -> tuple[Array, tuple[_Arrays, Array, Array]]:
    B, H, Q, _ = arrays["query"].shape
    shapes = {
        "output": jax.ShapeDtypeStruct(arrays["query"].shape, arrays["query"].dtype),
        "log_sums": jax.ShapeDtypeStruct((B, H, Q), jnp.float32),
    }
    outputs = _of_queries(triton_blocks.forward, arrays, shapes, options)
    return outputs["output"], (arrays, outputs["output"], outputs["log_sums"])


def _attend_backward(
    options: Options, residuals: tuple[_Arrays, Array, Array], output_bar: Array
) -> tuple[dict[str, Array | None]]:
    arrays, output, log_sums = residuals
    means = (output_bar.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    inputs = arrays | {"output_bar": output_bar, "log_sums": log_sums, "means": means}
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}
    gradients: dict[str, Array | None] = dict.fromkeys(arrays)
    gradients |= _of_queries(triton_blocks.backward_query, inputs, {"query": shapes["query"]}, options)
    B, G, S, _ = arrays["keys"].shape
    gradients |= _call(
        triton_blocks.backward_keys_values,
        inputs,
        {"keys": shapes["keys"], "values": shapes["values"]},
        options,
        grid=(S // options.block, G, B),
        sizes={"B": None, "G": None, "H": arrays["query"].shape[1] // G},
        indices=lambda block, group, row: {"B": row, "G": group, "H": group},
    )
    if "bias" in arrays:
        H, Q, _ = arrays["bias"].shape
        gradients |= _call(
            triton_blocks.backward_bias,
            inputs,
            {"bias": shapes["bias"]},
            options,
            grid=(Q // options.block, S // options.block, H),
            sizes={"G": None, "H": None},
            indices=lambda query_block, key_block, head: {"H": head, "G": jax.lax.div(head, H // G)},
        )
    return (gradients,)


_attend.defvjp(_attend_forward, _attend_backward)


def _of_queries(
    program: Callable[..., None], inputs: _Arrays, shapes: Mapping[str, jax.ShapeDtypeStruct], options: Options
) -> _Arrays:
    """Runs `program` for each block of queries, of each row and head."""
    (B, H, Q, _), G = inputs["query"].shape, inputs["keys"].shape[1]
    return _call(
        program,
        inputs,
        shapes,
        options,
        grid=(Q // options.block, H, B),
        sizes={"B": None, "G": None, "H": None},
        indices=lambda block, head, row: {"B": row, "H": head, "G": jax.lax.div(head, H // G)},
    )


def _call(
    program: Callable[..., None],
    inputs: _Arrays,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    options: Options,
    *,
    grid: tuple[int, int, int],
    sizes: Mapping[str, int | None],
    indices: Callable[..., dict[str, Array]],
) -> _Arrays:
    """Runs `program` once for each point of `grid` and returns its outputs.

    shapes: of the outputs.
    sizes: of the part of each axis that a program gets; None for one entry, without the axis. Other axes are whole.
    indices: (point of the grid) -> the index of that part along each axis; 0 for the axes without an index.
    """

    def spec(name: str, shape: tuple[int, ...]) -> pl.BlockSpec:
        axes = DIMENSIONS[name]
        block_shape = tuple(sizes.get(axis, size) for axis, size in zip(axes, shape, strict=True))

        def index_map(*point: Array) -> tuple[Array | int, ...]:
            index = indices(*point)
            return tuple(index.get(axis, 0) for axis in axes)

        return pl.BlockSpec(block_shape, index_map)

    parameters = None
    if not options.interpret:
        from jax.experimental.pallas import triton  # not part of JAX on every platform

        # With 4 warps, heads of 128 and more need more registers than a thread has, by ptxas for A100 and H100.
        num_warps = 4 if inputs["query"].shape[-1] <= 64 else 8
        parameters = triton.CompilerParams(num_warps=num_warps, num_stages=2)
    return pl.pallas_call(
        functools.partial(program, options=options),
        grid=grid,
        in_specs=({name: spec(name, x.shape) for name, x in inputs.items()},),
        out_specs={name: spec(name, x.shape) for name, x in shapes.items()},
        out_shape=dict(shapes),
        compiler_params=parameters,
        interpret=options.interpret,
        name=program.__name__,
    )(inputs)


def _block(head_dim: int) -> int:
    """Returns the number of queries and of keys of a block.

    By Triton's compiler, a program then needs at most 113 KiB of shared memory on an H100 and 89 KiB on an A100.
    """
    return 64 if head_dim <= 128 else 32
