"""The memory and the time of a run on a machine, from its compiler if there is one, and from shapes otherwise.

A TPU topology has the TPU compiler, which needs no TPU; other machines are a number of chips of a kind.
"""

import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh

from cluster.devices import CHIPS, Chip, has_tpu
from contract.errors import ConfigError
from experiment.experiment import Experiment
from experiment.optimizer import make_optimizer
from models.config import ModelConfig
from models.transformer import Params
from plan.costs import Cost, costs
from plan.hlo import collective_bytes
from run import sharding
from run.compiled_run import abstract_state, attention_of, check_mesh, compiled_train_step, seed_array
from run.memory import (
    Machine,
    abstract_batch,
    abstract_frozen,
    activation_bytes,
    bias_warnings,
    device_bytes,
    gradient_bytes,
)
from run.step import TrainState

_TPU_DIMENSIONS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}
_DEVICES_OF_A_CHIP = {"tpu7x": 2}  # in cluster.devices.CHIPS
_PLATFORMS = {
    "hopper": ("gh200-144gb", "gh200", "h100", "h200"),
    "cuda": ("gb200", "b200", "a100", "a100-40gb", "l4"),
    "gpu": ("gpu", "t4"),
    "tpu": tuple(_TPU_DIMENSIONS),
}
_GPUS = (*_PLATFORMS["hopper"], *_PLATFORMS["cuda"], "t4")
_OF_A_CHIP = ("peak_flops", "memory_bytes", "memory_bandwidth", "reserved_bytes")  # that its devices divide
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
    def machine(self) -> Machine:
        """What run.memory chooses model.remat="auto" and train.grad_accum_steps=0 for."""
        return Machine(self.name, self.platform, self.num_devices, self.chip and self.chip.usable_bytes)

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

    Raises ConfigError for an unknown name, and if libtpu is not installed or in use.
    """
    kind, _, size = name.partition(":")
    size, _, slices = size.partition(":")
    is_valid = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) and re.fullmatch(r"|[1-9]\d{0,3}", slices)
    sizes = [int(part) for part in size.split("x")] if is_valid else []
    if len(sizes) == _TPU_DIMENSIONS.get(kind):
        num_slices = int(slices or 1)
        devices = _tpu_devices(f"{kind}:{size}", math.prod(sizes), num_slices)
        # Below 1 if a chip has two devices here and one in CHIPS, as v4.
        share = num_slices * math.prod(sizes) * _DEVICES_OF_A_CHIP.get(kind, 1) / len(devices)
        whole = {field: getattr(CHIPS[kind], field) for field in _OF_A_CHIP}
        part = {field: type(value)(value * share) for field, value in whole.items()}
        return Topology(name, len(devices), dataclasses.replace(CHIPS[kind], **part), tuple(devices))
    if len(sizes) == 1 and not slices and kind in ("cpu", "gpu", *_GPUS):
        chip = CHIPS.get(kind)
        return Topology(name, sizes[0], chip and with_pool(chip, pool_share()), ())
    raise ConfigError(
        f"--topology={name} is unknown: use v5e:AxB, v6e:AxB, v4:AxBxC, v5p:AxBxC or tpu7x:AxBxC (chips along each "
        f"side; v5e:AxB:N for N slices), {', '.join(chip + ':N' for chip in _GPUS)}, gpu:N or cpu:N"
    )


def pool_share() -> float:
    """Returns the share of a GPU's memory that JAX's pool takes."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or 0.75)


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
        if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
            reason = f"it is not installed: pip install -e '.[tpu]' ({reason})"
        raise ConfigError(f"--topology={name} needs the TPU compiler, libtpu: {reason}") from error


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's report on a train step. Bytes are those of one device."""

    refused: bool  # the program exceeds the memory: the compiler reports only the total
    argument_bytes: int  # state and batch in the chip's layout; if refused, from their shapes
    temporary_bytes: int
    seconds: float  # of compilation
    result_bytes: int = 0  # results that are not written over arguments
    code_bytes: int = 0  # the program
    collectives: dict[str, int] | None = None  # kind -> bytes per step; None if jaxlib cannot read the program
    costs: dict[str, Cost] | None = None  # kind -> estimated cycles and bytes (plan/costs.py); None: not computed

    @property
    def total_bytes(self) -> int:
        """All memory of the program."""
        return self.argument_bytes + self.temporary_bytes + self.result_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The memory and the time of a run's train step. Bytes are those of one device."""

    topology: Topology
    remat: str
    grad_accum_steps: int
    chosen: str  # how these two were chosen for the topology; "" if the config sets them
    mesh: dict[str, int]  # axis -> size
    attention: tuple[str, str]  # the kernel, and the reason for it
    precision: str  # of the computation
    num_params: int
    positions_per_step: int
    parameter_bytes: int
    optimizer_bytes: int
    average_bytes: int  # the averaged parameters (train.ema_decay)
    teacher_bytes: int  # the parameters of distillation.teacher
    batch_bytes: int
    activation_bytes: int  # from shapes, without fusion (run/memory.py)
    temporary_bytes: int  # if compiled, all but arguments and results; otherwise activations and gradients
    compiled: Compiled | None  # None if the topology has no compiler
    flops: float  # model FLOPs per step, of all devices (models/flops.py)
    warnings: list[str]  # of the experiment, about the attention kernel, and about collectives

    @property
    def state_bytes(self) -> int:
        """The training state: parameters, optimizer state and averaged parameters."""
        return self.parameter_bytes + self.optimizer_bytes + self.average_bytes

    @property
    def total_bytes(self) -> int:
        """The largest memory in use at any time, as the compiler reports it if there is one."""
        if self.compiled is not None:
            return self.compiled.total_bytes
        return self.state_bytes + self.teacher_bytes + self.batch_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the chip's usable memory; None if that memory is not known."""
        chip = self.topology.chip
        if self.compiled is not None and self.compiled.refused:
            return False
        return None if chip is None else self.total_bytes <= chip.usable_bytes

    @property
    def roofline_seconds(self) -> float | None:
        """The lower bound of the time of a step; None if the chip is not known.

        The larger of the time of the FLOPs at the chips' peak and the time to read and write the training state, and to
        read the teacher and the batch, at the memory bandwidth.
        """
        chip = self.topology.chip
        if chip is None:
            return None
        moved = 2 * self.state_bytes + self.teacher_bytes + self.batch_bytes
        return max(self.flops / self.topology.num_devices / chip.peak_flops, moved / chip.memory_bandwidth)


