"""The devices of this machine: peaks and memory of chips, why JAX uses no accelerator, and its compilation cache."""

import contextlib
import dataclasses
import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import warnings
from collections.abc import Mapping

import jax

GIB = 2**30
_GOOGLE_PCI_VENDOR = "0x1ae0"
_COMPILED = "~/.cache/cloze/programs"
_COMPILED_BYTES = 10 * 2**30


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
    Chip("tpu7x", 2307e12 / 2, 96 * GIB, 7380e9 / 2, 1280 * 2**20),  # a chip is two devices
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


def skip_libtpu_without_tpu() -> None:
    """Makes JAX start on the CPU where libtpu is installed and there is no accelerator. Call this before its first use.

    JAX would initialize libtpu, which prints errors and on some machines searches for a TPU for minutes. Does nothing
    if JAX_PLATFORMS is set, or if JAX has the plugin of another accelerator that may be there.
    """
    is_chosen = jax.config.jax_platforms or "JAX_FORCE_TPU_INIT" in os.environ
    if is_chosen or importlib.util.find_spec("libtpu") is None or has_tpu():
        return
    if visible_gpus({}):  # accelerator_warnings says why JAX does not use the GPU
        return
    if importlib.util.find_spec("jax_plugins") or importlib.metadata.entry_points(group="jax_plugins"):
        return
    jax.config.update("jax_platforms", "cpu")


def has_tpu() -> bool:
    """Returns whether this machine has a TPU."""
    if glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"):
        return True
    vendors = glob.glob("/sys/bus/pci/devices/*/vendor")
    return any(pathlib.Path(vendor).read_text().strip() == _GOOGLE_PCI_VENDOR for vendor in vendors)


def visible_gpus(environment: Mapping[str, str]) -> int:
    """Returns the number of NVIDIA GPUs that this process sees, without starting CUDA."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])


def accelerator_warnings() -> list[str]:
    """Returns a warning if JAX runs on the CPU of a machine with a GPU or a TPU; JAX_PLATFORMS=cpu selects it."""
    if jax.default_backend() != "cpu" or "cpu" in os.environ.get("JAX_PLATFORMS", ""):
        return []
    if visible_gpus({}):
        found, reason = "an NVIDIA GPU", why_no_cuda()
    elif has_tpu():
        found, reason = "a TPU", "libtpu is missing or does not start: pip install -e '.[tpu]'"
    else:
        return []
    return [
        f"this machine has {found}, but JAX runs on the CPU: {reason}; or set JAX_PLATFORMS=cpu if this is intended"
    ]


def why_no_cuda() -> str:
    """Returns why JAX uses no NVIDIA GPU, and what to do."""
    remedy = f"pip install 'jax[cuda12]=={jax.__version__}', and check that nvidia-smi lists the GPU"
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        return f"its CUDA plugin does not start ({' '.join(str(error).split())[:200]}): {remedy}"
    return "the CUDA plugin starts, but is not JAX's default: unset JAX_PLATFORMS"


def use_compilation_cache(folder: str = _COMPILED) -> None:
    """Makes JAX keep compiled programs in a folder of `folder` for this kind of processor. Call before JAX's first use.

    JAX reads a program whose source, options, devices and versions are equal, and writes those that took a second or
    more to compile; with several processes, process 0 writes. Programs for the CPU run on equal processors only. JAX
    deletes the programs that were read longest ago while all are larger than 10 GiB.

    Changes nothing where JAX_COMPILATION_CACHE_DIR names a folder, or JAX_ENABLE_COMPILATION_CACHE=false turns the
    cache off, and where the folder cannot be written: then programs are compiled at each start.
    """
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    path = pathlib.Path(os.path.expanduser(folder)) / _processor()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(path, os.W_OK | os.X_OK):
        # A full disk, or a program that another process deletes at this moment.
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_compilation_cache_max_size", _COMPILED_BYTES)


def _processor() -> str:
    """Returns a name that hosts share if their processors have the same instructions."""
    instructions = platform.processor() or platform.node()
    with contextlib.suppress(OSError):  # not on macOS
        found = re.search(r"^(flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        instructions = " ".join(sorted(found[2].split())) if found else instructions
    return f"{platform.machine()}-{hashlib.blake2b(instructions.encode(), digest_size=4).hexdigest()}"
