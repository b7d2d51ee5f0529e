"""The machines of train.plan: the devices of a TPU topology, from the TPU compiler, or a number of other chips."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from cluster.devices import CHIPS, Chip, has_tpu
from contract.errors import ConfigError

_TPU_DIMENSIONS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
_PLATFORMS = {
    "hopper": ("gh200-144gb", "gh200", "h100", "h200"),
    "cuda": ("gb200", "b200", "a100", "a100-40gb", "l4"),
    "gpu": ("gpu", "t4"),
    "tpu": tuple(_TPU_DIMENSIONS),
}
_GPUS = (*_PLATFORMS["hopper"], *_PLATFORMS["cuda"], "t4")
# JAX's pool on a GPU is this share of the memory, unless one of the variables has another. The first one is newer.
_POOL_SHARE = 0.75
_POOL_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# Without these variables libtpu queries the metadata of a TPU machine, and prints errors on other machines.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """`num_devices` devices of one kind."""

    name: str
    num_devices: int
    chip: Chip | None  # None if its memory and speed are not known
    devices: tuple[Any, ...]  # jax.Device of the compiler, in the topology's order; empty without a compiler

    @property
    def num_slices(self) -> int:
        """The number of TPU slices, which only a data center network connects."""
        return max(1, len({getattr(device, "slice_index", 0) for device in self.devices}))

    @property
    def has_pool(self) -> bool:
        """Whether the devices are GPUs whose memory JAX takes in a pool."""
        return self.chip is not None and self.platform not in ("cpu", "tpu")

    @property
    def platform(self) -> str:
        """The platform of the devices, as models.placement.platform_of names it; "gpu" for an unknown GPU."""
        kind = self.chip.name if self.chip else self.name.partition(":")[0]
        return next((platform for platform, kinds in _PLATFORMS.items() if kind in kinds), "cpu")


def parse_topology(name: str) -> Topology:
    """Returns the topology of a name such as "v5e:4x4", "v5e:4x4:2" (two slices), "h100:8", "gpu:8" or "cpu:2".

    TPU topologies need the TPU compiler, libtpu, which runs on any x86 Linux machine. Of a GPU's memory, programs can
    use JAX's pool: 75%, or the share that XLA_PYTHON_CLIENT_MEM_FRACTION has in this process's environment.

    Raises ConfigError for an unknown name, if libtpu is not installed or in use, and if the pool's share is not a
    number from 0 to 1.
    """
    kind, _, size = name.partition(":")
    size, _, slices = size.partition(":")
    is_valid = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) and re.fullmatch(r"|[1-9]\d{0,3}", slices)
    sizes = [int(part) for part in size.split("x")] if is_valid else []
    if len(sizes) == _TPU_DIMENSIONS.get(kind):
        num_slices = int(slices or 1)
        devices = _tpu_devices(f"{kind}:{size}", math.prod(sizes), num_slices)
        chip, share = CHIPS[kind], num_slices * math.prod(sizes) / len(devices)  # below 1 if a chip has two devices
        chip = dataclasses.replace(
            chip,
            peak_flops=chip.peak_flops * share,
            memory_bytes=int(chip.memory_bytes * share),
            memory_bandwidth=chip.memory_bandwidth * share,
            reserved_bytes=int(chip.reserved_bytes * share),
        )
        return Topology(name, len(devices), chip, tuple(devices))
    if len(sizes) == 1 and not slices and kind in ("cpu", "gpu", *_GPUS):
        chip = CHIPS.get(kind)
        return Topology(name, sizes[0], chip and with_pool(chip, pool_share(os.environ)), ())
    raise ConfigError(
        f"--topology={name} is unknown: use v5e:AxB, v6e:AxB, v4:AxBxC or v5p:AxBxC (chips along each side; "
        "v5e:AxB:N for N slices), "
        f"{', '.join(chip + ':N' for chip in _GPUS)}, gpu:N or cpu:N"
    )


def pool_share(environment: Mapping[str, str]) -> float:
    """Returns the share of a GPU's memory that JAX's pool takes, from the variables of `environment`.

    Raises ConfigError if the share is not above 0 and at most 1.
    """
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":  # no pool
        return 1.0
    name = next((name for name in _POOL_VARIABLES if environment.get(name)), None)
    if name is None:
        return _POOL_SHARE
    try:
        share = float(environment[name])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"the environment variable {name}={environment[name]} must be a number above 0 and up to 1")
    return share


def with_pool(chip: Chip, share: float) -> Chip:
    """Returns a GPU of whose memory programs can use `share`."""
    return dataclasses.replace(chip, reserved_bytes=chip.memory_bytes - int(chip.memory_bytes * share))


def _tpu_devices(name: str, num_chips: int, num_slices: int) -> list[Any]:
    """Returns the devices of `num_slices` slices, each of `num_chips` chips, for the TPU compiler. Raises ConfigError.

    name: of one slice.
    """
    from jax.experimental import topologies

    # Without a TPU, processes need not exclude each other: they only compile.
    settings = _LIBTPU_ENVIRONMENT | ({} if has_tpu() else {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"})
    os.environ.update({key: value for key, value in settings.items() if key not in os.environ})
    options: dict[str, Any] = {"chips_per_host_bounds": (1, 1, 1)} if num_chips == 1 else {}
    if num_slices > 1:
        options["num_slices"] = num_slices
    try:
        return topologies.get_topology_desc(name, "tpu", **options).devices
    except Exception as error:  # RuntimeError, ValueError or JaxRuntimeError, which differs by version
        reason = " ".join(str(error).split())[:200]
        if "lockfile" in reason or "already in use" in reason:
            raise ConfigError(
                f"--topology={name} needs libtpu, which another process uses ({reason}): wait for its end, or delete "
                "/tmp/libtpu_lockfile if there is none"
            ) from error
        if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
            raise ConfigError(
                f"--topology={name} needs the TPU compiler: pip install -e '.[tpu]' ({reason})"
            ) from error
        raise ConfigError(f"--topology={name} is unknown to the TPU compiler: {reason}") from error
