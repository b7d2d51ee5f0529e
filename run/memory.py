"""The memory of a train step from shapes, and the choice of model.remat="auto" and train.grad_accum_steps=0 by it.

The first choice that fits the memory of a device is taken. The order is that of the time of a step:

    model.remat="none" with the fewest microbatches that fit, of any number that divides the rows of a device;
    then "dots" in the same way; then "full".

Nothing is compiled, so a run starts a second or two later. A field that the config sets is not changed. The resolved
fields are those of the run's config.json, and a run that continues keeps them, also on other devices, unless its
microbatches do not divide the rows of a device there.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from cluster.devices import GIB
from contract.windows import Windows
from experiment.experiment import Experiment
from learners.learner import Batch, Learner
from models.flops import scored_length
from models.placement import placed, platform_of, target_platform
from models.transformer import Params
from run import sharding
from run.compiled_run import abstract_state, attention_of, check_mesh, has_per_row_masks
from workdir.checkpoint import abstract

# The least share that the estimate of activations from shapes is of what a compiler needs. Of all temporaries but
# gradients it is 0.62 for configs/ul2.py:base with 8 microbatches on one TPU v5e, and 0.51 for configs/clm.py:base with
# four layers and XLA's attention. More microbatches than necessary cost little time, but a program that does not fit
# ends the run. Gradients are arrays of known sizes.
_ACCURACY = 0.5
_LANES = 128  # of a TPU's tiles


class Machine(NamedTuple):
    """The devices of all processes, of one kind."""

    name: str
    platform: str  # models.placement.platform_of
    num_devices: int
    usable_bytes: int | None  # of a device, for programs; None: not known, as on CPUs


def this_machine() -> Machine:
    """Returns the machine of this run. JAX takes a share of a GPU's memory: XLA_PYTHON_CLIENT_MEM_FRACTION."""
    device, *others = jax.local_devices()
    limits = [(each.memory_stats() or {}).get("bytes_limit") for each in (device, *others)]
    return Machine(device.device_kind, platform_of(device), jax.device_count(), None if None in limits else min(limits))


def resolve_memory(experiment: Experiment, machine: Machine, *, saved: Mapping[str, Any] | None = None) -> Experiment:
    """Returns the experiment with model.remat and train.grad_accum_steps resolved, and `chosen`, which says how.

    Args:
      experiment: returned as it is if its config sets both fields.
      machine: where it trains. If the memory of its devices is not known, the choice is "none" and 1 microbatch.
      saved: the config of the run that continues, whose values are taken. If its microbatches do not divide the rows of
        a device of this machine, the values are chosen anew.

    Raises ConfigError where the mesh cannot divide the rows.
    """
    if not experiment.has_memory_choice:
        return experiment
    mesh = AbstractMesh(sharding.mesh_shape(experiment.mesh, machine.num_devices), sharding.AXES)
    check_mesh(experiment, mesh)
    rows = experiment.train.batch_size // (mesh.shape["data"] * mesh.shape["fsdp"])
    if saved is not None and rows % saved["train"]["grad_accum_steps"] == 0:
        remat, steps = saved["model"]["remat"], saved["train"]["grad_accum_steps"]
        return _with_choice(experiment, remat, steps, "as in the run so far")
    if machine.usable_bytes is None:
        return _with_choice(experiment, "none", 1, f"as the memory of {machine.name} is not known")
    return _first_that_fits(experiment, machine, mesh, rows)


def fewest_that_fit(experiment: Experiment, machine: Machine) -> int | None:
    """Returns the smallest train.grad_accum_steps that fits `machine`, whatever the config sets; None if none does."""
    train = dataclasses.replace(experiment.train, grad_accum_steps=0)
    resolved = resolve_memory(dataclasses.replace(experiment, train=train), machine)
    return None if len(resolved.warnings) > len(experiment.warnings) else resolved.train.grad_accum_steps


