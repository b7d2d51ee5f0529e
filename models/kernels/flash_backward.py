"""The backward pass of flash attention: probabilities are computed again, block by block, from queries and keys."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from models.kernels.flash_grid import Blocks, Options, Step, call, is_first, product, to_column
from models.kernels.flash_scores import dropped, masked_scores, scaled_queries

_INPUT_OF = {"query_bar": "query", "keys_bar": "keys", "values_bar": "values", "bias_bar": "bias"}
# Orders of the grid. The first adds up the gradient of the bias over rows, the second those of keys and values over
# query heads and blocks of queries, the third that of queries over blocks of keys.
_ORDERS = ("grqsb", "bgsrq", "bgrqs")


def backward(options: Options, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the gradients of query, keys, values and bias (if any), by the names of DIMENSIONS.

    arrays: those of the forward pass, "output", "logsumexp", and "output_bar", the output's gradient.

    Each kernel computes all gradients that its order of the grid allows to add up. One kernel computes all of them if
    queries and keys are one block each and a key/value head serves one query head.
    """
    blocks, gradients = Blocks.of(arrays), dict[str, Array]()
    for order in _ORDERS[0 if "bias" in arrays else 1 :]:
        outputs, summed_axes = {}, {}
        for name, source in _INPUT_OF.items():
            axes = blocks.summed_axes(name, order)
            if source in arrays and name not in gradients and axes is not None:
                dtype = jnp.float32 if axes else arrays[source].dtype
                outputs[name], summed_axes[name] = jax.ShapeDtypeStruct(arrays[source].shape, dtype), axes
        if outputs:
            products = 2 + len(outputs.keys() - {"bias_bar"})
            gradients |= call(_make_body(summed_axes), order, options, arrays, outputs, products=products)
    return {name: array.astype(arrays[_INPUT_OF[name]].dtype) for name, array in gradients.items()}


def _make_body(summed_axes: Mapping[str, str]) -> Callable[[Step], None]:
    """Returns the body of a kernel of these outputs. summed_axes: the axes over which the steps add up each of them."""

    def body(step: Step) -> None:
        for name, axes in summed_axes.items():
            _clear(step, name, axes)

        @pl.loop(0, step.blocks.sizes["b"])
        def _(i):
            @pl.when(step.is_visible(i))
            def _():
                _add_block(step, i)

    return body


def _clear(step: Step, name: str, axes: str) -> None:
    """Sets the block of an output to 0 at the first of the steps that add to it."""
    ref = step.refs[name]

    @pl.when(is_first(step, axes))
    def _():
        ref[...] = jnp.zeros(ref.shape, ref.dtype)


def _add_block(step: Step, i: Array) -> None:
    """Adds the gradients of row i's block of queries and keys."""
    refs = step.refs
    output_bar, values = refs["output_bar"][i], refs["values"][i]
    probabilities = jnp.exp(masked_scores(step, i) - to_column(refs["logsumexp"][i]))
    probabilities_bar = dropped(product(output_bar, values, (1, 1)), step, i)
    mean = (output_bar.astype(jnp.float32) * refs["output"][i].astype(jnp.float32)).sum(1, keepdims=True)
    scores_bar = probabilities * (probabilities_bar - mean)
    if "bias_bar" in refs:
        refs["bias_bar"][...] += scores_bar
    scores_bar = scores_bar.astype(values.dtype)
    if "query_bar" in refs:
        _add(refs["query_bar"], i, step.options.scale * product(scores_bar, refs["keys"][i], (1, 0)))
    if "keys_bar" in refs:
        _add(refs["keys_bar"], i, product(scores_bar, scaled_queries(step, i), (0, 0)))
    if "values_bar" in refs:
        _add(refs["values_bar"], i, product(dropped(probabilities, step, i).astype(values.dtype), output_bar, (0, 0)))


def _add(ref: jax.Ref, i: Array, x: Array) -> None:
    ref[i] += x.astype(ref.dtype)
