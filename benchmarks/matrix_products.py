"""Milliseconds of a layer's matrix products in JAX and in PyTorch, float32: python -m benchmarks.matrix_products

Prints one JSON line for each product of a decoder's step at the given sizes, and one for their sum. The products are
those of each weight (`queries_keys_values`, `attention_output`, `feed_forward_in`, `feed_forward_out`, `logits`) and of
attention for each row and head (`scores`, `values`), each in three forms: the product itself and the gradients of its
two factors. JAX and PyTorch run in processes of their own, alternately, --pairs times each. Milliseconds are medians,
and ratio is the median over the pairs of PyTorch's time divided by JAX's: above 1 JAX is faster.

On a CPU these are the products of XLA against those of MKL or oneDNN, so they show how much of the ratio of
`benchmarks.step` to a peer in PyTorch lies in the products. Needs PyTorch (extra: interop).
"""

import importlib.metadata
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks.measuring import alternating_seconds, json_lines
from command.flags import parse_flags, run_command
from contract.errors import ConfigError

_FLAGS = flags.FlagValues()
_SIZES = {"batch_size": 4, "length": 512, "d_model": 384, "num_heads": 6, "d_ff": 1536, "vocab_size": 4096, "runs": 10}
for _name, _default in _SIZES.items():
    flags.DEFINE_integer(_name, _default, "Size.", lower_bound=1, flag_values=_FLAGS)
_PAIRS = flags.DEFINE_integer("pairs", 5, "Processes of each library.", lower_bound=1, flag_values=_FLAGS)
_LIBRARY = flags.DEFINE_enum("library", None, ["jax", "torch"], "Time this library alone, in this process.", _FLAGS)


class Product(NamedTuple):
    """A product [batch, rows, contracted] x [batch, contracted, columns], or without batch dimensions where it is 0."""

    batch: int
    rows: int
    contracted: int
    columns: int


# The contracted and kept dimensions of each form, as an einsum over left [i, k], right [k, j] and gradient [i, j].
FORMS = {
    "product": ("left", "right", "ik,kj->ij"),
    "left_gradient": ("gradient", "right", "ij,kj->ik"),
    "right_gradient": ("left", "gradient", "ik,ij->kj"),
}


def products() -> dict[str, Product]:
    """Returns the products of a decoder layer and of its logits, by name, at the sizes of the flags."""
    batch, length, d_model, heads, d_ff, vocab = (_FLAGS[name].value for name in list(_SIZES)[:6])
    if d_model % heads:
        raise ConfigError(f"--d_model={d_model} must be a multiple of --num_heads={heads}")
    head_dim, tokens = d_model // heads, batch * length
    return {
        "queries_keys_values": Product(0, tokens, d_model, 3 * d_model),
        "scores": Product(batch * heads, length, head_dim, length),
        "values": Product(batch * heads, length, length, head_dim),
        "attention_output": Product(0, tokens, d_model, d_model),
        "feed_forward_in": Product(0, tokens, d_model, d_ff),
        "feed_forward_out": Product(0, tokens, d_ff, d_model),
        "logits": Product(0, tokens, d_model, vocab),
    }


def operands(product: Product) -> dict[str, np.ndarray]:
    """Returns random factors "left" and "right" of a product, and the "gradient" of its result, float32."""
    rng = np.random.default_rng(0)
    shapes = {
        "left": (product.rows, product.contracted),
        "right": (product.contracted, product.columns),
        "gradient": (product.rows, product.columns),
    }
    batch = (product.batch,) if product.batch else ()
    return {name: rng.standard_normal(batch + shape, np.float32) for name, shape in shapes.items()}


def in_jax(form: str, product: Product) -> Callable[[], Any]:
    """Returns a function that computes one form of a product in JAX."""
    left, right, subscripts = FORMS[form]
    arrays = operands(product)
    function = jax.jit(lambda x, y: jnp.einsum(_with_batch(subscripts, product), x, y))
    x, y = jnp.asarray(arrays[left]), jnp.asarray(arrays[right])
    return lambda: function(x, y)


def in_torch(form: str, product: Product) -> Callable[[], Any]:
    """Returns a function that computes one form of a product in PyTorch, on views as autograd does."""
    import torch

    left, right, _ = FORMS[form]
    arrays = operands(product)
    x, y = torch.from_numpy(arrays[left]), torch.from_numpy(arrays[right])
    if form == "left_gradient":
        y = y.mT
    if form == "right_gradient":
        x = x.mT
    return lambda: torch.matmul(x, y)


LIBRARIES = {"jax": in_jax, "torch": in_torch}


def main() -> None:
    """Runs the command."""
    parse_flags(_FLAGS, __doc__)
    if _LIBRARY.value:
        for name, product in products().items():
            for form in FORMS:
                function = LIBRARIES[_LIBRARY.value](form, product)
                (seconds,) = alternating_seconds({form: function}, (), _FLAGS["runs"].value).values()
                print(json.dumps({"product": name, "form": form, "milliseconds": 1000 * statistics.median(seconds)}))
        return
    products()
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("benchmarks.matrix_products needs PyTorch: pip install torch")
    pairs = [{library: _milliseconds(library) for library in LIBRARIES} for _ in range(_PAIRS.value)]
    sizes = {name: _FLAGS[name].value for name in _SIZES}
    for name, product in products().items():
        for form in FORMS:
            times = [{library: pair[library][name, form] for library in LIBRARIES} for pair in pairs]
            print(json.dumps(_line(f"{name}.{form}", times) | product._asdict()))
    sums = [{library: sum(pair[library].values()) for library in LIBRARIES} for pair in pairs]
    versions = {"jax": jax.__version__, "torch": importlib.metadata.version("torch")}
    print(json.dumps(_line("sum", sums) | {"sizes": sizes} | versions))


def _milliseconds(library: str) -> dict[tuple[str, str], float]:
    """Returns the times of all products in one new process, by name and form."""
    command = [sys.executable, "-m", "benchmarks.matrix_products", f"--library={library}", *sys.argv[1:]]
    return {(line["product"], line["form"]): line["milliseconds"] for line in json_lines(command)}


def _line(name: str, times: list[dict[str, float]]) -> dict[str, Any]:
    medians = {f"{library}_milliseconds": statistics.median(pair[library] for pair in times) for library in LIBRARIES}
    ratios = [pair["torch"] / pair["jax"] for pair in times]
    return {
        "benchmark": "matrix_products",
        "product": name,
        **{key: round(value, 3) for key, value in medians.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def _with_batch(subscripts: str, product: Product) -> str:
    """Returns an einsum with a batch dimension before each operand and the result, if the product has one."""
    if not product.batch:
        return subscripts
    return ",".join(f"b{part}" for part in subscripts.split(",")).replace("->", "->b")


if __name__ == "__main__":
    run_command(main)
