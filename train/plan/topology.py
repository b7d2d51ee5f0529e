"""Machines that are not here: a TPU topology's devices, for the TPU compiler, or a number of other chips."""

import dataclasses
import math
import os
import re
from typing import Any

from contract.errors import ConfigError
from train.hardware import CHIPS, Chip, chip_named

_TPUS = ("v4", "v5e", "v5p", "v6e")
_AMPERE_OR_NEWER = ("h100", "h200", "a100", "l4")
_DIMENSIONS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
# What libtpu would otherwise ask a TPU machine for, and write to standard error where it is not on one.
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """`num_devices` devices, each of `chip`; with `devices` where the compiler for them is here."""

    name: str
    num_devices: int
    chip: Chip | None  # None: not known what it can do
    devices: tuple[Any, ...]  # of jax, in the topology's order; empty: shapes only

    @property
    def platform(self) -> str:
        """What `models.placement.platform_of` calls its devices; "gpu" for a GPU of which no more is known."""
        kind = self.chip.name if self.chip else self.name.partition(":")[0]
        if kind in _TPUS:
            return "tpu"
        return "cuda" if kind in _AMPERE_OR_NEWER else "gpu" if kind in ("gpu", *CHIPS) else "cpu"


def parse_topology(name: str) -> Topology:
    """The topology of a name such as "v5e:4x4", "v5p:4x4x4", "h100:8", "gpu:8" or "cpu:2".

    A TPU's devices need the TPU compiler, libtpu, which runs on any x86 Linux machine. Raises ConfigError for a name
    that is none, and where libtpu is not installed.
    """
    kind, _, size = name.partition(":")
    sizes = [int(part) for part in size.split("x")] if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) else []
    if kind in _TPUS and len(sizes) == _DIMENSIONS[kind]:
        devices = _tpu_devices(name, math.prod(sizes))
        chip, share = chip_named(kind), math.prod(sizes) / len(devices)  # below 1 where a chip is two devices
        chip = dataclasses.replace(
            chip,
            peak_flops=chip.peak_flops * share,
            memory_bytes=int(chip.memory_bytes * share),
            memory_bandwidth=chip.memory_bandwidth * share,
            reserved_bytes=int(chip.reserved_bytes * share),
        )
        return Topology(name, len(devices), chip, tuple(devices))
    if kind not in _TPUS and len(sizes) == 1 and kind in ("cpu", "gpu", *CHIPS):
        return Topology(name, sizes[0], CHIPS.get(kind), ())
    raise ConfigError(
        f"--topology={name} is not known: use v5e:AxB, v6e:AxB, v4:AxBxC or v5p:AxBxC (chips along each side), "
        f"{', '.join(chip + ':N' for chip in CHIPS if chip not in _TPUS)}, gpu:N or cpu:N"
    )


def _tpu_devices(name: str, num_chips: int) -> list[Any]:
    from jax.experimental import topologies

    os.environ.update({key: value for key, value in _QUIET.items() if key not in os.environ})
    one_chip = {"chips_per_host_bounds": (1, 1, 1)} if num_chips == 1 else {}
    try:
        return topologies.get_topology_desc(name, "tpu", **one_chip).devices
    except Exception as error:  # RuntimeError, ValueError and JaxRuntimeError, by version and by what is missing
        reason = " ".join(str(error).split())[:200]
        if "libtpu" in reason or "not found" in reason.lower():
            raise ConfigError(
                f"--topology={name} needs the TPU compiler: pip install -e '.[tpu]' ({reason})"
            ) from error
        raise ConfigError(f"--topology={name} is not one that the TPU compiler knows: {reason}") from error
