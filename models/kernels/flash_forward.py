"""The forward pass of flash attention (Dao et al. 2022): the softmax over the blocks of keys is computed online."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from models.kernels.flash_grid import Blocks, Options, Step, call, product, to_row
from models.kernels.flash_scores import MASKED, dropped, masked_scores
from models.kernels.tpu_blocks import TILE


def forward(options: Options, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the output [B, H, Q, K], and the logarithm of each query's sum of exponentials, float32 [B, H, 1, Q].

    A query whose keys are all masked has output 0 and logarithm 0.
    """
    B, H, Q, K = arrays["query"].shape
    sizes = Blocks.of(arrays).sizes
    rows, queries = sizes["b"], sizes["q"]
    outputs = call(
        _body,
        # With a bias the rows are inside the heads and queries: a block of the bias is then read once for all rows.
        "grqbs" if "bias" in arrays else "bgrqs",
        options,
        arrays,
        {
            "output": jax.ShapeDtypeStruct((B, H, Q, K), arrays["query"].dtype),
            "logsumexp": jax.ShapeDtypeStruct((B, H, 1, Q), jnp.float32),
        },
        products=2,
        scratch={
            "maximum": (rows, queries, TILE),
            "sum": (rows, queries, TILE),
            "weighted": (rows, queries, K),
        },
    )
    return outputs["output"], outputs["logsumexp"]


def _body(step: Step) -> None:
    refs, last = step.refs, step.blocks.steps["s"] - 1

    @pl.when(step.at["s"] == 0)
    def _():
        refs["maximum"][...] = jnp.full(refs["maximum"].shape, MASKED, jnp.float32)
        refs["sum"][...] = jnp.zeros(refs["sum"].shape, jnp.float32)
        refs["weighted"][...] = jnp.zeros(refs["weighted"].shape, jnp.float32)

    @pl.loop(0, step.blocks.sizes["b"])
    def _(i):
        @pl.when(step.is_visible(i))
        def _():
            _add_block(step, i)

        @pl.when(step.at["s"] == last)
        def _():
            # If all keys so far are masked, their exponentials are 1. The first visible key multiplies their sums by
            # exp(MASKED - maximum) = 0, and without such a key the result is not used.
            maximum, total = refs["maximum"][i, :, :1], refs["sum"][i, :, :1]
            has_keys = maximum > MASKED / 2
            total = jnp.where(has_keys, total, 1)
            refs["output"][i] = jnp.where(has_keys, refs["weighted"][i] / total, 0).astype(refs["output"].dtype)
            refs["logsumexp"][i] = to_row(jnp.where(has_keys, maximum + jnp.log(total), 0))


def _add_block(step: Step, i: Array) -> None:
    """Adds row i's keys of this block to the running maximum, sum of exponentials and sum of weighted values."""
    refs = step.refs
    scores = masked_scores(step, i)
    before = refs["maximum"][i, :, :1]
    maximum = jnp.maximum(before, scores.max(1, keepdims=True))
    weights, shrink = jnp.exp(scores - maximum), jnp.exp(before - maximum)
    total = shrink * refs["sum"][i, :, :1] + weights.sum(1, keepdims=True)
    values = refs["values"][i]
    weighted = product(dropped(weights, step, i).astype(values.dtype), values, (1, 0))
    refs["weighted"][i] = shrink * refs["weighted"][i] + weighted
    refs["maximum"][i] = jnp.broadcast_to(maximum, (len(maximum), TILE))
    refs["sum"][i] = jnp.broadcast_to(total, (len(total), TILE))