def estimate(experiment: Experiment, topology: Topology, *, with_costs: bool = False) -> Estimate:
    """Returns the estimate of `experiment` on `topology`, `with_costs` where the TPU compiler has made the program.

    Raises ConfigError if the mesh does not fit the number of devices, if dimensions or rows are not multiples of the
    mesh axes, or if the attention kernel does not support the topology.
    """
    shape = sharding.mesh_shape(experiment.mesh, topology.num_devices)
    if topology.devices:
        mesh = sharding.make_mesh(experiment.mesh, topology.devices)
    else:
        mesh = AbstractMesh(shape, sharding.AXES)
    check_mesh(experiment, mesh)
    attention = attention_of(experiment, topology.platform)
    state, batch = abstract_state(experiment, mesh), abstract_batch(experiment, sharding.batch_sharding(mesh))
    parameters, batch_bytes = device_bytes(state.params), device_bytes(batch)
    average = device_bytes(state.ema_params)
    activations = activation_bytes(experiment, mesh, topology.platform)
    frozen = abstract_frozen(experiment, mesh)
    compiled = _compile(experiment, state, batch, frozen, with_costs) if topology.devices else None
    gradients = gradient_bytes(parameters, experiment.train.grad_accum_steps)
    temporaries = compiled.temporary_bytes if compiled else activations + gradients
    axes = dict(zip(sharding.AXES, shape, strict=True))
    segments = [array for name, array in batch.items() if name.endswith("_segment_ids")]
    return Estimate(
        topology=topology,
        remat=experiment.model.remat,
        grad_accum_steps=experiment.train.grad_accum_steps,
        chosen=experiment.chosen,
        mesh=axes,
        attention=attention,
        precision=precision_of(experiment.model, topology.platform),
        num_params=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        positions_per_step=sum(array.size for array in segments),
        parameter_bytes=parameters,
        optimizer_bytes=device_bytes(state) - parameters - average,
        average_bytes=average,
        teacher_bytes=device_bytes(frozen),
        batch_bytes=batch_bytes,
        activation_bytes=activations,
        temporary_bytes=temporaries,
        compiled=compiled,
        flops=experiment.train_step_flops,
        warnings=[
            *experiment.warnings,
            *bias_warnings(experiment, topology.platform, axes),
            *gather_warnings(axes, parameters, compiled),
        ],
    )


