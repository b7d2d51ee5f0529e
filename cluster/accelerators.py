"""The accelerators of this machine: what JAX starts with, and why it does not use one."""

import glob
import importlib.metadata
import importlib.util
import os
import pathlib
import re

import jax

from cluster.distributed import gpus_of_node

_GOOGLE_PCI_VENDOR = "0x1ae0"


def skip_libtpu_without_tpu() -> None:
    """Makes JAX start on the CPU where libtpu is installed and there is no accelerator. Call this before its first use.

    JAX would initialize libtpu, which prints errors and on some machines searches for a TPU for minutes. Does nothing
    if JAX_PLATFORMS is set, or if JAX has the plugin of another accelerator that may be there.
    """
    is_chosen = jax.config.jax_platforms or "JAX_FORCE_TPU_INIT" in os.environ
    if is_chosen or importlib.util.find_spec("libtpu") is None or has_tpu():
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


def accelerator_warnings() -> list[str]:
    """Returns a warning if the run uses some of the node's GPUs alone, or the CPU of a machine with a GPU or a TPU.

    JAX_PLATFORMS=cpu selects the CPU without a warning.
    """
    if jax.default_backend() == "gpu":
        used, seen = gpus_of_node(os.environ, jax.local_device_count())
        remedy = "start one task per node, or as many as there are GPUs"
        return [f"the run uses {used} of the {seen} GPUs of this node: {remedy}"] if used < seen else []
    if jax.default_backend() != "cpu" or "cpu" in os.environ.get("JAX_PLATFORMS", ""):
        return []
    if glob.glob("/dev/nvidia[0-9]*"):
        found, reason = "an NVIDIA GPU", why_no_cuda(_versions())
    elif glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"):
        found, reason = "a TPU", "libtpu is missing or does not start: pip install -e '.[tpu]'"
    else:
        return []
    return [
        f"this machine has {found}, but JAX runs on the CPU: {reason}; or set JAX_PLATFORMS=cpu if this is intended"
    ]


def why_no_cuda(versions: dict[str, str]) -> str:
    """Returns why JAX uses no NVIDIA GPU, and what to do.

    versions: of the installed distributions whose names begin with "jax", "jax" and "jaxlib" among them.
    """
    plugins = {name: version for name, version in versions.items() if re.match(r"jax-cuda\d+-(plugin|pjrt)$", name)}
    major = next((re.sub(r"\D", "", name) for name in plugins), "12")
    remedy = f"pip install 'jax[cuda{major}]=={versions['jax']}'"
    if not plugins:
        return f"JAX's CUDA plugin is not installed: {remedy}"
    for name, version in plugins.items():
        if version != versions["jaxlib"]:
            return f"{name} is version {version} and jaxlib is {versions['jaxlib']}, which must be equal: {remedy}"
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        return f"the CUDA plugin does not start ({reason}): check that nvidia-smi lists the GPU"
    return "the CUDA plugin starts, but is not JAX's default: unset JAX_PLATFORMS"


def _versions() -> dict[str, str]:
    names = ((package.metadata["Name"] or "", package.version) for package in importlib.metadata.distributions())
    return {"jax": jax.__version__, **{name: version for name, version in names if name.startswith("jax")}}
