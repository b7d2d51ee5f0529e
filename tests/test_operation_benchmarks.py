"""Benchmarks of single operations: each prints its JSON lines at small sizes; both forms compute the same."""

import jax
import numpy as np
import pytest

from benchmarks import operations
from contract.errors import ConfigError
from tests.test_benchmarks import lines_of

SIZES = ["--rows=2", "--length=128", "--d_model=16", "--heads=2", "--d_ff=24", "--precision=float32", "--runs=1"]


def test_operations_run_beside_their_plain_forms(monkeypatch, capsys):
    names = ["queries_keys_values", "chunked_loss", "dropout"]
    products, loss, masks = lines_of(operations, [*names, *SIZES, "--vocab_size=4096"], monkeypatch, capsys)
    assert products["ratio"] == pytest.approx(products["ours_milliseconds"] / products["plain_milliseconds"], rel=0.05)
    assert 0 < loss["chunked_temporary_mib"] < loss["plain_temporary_mib"]
    assert masks["operation"] == "dropout" and masks["ratio"] > 0
    for argument, message in (
        ("x", "operation 'x' is unknown: use queries_keys_values, gated_maps, cross_entropy"),
        ("--topology=h100:8", "--topology=h100:8 must be a TPU's"),
    ):
        with pytest.raises(ConfigError, match=message):
            lines_of(operations, [*SIZES, argument], monkeypatch, capsys)


@pytest.mark.parametrize("name", ["queries_keys_values", "gated_maps", "cross_entropy", "chunked_loss"])
def test_both_forms_of_an_operation_compute_the_same(name):
    operations.parse_flags(operations._FLAGS, "", ["x", *SIZES])
    functions, arguments = operations.OPERATIONS[name]()
    ours, plain = (jax.tree.leaves(jax.jit(function)(*arguments)) for function in functions.values())
    for x, y in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
