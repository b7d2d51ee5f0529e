"""Benchmarks of single operations: each prints its JSON lines at small sizes; both forms compute the same."""

import jax
import numpy as np
import pytest

from benchmarks import attention, loss, matrix_products, operations
from contract.errors import ConfigError
from tests.test_benchmarks import lines_of


def test_loss_reports_memory_and_time_ratios(monkeypatch, capsys):
    (line,) = lines_of(loss, ["1024"], monkeypatch, capsys)
    assert line["vocabulary"] == 1024 and 0 < line["memory_ratio"] < 1 and line["time_ratio"] > 0
    with pytest.raises(ConfigError, match="argument 'large' must be of type int"):
        lines_of(loss, ["large"], monkeypatch, capsys)


def test_attention_measures_each_kernel_or_says_why_not(monkeypatch, capsys):
    sizes = ["--rows=2", "--length=32", "--heads=2", "--head_dim=8", "--runs=1", "--precision=float32"]
    lines = lines_of(attention, [*sizes, "prefix", "dropout", "--kernels=xla,cudnn"], monkeypatch, capsys)
    assert [(line["case"], line["kernel"]) for line in lines] == [
        (case, kernel) for case in ("prefix", "dropout") for kernel in ("xla", "cudnn")
    ]
    for of_xla, of_cudnn in (lines[:2], lines[2:]):
        assert of_xla["milliseconds"] > 0 and of_xla["forward_milliseconds"] > 0 and of_xla["temporary_bytes"] > 0
        assert of_cudnn["milliseconds"] is None and "needs an NVIDIA GPU" in of_cudnn["reason"]
    for argument, message in (("sliding", "case 'sliding' is unknown: use causal"), ("--kernels=cuda", "'cuda' must")):
        with pytest.raises(ConfigError, match=message):
            lines_of(attention, [*sizes, argument], monkeypatch, capsys)


PRODUCT_SIZES = [
    "--batch_size=2",
    "--length=8",
    "--d_model=12",
    "--num_heads=3",
    "--d_ff=20",
    "--vocab_size=16",
    "--runs=1",
]


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_matrix_products_are_those_of_a_layer_and_their_gradients(library):
    if library == "torch":
        pytest.importorskip("torch")
    matrix_products.parse_flags(matrix_products._FLAGS, "", ["x", *PRODUCT_SIZES])
    products = matrix_products.products()
    assert products["queries_keys_values"] == (0, 16, 12, 36) and products["scores"] == (6, 8, 4, 8)
    multiplications = [max(p.batch, 1) * p.rows * p.contracted * p.columns for p in products.values()]
    assert sum(multiplications) == 16 * 12 * (36 + 12 + 20 + 20 + 16) + 2 * 6 * 8 * 4 * 8
    for product in products.values():
        arrays = matrix_products.operands(product)
        left, right, gradient = arrays["left"], arrays["right"], arrays["gradient"]
        expected = {
            "product": left @ right,
            "left_gradient": gradient @ np.swapaxes(right, -1, -2),
            "right_gradient": np.swapaxes(left, -1, -2) @ gradient,
        }
        for form, values in expected.items():
            computed = matrix_products.LIBRARIES[library](form, product)()
            np.testing.assert_allclose(np.asarray(computed), values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", operations.OPERATIONS)
def test_both_forms_of_an_operation_compute_the_same(name):
    operations.parse_flags(
        operations._FLAGS,
        "",
        ["x", "--rows=2", "--length=8", "--d_model=16", "--heads=2", "--d_ff=24", "--precision=float32"],
    )
    functions, arguments = operations.OPERATIONS[name]()
    ours, plain = (jax.tree.leaves(jax.jit(functions[form])(*arguments)) for form in ("ours", "plain"))
    for x, y in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