def gather_warnings(mesh: Mapping[str, int], parameter_bytes: int, compiled: Compiled | None) -> list[str]:
    """Returns a warning if the compiler has made the gathers of parameters over mesh.fsdp sums of whole arrays.

    libtpu 0.0.42.1 does so where the axis has all 64 devices of a slice of v5p, and moves several times the bytes.
    mesh: axis -> size. parameter_bytes: a device's part, in float32.
    """
    kinds, fsdp = (compiled and compiled.collectives) or {}, mesh["fsdp"]
    gathered = kinds.get("all-gather", 0) + kinds.get("collective-permute", 0)
    # Gathers of nearly all parameters, in bfloat16, have fsdp / 2 times the bytes of a device's part, or more.
    if fsdp == 1 or 10 * gathered >= parameter_bytes or kinds.get("all-reduce", 0) < parameter_bytes:
        return []
    remedy = f": try mesh.data={2 * mesh['data']} and mesh.fsdp={fsdp // 2}" if fsdp > 2 and fsdp % 2 == 0 else ""
    return [f"parameters are added up whole over mesh.fsdp, not gathered{remedy}"]


def precision_of(model: ModelConfig, platform: str) -> str:
    """The dtype of the computation, and what JAX makes of products in float32 on a TPU."""
    if (model.dtype, platform, jax.config.jax_default_matmul_precision) != ("float32", "tpu", None):
        return model.dtype
    return "float32, but products in bfloat16, as is JAX's default on TPUs: JAX_DEFAULT_MATMUL_PRECISION=highest"


def _compile(
    experiment: Experiment, state: TrainState, batch: dict[str, jax.ShapeDtypeStruct], frozen: Params, with_costs: bool
) -> Compiled:
    """Compiles the train step for the devices of the shardings of `state` and `batch`. frozen: as in CompiledRun."""
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps, experiment.model)
    state_shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = compiled_train_step(experiment, optimizer, state_shardings, next(iter(batch.values())).sharding)
    begin = time.perf_counter()
    try:
        program = step.lower(state, batch, seed_array(experiment.seed), *([frozen] if frozen else [])).compile()
        seconds = time.perf_counter() - begin
    except jax.errors.JaxRuntimeError as error:
        needed, arguments = _bytes_needed(str(error)), device_bytes((state, batch, frozen))
        if needed is None:
            raise
        return Compiled(True, arguments, needed - arguments, time.perf_counter() - begin)
    memory, text = program.memory_analysis(), _text(program)
    return Compiled(
        refused=False,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        result_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=None if text is None else collective_bytes(text),
        costs=costs(text) if with_costs and text is not None else None,
        seconds=seconds,
    )


def _text(program: jax.stages.Compiled) -> str | None:
    """Returns the text of a program; None if jaxlib cannot read what the TPU compiler has written.

    jaxlib 0.10.2 expects one operand where libtpu 0.0.52 writes asynchronous collectives with several.
    """
    try:
        return program.as_text()
    except jax.errors.JaxRuntimeError:
        return None


def _bytes_needed(error: str) -> int | None:
    """Returns the memory of a program, with its arguments, from a TPU compiler's error; None for other errors."""
    match = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM|hbm\. Used ([\d.]+)([KMGT]) of", error)
    if match is None:
        return None
    number, unit = match[1] or match[3], match[2] or match[4]
    return int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
