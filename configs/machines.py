"""The fields of each preset that make it fit a machine.

Presets up to `base`, and larger ones that are not in these tables, have model.remat="auto" and
train.grad_accum_steps=0, which a run resolves at its start for the memory of its devices (run/memory.py).

Every other preset is made for the machine h100:8, except for the sizes of TOPOLOGIES; `python -m train.plan
--config=... --topology=...` shows that the preset fits. For another machine, the command prints the fields to change if
the preset does not fit. On a machine with more memory or devices, fewer microbatches and no rematerialization are
faster. Presets that are sharded have train.grad_accum_steps=0 too: each microbatch gathers all parameters, so a run has
the fewest that fit.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from configs.sizes import DIAL

TOPOLOGIES = {"70b": "h100:32", "20b": "v5p:4x4x4"}


class Fit(NamedTuple):
    """How a size fits its machine."""

    rows: int  # the most rows that a device computes at once, of the recipe's length; 0: as many as fit
    remat: str = "none"
    sharded: bool = False  # the training state is larger than a device's memory, and is sharded over all devices


T5 = {"large": Fit(64), "xl": Fit(16), "xxl": Fit(0, sharded=True)}
UL2 = {"20b": Fit(0, "full", sharded=True)}
BERT = {"large": Fit(32)}
BART = {"large": Fit(32)}
GLM = {"large": Fit(32)}
PEGASUS = {"large": Fit(32)}
GPT2 = {"medium": Fit(16), "large": Fit(8), "xl": Fit(8, "dots")}
LLAMA = {"7b": Fit(0, sharded=True), "13b": Fit(0, "dots", sharded=True), "70b": Fit(0, "full", sharded=True)}


def topology_of(size: str) -> str:
    """Returns the --topology of train.plan for the machine of a size above base."""
    return TOPOLOGIES.get(size, "h100:8")


def use_machine(config: ConfigDict, size: str, fits: dict[str, Fit]) -> None:
    """Sets the mesh, model.remat and train.grad_accum_steps for the machine of `size`, after train.batch_size.

    A size that is not in `fits` leaves these two fields to the start of a run. A size of configs/sizes.py stays as it
    is.
    """
    if size in DIAL:
        return
    fit = fits.get(size, Fit(0, "auto"))
    config.model.remat, config.train.grad_accum_steps = fit.remat, 0
    if fit.sharded:
        # With all 64 devices of this slice in the axis, the TPU compiler makes each gather a sum of whole arrays.
        config.mesh.data, config.mesh.fsdp = 2 if topology_of(size) == "v5p:4x4x4" else 1, -1
    if fit.rows:
        rows = config.train.batch_size // _num_devices(topology_of(size))  # of each device
        divisors = (steps for steps in range(1, rows + 1) if rows % steps == 0)
        config.train.grad_accum_steps = next(steps for steps in divisors if rows // steps <= fit.rows)


def _num_devices(topology: str) -> int:
    """Returns the number of devices of "h100:8" (8) or "v5p:4x4x4" (64)."""
    count = 1
    for side in topology.partition(":")[2].split("x"):
        count *= int(side)
    return count
