"""The chip of each jax.Device.device_kind."""

import math

import pytest

from cluster.hardware import CHIPS, GIB, chip_of


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
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("TPU7x", "tpu7x"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
    ],
)
def test_chips_by_device_kind(kind, name):
    assert chip_of(kind) == CHIPS[name]


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA L40S",
        "Radeon",
    ],
)
def test_unknown_chips_have_no_peak(kind):
    assert chip_of(kind) is None


def test_peaks_are_positive_and_plausible():
    for chip in CHIPS.values():
        assert 1e13 < chip.peak_flops < 1e16 and chip.memory_bytes > 10 * GIB and math.isfinite(chip.memory_bandwidth)


# As published: dense bfloat16 (T4: float16) TFLOP/s, memory, GB/s. NVIDIA's data sheets of the chip, and of HGX B200
# and GB200 NVL72 divided by their 8 and 72 GPUs (18 and 180 PFLOP/s, 1,440 GB and 13.4 TB, 64 and 576 TB/s); Google
# Cloud's pages of TPU versions. A TPU7x chip, of 2,307 TFLOP/s, 192 GiB and 7,380 GB/s, is two devices of JAX.
PUBLISHED = {
    "v4": (275, 32 * GIB, 1228),
    "v5e": (197, 16 * GIB, 819),
    "v5p": (459, 96 * GIB, 2765),
    "v6e": (918, 32 * GIB, 1640),
    "tpu7x": (2307 / 2, 192 * GIB / 2, 7380 / 2),
    "gb200": (180_000 / 72, 13.4e12 / 72, 576_000 / 72),
    "b200": (18_000 / 8, 1440e9 / 8, 64_000 / 8),
    "gh200-144gb": (990, 144e9, 4900),
    "gh200": (990, 96e9, 4000),
    "h100": (989, 80e9, 3350),
    "h200": (989, 141e9, 4800),
    "a100": (312, 80e9, 2039),
    "a100-40gb": (312, 40e9, 1555),
    "l4": (121, 24e9, 300),
    "t4": (65, 16e9, 320),
}


def test_constants_are_the_published_ones():
    for name, chip in CHIPS.items():
        teraflops, memory, bandwidth = PUBLISHED[name]
        assert chip.peak_flops == pytest.approx(teraflops * 1e12, rel=1e-3), name
        assert chip.memory_bytes == pytest.approx(memory, rel=2e-3), name
        assert chip.memory_bandwidth == pytest.approx(bandwidth * 1e9, rel=1e-3), name
    assert PUBLISHED.keys() == CHIPS.keys()
