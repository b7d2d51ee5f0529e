"""The chip of each jax.Device.device_kind."""

import math

import pytest

from train.hardware import CHIPS, GIB, chip_of


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
    ],
)
def test_chips_by_device_kind(kind, name):
    assert chip_of(kind) == CHIPS[name]


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "NVIDIA L40S", "Radeon"])
def test_unknown_chips_have_no_peak(kind):
    assert chip_of(kind) is None


def test_peaks_are_positive_and_plausible():
    for chip in CHIPS.values():
        assert 1e13 < chip.peak_flops < 1e16 and chip.memory_bytes > 10 * GIB and math.isfinite(chip.memory_bandwidth)