def _first_that_fits(experiment: Experiment, machine: Machine, mesh: AbstractMesh, rows: int) -> Experiment:
    """Returns the first choice that fits the memory of a device; with a warning the last one if none fits.

    rows: of a device.
    """
    state = abstract_state(experiment, mesh)
    parameters = device_bytes(state.params)
    fixed = device_bytes(state) + device_bytes(abstract_batch(experiment, sharding.batch_sharding(mesh)))
    fixed += device_bytes(abstract_frozen(experiment, mesh))
    remats = ("none", "dots", "full") if experiment.model.remat == "auto" else (experiment.model.remat,)
    divisors = [n for n in range(1, rows + 1) if rows % n == 0] if experiment.learner.rows_are_independent else [1]
    activations_of = _activations(_with_choice(experiment, "none", 1), mesh, machine.platform)
    for remat in remats:
        activations = activations_of(remat) * (experiment.train.grad_accum_steps or 1)  # of all rows of a device
        for steps in [experiment.train.grad_accum_steps] if experiment.train.grad_accum_steps else divisors:
            arrays = fixed + gradient_bytes(parameters, steps)
            sizes = f"about {(arrays + activations / steps) / GIB:.1f} of {machine.usable_bytes / GIB:.1f} GiB"
            chosen = _with_choice(experiment, remat, steps, f"chosen for {machine.name}: {sizes}")
            if (most := arrays + activations / steps / _ACCURACY) <= machine.usable_bytes:
                return chosen
    remat, steps = experiment.model.remat, experiment.train.grad_accum_steps
    given, remedy = (f" with train.grad_accum_steps={steps}", "set it to 0, ") if steps else ("", "")
    if remat != "auto":
        given, remedy = f" with model.remat={remat!r}", "set it to 'auto', "
    warning = (
        f"a device may not have the memory for this run ({chosen.chosen}, and up to {most / GIB:.1f} GiB once "
        f"compiled, the least that can be chosen{given}): {remedy}split the state over more devices (mesh.fsdp) or use "
        "a smaller model; python -m train.plan prints the memory that a change needs"
    )
    return dataclasses.replace(chosen, warnings=(*experiment.warnings, warning))


def _with_choice(experiment: Experiment, remat: str, steps: int, reason: str = "") -> Experiment:
    """Returns the experiment with these values for those of the two fields that its config leaves open."""
    remat = remat if experiment.model.remat == "auto" else experiment.model.remat
    steps = experiment.train.grad_accum_steps or steps
    config, learner = experiment.config, experiment.learner
    changes = {"model": {"remat": remat}, "train": {"grad_accum_steps": steps}}
    config = {**config, **{section: {**config[section], **fields} for section, fields in changes.items()}}
    model = dataclasses.replace(experiment.model, remat=remat)
    train, setup = (dataclasses.replace(part, grad_accum_steps=steps) for part in (experiment.train, learner.setup))
    learner, reason = type(learner).make(learner.objective, model, setup), f"{describe(remat, steps)}, {reason}"
    chosen = dataclasses.replace(experiment, config=config, train=train, model=model, learner=learner, chosen=reason)
    vars(chosen)["params_shapes"] = experiment.params_shapes  # traced once: the two fields do not change them
    return chosen


def describe(remat: str, grad_accum_steps: int) -> str:
    """Returns the two fields in words: "remat none, 1 microbatch"."""
    return f"remat {remat}, {grad_accum_steps:,} microbatch{'' if grad_accum_steps == 1 else 'es'}"


def gradient_bytes(parameter_bytes: int, grad_accum_steps: int) -> int:
    """Returns the bytes of gradients: a microbatch's are added to those of the earlier ones, so both are in memory."""
    return parameter_bytes * min(grad_accum_steps, 2)


def device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree's leaves on one device, from their shapes and shardings."""
    shapes = ((leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree))
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in shapes)


