"""The grid of the flash-attention kernels: the part of each array that one step of a kernel has in its memory.

Axes of the grid: b rows of the batch (several in a step), g key/value heads, r query heads of a key/value head,
q blocks of queries, s blocks of keys. `at["h"]` = g * R + r is a query head.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from models.kernels.tpu_blocks import TILE

_LARGEST_PART = 256 * 1024  # bytes of the rows of a step, of one array of queries or keys

# The dimensions of each array by name: those of the grid's axes, h, and others, which are never split.
DIMENSIONS = {
    "query": "bhqk",
    "keys": "bgsk",
    "values": "bgsk",
    "bias": "hqs",
    "query_vectors": "bvq",
    "key_vectors": "bvs",
    "visible_blocks": "bxy",
    "seeds": "b2x",
    "first_query": "11",  # the index in the row of the first query, for dropout
    "output": "bhqk",
    "logsumexp": "bhvq",
    "output_bar": "bhqk",
    "query_bar": "bhqk",
    "keys_bar": "bgsk",
    "values_bar": "bgsk",
    "bias_bar": "hqs",
}
_SCALARS = ("visible_blocks", "seeds", "first_query")


@dataclasses.dataclass(frozen=True)
class Options:
    """What is the same for all arrays of an attention; see `flash_attention`."""

    scale: float
    dropout_rate: float
    dropout_broadcast_positions: bool
    interpret: bool


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a kernel: its arrays' parts, its place in the grid, and the sizes that all steps share."""

    options: Options
    blocks: "Blocks"
    at: Mapping[str, Array]  # axis of the grid, or "h" -> index
    refs: Mapping[str, jax.Ref]

    def is_visible(self, i: Array) -> Array:
        """Returns whether row i of the step has a visible key in this block."""
        return self.refs["visible_blocks"][i, self.at["q"], self.at["s"]] != 0


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The number of steps along each axis of the grid, and the sizes of blocks."""

    steps: Mapping[str, int]
    sizes: Mapping[str, int]  # b: rows, q: queries, s: keys

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "Blocks":
        """Returns the blocks for the arrays of `_attend` in models/kernels/flash.py."""
        B, H, Q, K = arrays["query"].shape
        G, S = arrays["keys"].shape[1:3]
        num_q, num_s = arrays["visible_blocks"].shape[1:]
        block_q, block_s = Q // num_q, S // num_s
        part = max(block_q, block_s) * max(K, TILE) * arrays["query"].dtype.itemsize
        rows = max(rows for rows in range(1, B + 1) if B % rows == 0 and (rows == 1 or rows * part <= _LARGEST_PART))
        steps = {"b": B // rows, "g": G, "r": H // G, "q": num_q, "s": num_s}
        return cls(steps, {"b": rows, "q": block_q, "s": block_s})

    def summed_axes(self, name: str, order: str) -> str | None:
        """Returns the axes over which the steps of a grid of this order add up output `name`; None if they cannot.

        They can if these axes are the innermost ones: a kernel keeps a block of an output in its memory only as long
        as consecutive steps write the same block.
        """
        split = DIMENSIONS[name].replace("h", "gr")
        axes = "".join(axis for axis in order if self.steps[axis] > 1)
        innermost = "".join(axis for axis in axes if axis not in split)
        return innermost if axes.endswith(innermost) else None

    def spec(self, name: str, shape: Sequence[int], order: str) -> pl.BlockSpec:
        """Returns the part of the array `name` that is in a step's memory, without the dimensions g and h."""
        names = DIMENSIONS[name]
        block = [None if axis in "gh" else self.sizes.get(axis, n) for axis, n in zip(names, shape, strict=True)]

        def index(*ids: Array) -> tuple[Array | int, ...]:
            at = self.at(order, ids)
            return tuple(at.get(axis, 0) for axis in names)

        if name in _SCALARS:
            return pl.BlockSpec(block, index, memory_space=pltpu.SMEM)
        return pl.BlockSpec(block, index)

    def at(self, order: str, ids: Sequence[Array]) -> dict[str, Array]:
        """Returns the index along each axis of the grid, and of the query head."""
        at = dict(zip(order, ids, strict=True))
        return at | {"h": at["g"] * self.steps["r"] + at["r"]}


def call(
    body: Callable[[Step], None],
    order: str,
    options: Options,
    arrays: Mapping[str, Array],
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    *,
    products: int,
    scratch: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Array]:
    """Returns the outputs of a kernel that runs `body` once for each step of a grid.

    order: the grid's axes, the innermost last.
    products: products of queries and keys, or of the same size, for the compiler's estimate of the kernel's time.
    scratch: shapes of further float32 arrays, which keep their values from step to step.
    """
    blocks, scratch = Blocks.of(arrays), scratch or {}
    names = (*arrays, *outputs, *scratch)

    def kernel(*refs: jax.Ref) -> None:
        at = blocks.at(order, [pl.program_id(axis) for axis in range(len(order))])
        body(Step(options, blocks, at, dict(zip(names, refs, strict=True))))

    (B, H, Q, K), S = arrays["query"].shape, arrays["keys"].shape[2]
    sizes = [x.size * x.dtype.itemsize for x in arrays.values()] + [x.size * x.dtype.itemsize for x in outputs.values()]
    results = pl.pallas_call(
        kernel,
        out_shape=list(outputs.values()),
        grid=tuple(blocks.steps[axis] for axis in order),
        in_specs=[blocks.spec(name, array.shape, order) for name, array in arrays.items()],
        out_specs=[blocks.spec(name, array.shape, order) for name, array in outputs.items()],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=[pltpu.PARALLEL] + [pltpu.ARBITRARY] * (len(order) - 1)
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * B * H * Q * S * K, transcendentals=B * H * Q * S, bytes_accessed=sum(sizes)
        ),
        interpret=options.interpret,
    )(*arrays.values())
    return dict(zip(outputs, results, strict=True))


def product(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    """Returns the float32 product of two matrices over a dimension of each."""
    of_x, of_y = contracted
    return jax.lax.dot_general(x, y, (((of_x,), (of_y,)), ((), ())), preferred_element_type=jnp.float32)


def to_column(row: Array) -> Array:
    """Returns [n, 1] of a row [1, n] in the memory of a kernel, where only whole tiles can be transposed."""
    return jnp.broadcast_to(row, (TILE, row.shape[1])).T[:, :1]


def to_row(column: Array) -> Array:
    """Returns [1, n] of a column [n, 1] in the memory of a kernel."""
    return jnp.broadcast_to(column, (column.shape[0], TILE)).T[:1]


def is_first(step: Step, axes: str) -> Array | bool:
    """Returns whether the step is the first along all `axes`."""
    return functools.reduce(operator.and_, [step.at[axis] == 0 for axis in axes], True)
