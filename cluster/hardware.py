"""Peak FLOP/s, memory and memory bandwidth of accelerators, from data sheets."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device as JAX sees it."""

    name: str
    peak_flops: float  # per second, of dense bfloat16 products (float16 if the chip has no bfloat16)
    memory_bytes: int  # high-bandwidth memory
    memory_bandwidth: float  # bytes per second
    reserved_bytes: int = 0  # memory that programs cannot use, as the TPU compiler reports it

    @property
    def usable_bytes(self) -> int:
        """Memory that programs can use."""
        return self.memory_bytes - self.reserved_bytes


_CHIPS = (
    Chip("v4", 275e12, 32 * GIB, 1228e9, 1536 * 2**20),
    Chip("v5e", 197e12, 16 * GIB, 819e9, 256 * 2**20),
    Chip("v5p", 459e12, 96 * GIB, 2765e9, 266 * 2**20),  # 95 GB in the data sheet; programs can use 95.74 GiB
    Chip("v6e", 918e12, 32 * GIB, 1640e9, 768 * 2**20),
    Chip("tpu7x", 2307e12 / 2, 96 * GIB, 7380e9 / 2),  # a chip is two devices
    Chip("gb200", 2500e12, 186 * 10**9, 8000e9),
    Chip("b200", 2250e12, 180 * 10**9, 8000e9),
    Chip("gh200-144gb", 990e12, 144 * 10**9, 4900e9),
    Chip("gh200", 990e12, 96 * 10**9, 4000e9),
    Chip("h100", 989e12, 80 * 10**9, 3350e9),
    Chip("h200", 989e12, 141 * 10**9, 4800e9),
    Chip("a100", 312e12, 80 * 10**9, 2039e9),
    Chip("a100-40gb", 312e12, 40 * 10**9, 1555e9),
    Chip("l4", 121e12, 24 * 10**9, 300e9),
    Chip("t4", 65e12, 16 * 10**9, 320e9),
)
CHIPS = {chip.name: chip for chip in _CHIPS}

# (substring of jax.Device.device_kind in lower case, name of the chip); the first match counts. An empty name excludes
# a chip whose kind contains the substring of another chip but whose peak differs.
_KINDS = (
    (" mig ", ""),  # a part of a GPU
    ("tpu v4", "v4"),
    ("tpu v5 lite", "v5e"),
    ("tpu v5e", "v5e"),
    ("tpu v5p", "v5p"),
    ("tpu v5", "v5p"),
    ("tpu v6", "v6e"),
    ("tpu7x", "tpu7x"),
    ("gb200", "gb200"),
    ("b200", "b200"),
    ("gh200 144g", "gh200-144gb"),
    ("gh200", "gh200"),
    ("h100 80gb", "h100"),
    ("h200 nvl", ""),
    ("h200", "h200"),
    ("a100-sxm4-80gb", "a100"),
    ("a100 80gb", "a100"),
    ("a100-sxm4-40gb", "a100-40gb"),
    ("a100-pcie-40gb", "a100-40gb"),
    ("nvidia l40", ""),
    ("nvidia l4", "l4"),
    ("tesla t4", "t4"),
)


def chip_of(device_kind: str) -> Chip | None:
    """Returns the chip of a `jax.Device.device_kind`; None if its peak is not in the table, such as a CPU's."""
    kind = device_kind.lower()
    return next((CHIPS.get(name) for substring, name in _KINDS if substring in kind), None)