def abstract_batch(experiment: Experiment, batch_sharding: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, dtypes and shardings of the global batch, from one row of arbitrary text."""
    per_row, plan = experiment.data.examples_per_row, experiment.batch_spec.plan
    zeros = np.zeros(per_row, np.int32)
    denoiser_ids, lengths, variant_ids = zeros, np.full(per_row, experiment.window_specs[0].raw_length, np.int32), None
    if plan is not None:
        denoiser_ids, lengths, variant_ids = (column[0] for column in plan)
    tokens = np.full((per_row, lengths.max()), experiment.vocab.content_start, np.int32)
    windows = Windows(
        tokens=tokens,
        lengths=lengths,
        row_ids=zeros,
        keys=np.arange(per_row, dtype=np.uint64),
        denoiser_ids=denoiser_ids,
        others_tokens=tokens,
        others_lengths=lengths,
        prompt_lengths=zeros + 1,
        labels=zeros,
        begins_document=zeros > 0,
        ends_document=zeros > 0,
        variant_ids=variant_ids,
    )
    rows = experiment.train.batch_size
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype, sharding=batch_sharding)
        for name, array in experiment.collate(windows, 1).items()
    }


def abstract_frozen(experiment: Experiment, mesh: Mesh | AbstractMesh) -> Params:
    """Returns the shapes, dtypes and shardings of the parameters that are not trained (learner.frozen_shapes)."""
    shapes = experiment.learner.frozen_shapes
    return abstract(shapes, sharding.shardings(mesh, shapes))


def activation_bytes(experiment: Experiment, mesh: Mesh | AbstractMesh, platform: str) -> int:
    """Returns the bytes of activations that one device has at once for a microbatch, without those of arguments.

    These are the results that the forward pass keeps for the backward pass and, with model.remat, one layer's, which
    the backward pass recomputes, and their gradients. Assumes that the mesh axis "tensor" splits no activation.

    The loss with a teacher keeps gradients alone (objectives/losses/chunked_cross_entropy.py), but has the logits of
    both models and the two gradients of these in float32, for loss.chunk_size positions, at once.
    """
    return _activations(experiment, mesh, platform)(experiment.model.remat)


def _activations(experiment: Experiment, mesh: Mesh | AbstractMesh, platform: str) -> Callable[[str], int]:
    """Returns model.remat -> the bytes of `activation_bytes`. Each value is traced once."""
    learner, of_logits = experiment.learner, 0
    divisor = experiment.train.grad_accum_steps * mesh.shape["data"] * mesh.shape["fsdp"]
    batch = {
        name: jax.ShapeDtypeStruct((array.shape[0] // divisor, *array.shape[1:]), array.dtype)
        for name, array in abstract_batch(experiment, sharding.batch_sharding(mesh)).items()
    }
    splits_kernels = mesh.shape["fsdp"] * mesh.shape["tensor"] > 1
    if learner.setup.teacher is not None:
        row = scored_length(learner.model, experiment.data.inputs_length, experiment.data.targets_length)
        positions = learner.num_logits(row)
        chunk = min(learner.setup.loss.chunk_size or positions, positions)
        of_logits = 4 * 4 * (experiment.train.batch_size // divisor) * chunk * learner.model.vocab_size

    @functools.cache
    def kept(remat: str) -> int:
        with_remat = dataclasses.replace(learner, model=dataclasses.replace(learner.model, remat=remat))
        with placed(platform=platform, over_devices=_kernel_residuals, splits_kernels=splits_kernels):
            return kept_bytes(with_remat, experiment.params_shapes, batch)

    # Of an encoder-decoder one layer of each stack is counted, of the mean size of all.
    depths = learner.model.num_layers + learner.model.of_decoder.num_layers
    return lambda remat: kept(remat) + 4 * (kept("none") - kept(remat)) // depths + of_logits


def kept_bytes(learner: Learner, params_shapes: Params, batch: Batch) -> int:
    """Returns the bytes that the forward pass of a batch, from its shapes, keeps for the backward pass."""

    def residuals(params: Params, frozen: Params, batch: Batch) -> list[Array]:
        def loss(params: Params) -> Array:
            all_params, weights = {**params, **frozen}, learner.weights(batch)
            return learner.loss(all_params, batch, weights, key=jax.random.key(0), train=True)[0]

        arguments = {id(leaf) for leaf in jax.tree.leaves((params, frozen, batch))}
        leaves = jax.tree.leaves(jax.vjp(loss, params)[1])
        return [jnp.asarray(leaf) for leaf in leaves if id(leaf) not in arguments]

    leaves = jax.eval_shape(residuals, params_shapes, learner.frozen_shapes, batch)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def bias_warnings(experiment: Experiment, platform: str, mesh: Mapping[str, int]) -> list[str]:
    """Returns a warning if cuDNN's attention gets a relative position bias for each row, with the row's mask in it.

    The bias is then [B, H, Q, S] in the compute dtype for each stack, and so is its gradient in each layer; for rows of
    one segment both are [1, H, Q, S] (models/fused_attention.py). mesh: axis -> size.
    """
    has_bias = experiment.model.positions == "relative" and attention_of(experiment, platform)[0] == "cudnn"
    return _biases_of_rows(experiment, mesh) if has_bias else []


def _biases_of_rows(experiment: Experiment, mesh: Mapping[str, int]) -> list[str]:
    model, stacks, reason = experiment.model, _pairs_with_own_biases(experiment), "rows have several segments"
    if not stacks:
        return []
    without = "model.positions='rope' has none"
    if model.merged_attention or has_per_row_masks(experiment):
        reason = "rows have masks of their own"
    else:
        one_segment = "data.examples_per_row=1 and data.documents='join' or 'split'"
        without += f", nor have rows of one segment: {one_segment}, if the objective takes them"
    splits_heads = model.num_heads % mesh["tensor"] == model.num_kv_heads % mesh["tensor"] == 0
    heads = model.num_heads // (mesh["tensor"] if splits_heads else 1)
    rows = experiment.train.batch_size // (mesh["data"] * mesh["fsdp"])
    pair = rows * heads * jnp.dtype(model.dtype).itemsize / GIB
    biases, gradients = (pair * sum(numbers) for numbers in zip(*stacks, strict=True))
    return [
        f"model.positions='relative' is an array of biases for each row here, because {reason}: a device writes "
        f"{biases:.3g} GiB of biases and {gradients:.3g} GiB of their gradients a step; {without}"
    ]


def _pairs_with_own_biases(experiment: Experiment) -> list[tuple[int, int]]:
    """Returns the pairs of query and key of each stack whose cuDNN attention gets biases of each row.

    The second number counts a pair once for each layer.
    """
    model, data = experiment.model, experiment.data
    stacks = [(data.inputs_length**2, model.num_layers, has_per_row_masks(experiment))]
    if model.architecture == "encoder_decoder":
        keys = data.targets_length + data.inputs_length * model.merged_attention
        stacks.append((data.targets_length * keys, model.of_decoder.num_layers, model.merged_attention))
    return [(pairs, pairs * layers) for pairs, layers, has_masks in stacks if has_masks or not model.one_segment]


def _kernel_residuals(function: Callable[..., Array], arguments: Sequence[str], result: str) -> Callable[..., Array]:
    """Returns a function that keeps for the backward pass what a fused attention kernel keeps.

    These are its arguments, and on a TPU its result, which has another layout than the projection of it. The last
    dimension of what a TPU kernel reads and writes is padded to the 128 lanes of a tile, so heads of 64 take twice
    their size. Not every machine can trace such a kernel. The signature is that of models.placement.OverDevices.
    """

    def attend(query: Array, *others: Array) -> Array:
        return query * sum(x.sum() for x in others).astype(query.dtype)

    def attend_in_tiles(*arrays: Array) -> Array:
        tiled = (
            jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % _LANES)]) if "K" in names else array
            for array, names in zip(arrays, arguments, strict=True)
        )
        return jnp.exp(jax.checkpoint(attend)(*tiled))[..., : arrays[0].shape[-1]]  # exp keeps its result

    return attend_in_tiles if target_platform() == "tpu" else jax.checkpoint(attend)
