"""The operations of benchmarks/operations.py, compiled by the TPU compiler for a v5e chip, without a TPU.

Needs libtpu, and is skipped without it, as test_tpu_compile.py. With the compiler's usual effort.
"""

import pytest

from benchmarks import operations

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install -e '.[tpu]'")


def compiled(name, *flags):
    operations.parse_flags(operations._FLAGS, "", ["x", *flags])
    return operations.measure(operations.OPERATIONS[name], "v5e:1x1")


def test_the_gradient_of_the_logits_is_never_an_array_of_its_own():
    """16 rows of 512 and 32,128 ids, bfloat16: float32 logits are 1,004 MiB, and JAX's own gradient is as large."""
    size = compiled("cross_entropy", "--rows=16")
    logits = 16 * 512 * 32128 * 4 / 2**20
    assert logits < size["ours_temporary_mib"] < 1.02 * logits
    assert size["plain_temporary_mib"] > 1.9 * logits and size["plain_accessed_mib"] > 1.3 * size["ours_accessed_mib"]


def test_one_product_for_gated_maps_needs_more_memory_than_two():
    """Of T5 base with 32 rows of 512: why the feed-forward block has two products (models/layers.py)."""
    size = compiled("gated_maps")
    assert size["plain_temporary_mib"] > 1.5 * size["ours_temporary_mib"]
    assert size["plain_accessed_mib"] > 1.1 * size["ours_accessed_mib"]
