"""What accelerators can do, from their makers' data sheets: the peaks that utilisation is measured against."""

import dataclasses

from contract.errors import ConfigError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device as JAX sees it."""

    name: str
    peak_flops: float  # a second, of dense bfloat16 products (of float16 where there is no bfloat16)
    memory_bytes: int  # high-bandwidth memory
    memory_bandwidth: float  # bytes a second
    reserved_bytes: int = 0  # of its memory, what is never a program's: by the TPU compiler's word

    @property
    def usable_bytes(self) -> int:
        return self.memory_bytes - self.reserved_bytes


_CHIPS = (
    Chip("v4", 275e12, 32 * GIB, 1228e9, 1536 * 2**20),
    Chip("v5e", 197e12, 16 * GIB, 819e9, 256 * 2**20),
    Chip("v5p", 459e12, 96 * GIB, 2765e9, 266 * 2**20),  # 95 GB in the data sheet; programs have 95.74 GiB
    Chip("v6e", 918e12, 32 * GIB, 1640e9, 768 * 2**20),
    Chip("h100", 989e12, 80 * 10**9, 3350e9),
    Chip("h200", 989e12, 141 * 10**9, 4800e9),
    Chip("a100", 312e12, 80 * 10**9, 2039e9),
    Chip("l4", 121e12, 24 * 10**9, 300e9),
    Chip("t4", 65e12, 16 * 10**9, 320e9),
)
CHIPS = {chip.name: chip for chip in _CHIPS}

# What jax.Device.device_kind calls them, in lower case: the first that is part of it counts. The A100 with 40 GB and
# the H100 on PCIe have other figures, and are told apart.
_KINDS = (
    ("tpu v4", "v4"),
    ("tpu v5 lite", "v5e"),
    ("tpu v5e", "v5e"),
    ("tpu v5p", "v5p"),
    ("tpu v5", "v5p"),
    ("tpu v6", "v6e"),
    ("h100 pcie", ""),
    ("h100", "h100"),
    ("h200", "h200"),
    ("a100-sxm4-80gb", "a100"),
    ("a100 80gb", "a100"),
    ("nvidia l40", ""),
    ("nvidia l4", "l4"),
    ("tesla t4", "t4"),
)


def chip_of(device_kind: str) -> Chip | None:
    """The chip that `jax.Device.device_kind` names; None for one whose peak is not known here, such as a CPU."""
    kind = device_kind.lower()
    return next((CHIPS.get(name) for part, name in _KINDS if part in kind), None)


def chip_named(name: str) -> Chip:
    """The chip of a name such as "v5e" or "h100". Raises ConfigError for one that is not in the table."""
    if name not in CHIPS:
        raise ConfigError(f"--topology: the chip {name!r} is not known here: use one of {', '.join(CHIPS)}")
    return CHIPS[name]
