"""An experiment on this machine: the mesh, the corpus, the sharding of the state and the compiled steps."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from cluster.devices import chip_of
from contract.errors import ConfigError
from data.tokenizers.base import Tokenizer
from data.windows.batches import Batches, loader
from data.windows.heldout_batches import Heldout
from experiment.experiment import Experiment
from experiment.optimizer import make_optimizer
from learners.learner import Batch
from models.kernels import choose_attention
from models.placement import placed, platform_of
from models.transformer import Params
from run import sharding
from run.corpus import Corpora, open_corpora, resolve_epochs
from run.sharding import constrain_rows, over_devices, per_device, per_part, splits_rows
from run.step import TrainState, init_state, make_eval_step, make_train_step
from workdir.checkpoint import abstract


@dataclasses.dataclass(frozen=True)
class CompiledRun:
    """What the training loop needs in addition to a state. Made by `make_run`, and immutable."""

    experiment: Experiment
    mesh: Mesh
    corpora: Corpora
    optimizer: optax.GradientTransformation
    state_shapes: TrainState  # of jax.ShapeDtypeStruct with shardings: how a checkpoint is restored
    batch_sharding: NamedSharding
    init_step: Callable[[np.ndarray], TrainState]  # compiled: seed_array(seed) -> the state before the first step
    # compiled: (state, batch, seed_array(seed), *frozen) -> (state, metrics); donates the state
    compiled_step: Callable[..., tuple[TrainState, dict[str, Any]]]
    # The arrays of learner.frozen_shapes, which a run that trains adds; evaluations do not need them.
    frozen: tuple[Params, ...] = ()

    @property
    def state_shardings(self) -> TrainState:
        """The sharding of each array of the state."""
        return jax.tree.map(lambda shape: shape.sharding, self.state_shapes)

    @property
    def peak_seconds(self) -> float | None:
        """The seconds of a step's model FLOPs (models/flops.py) at the peak of all devices; None if that is unknown.

        Divided by the measured time of a step it is the model FLOPs utilization (MFU).
        """
        chip = chip_of(jax.devices()[0].device_kind)
        return None if chip is None else self.experiment.train_step_flops / (chip.peak_flops * jax.device_count())

    def init_state(self) -> TrainState:
        """The state before the first step. Each device initializes its own shards."""
        return self.init_step(seed_array(self.experiment.seed))

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after an update from a batch of `to_devices`, and metrics. Donates the state."""
        return self.compiled_step(state, batch, seed_array(self.experiment.seed), *self.frozen)

    def train_batches(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """This process's rows of batch `start`, `start` + 1, ..., prefetched by reader threads."""
        data = self.experiment.data
        return loader(self.train_dataset, start=start, threads=data.reader_threads, prefetch=data.prefetch_batches)

    @functools.cached_property
    def train_dataset(self) -> Batches:
        """The training batches, of which this process reads its rows, and counts of their windows."""
        return self.experiment.batches(self.corpora.train_documents, local_rows=self._local_rows)

    @functools.cached_property
    def heldout(self) -> Heldout:
        """This process's rows of the held-out batches of every evaluation."""
        return self.experiment.heldout(self.corpora.heldout_documents, local_rows=self._local_rows)

    @functools.cached_property
    def eval_step(self) -> Callable[[Any, Batch], dict[str, Any]]:
        """The compiled evaluation step: parameters and a held-out batch -> Sums by example."""
        learner = self.experiment.learner
        setup = dataclasses.replace(learner.setup, num_groups=self.heldout.num_groups)
        tokenizer, size = self.experiment.tokenizer, self.experiment.model.vocab_size
        step = make_eval_step(
            dataclasses.replace(learner, setup=setup),
            bytes_of_token=jnp.asarray(bytes_of_tokens(tokenizer, size)) if self.experiment.byte_metric else None,
            unk=self.experiment.vocab.unk,
        )
        in_shardings = self.state_shardings.params, self.batch_sharding
        return jax.jit(on_mesh(step, self.batch_sharding), in_shardings=in_shardings)

    def to_devices(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array | np.ndarray]:
        """What `train_step` takes, made from this process's rows: the global batch; under pmap each device's rows."""
        if self.experiment.mesh.backend == "pmap":
            count = jax.local_device_count()
            return {name: array.reshape(count, -1, *array.shape[1:]) for name, array in batch.items()}
        return sharding.to_global(batch, self.batch_sharding)

    @property
    def _local_rows(self) -> list[int]:
        return sharding.local_rows(self.batch_sharding, self.experiment.train.batch_size)


def bytes_of_tokens(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """Returns the UTF-8 bytes that each token spells, int32 [size]. size: at least the tokenizer's number of ids."""
    return np.pad(tokenizer.token_bytes, (0, size - tokenizer.vocab.size)).astype(np.int32)


def make_run(experiment: Experiment, *, mesh: Mesh | None = None, frozen: tuple = (), **opening: Any) -> CompiledRun:
    """Opens or builds the corpus, resolves train.epochs with it, and makes the run. Nothing is compiled yet.

    mesh: that of the config by default. frozen: that of the run. opening: options of `open_corpora`. Raises
    ConfigError for what this machine cannot do, and as `resolve_epochs` does.
    """
    mesh = sharding.make_mesh(experiment.mesh) if mesh is None else mesh
    batch_sharding = sharding.batch_sharding(mesh)
    check_mesh(experiment, mesh)
    attention_of(experiment, platform_of(mesh.devices.flat[0]))
    state_shapes = abstract_state(experiment, mesh)  # before a store is made: the mesh may not divide it
    corpora = open_corpora(experiment, **opening)
    if experiment.train.epochs:
        experiment = resolve_epochs(experiment, corpora.train_documents)
    optimizer = make_optimizer(experiment.optimizer, experiment.train.steps, experiment.model)
    state_shardings = jax.tree.map(lambda shape: shape.sharding, state_shapes)
    run = CompiledRun(
        experiment=experiment,
        mesh=mesh,
        corpora=corpora,
        frozen=frozen,
        optimizer=optimizer,
        state_shapes=state_shapes,
        batch_sharding=batch_sharding,
        init_step=jax.jit(functools.partial(initial_state, experiment, optimizer), out_shardings=state_shardings),
        compiled_step=compiled_train_step(experiment, optimizer, state_shardings, batch_sharding),
    )
    _ = run.train_dataset, run.heldout  # raises at the start instead of at the first evaluation
    return run


def compiled_train_step(
    experiment: Experiment,
    optimizer: optax.GradientTransformation,
    state_shardings: TrainState,
    batch_sharding: NamedSharding,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """The train step, compiled on first use as `mesh.backend` selects: jit over the mesh, or pmap with copied state.

    The step's third argument is `seed_array` of the seed, so that JAX's compilation cache has one program for all
    seeds. The fourth, if `learner.frozen_shapes` is not empty, is their arrays.
    """
    mesh, is_pmap = batch_sharding.mesh, experiment.mesh.backend == "pmap"
    learner = experiment.learner
    frozen: list[Any] = [sharding.shardings(mesh, learner.frozen_shapes)] if learner.setup.teacher else []
    options: dict[str, Any] = {"axis_name": "data"} if is_pmap else {}
    if not is_pmap and experiment.learner.rows_are_independent and splits_rows(mesh):
        options = {"axis_name": "data", "per_part": functools.partial(per_part, mesh=mesh)}

    def train_step(state: TrainState, batch: Batch, seed: np.ndarray, *frozen: Params) -> tuple[TrainState, Any]:
        if experiment.has_memory_choice:
            raise ValueError("run.memory.resolve_memory must resolve model.remat and train.grad_accum_steps")
        step = make_train_step(
            experiment.learner,
            optimizer,
            grad_accum_steps=experiment.train.grad_accum_steps,
            seed=seed,
            ema_decay=experiment.train.ema_decay,
            **options,
        )
        return step(state, batch, *frozen)

    if is_pmap:
        in_axes = (None, 0, None, *[None] * len(frozen))
        return jax.pmap(sharding.of_part(train_step), "data", in_axes=in_axes, out_axes=None, donate_argnums=0)
    return jax.jit(
        on_mesh(train_step, batch_sharding),
        in_shardings=(state_shardings, batch_sharding, None, *frozen),
        out_shardings=(state_shardings, None),
        donate_argnums=0,
    )


def seed_array(seed: int) -> np.ndarray:
    """Returns an int32 [] of which jax.random.key makes the same key as of `seed`: the lowest 32 bits."""
    return np.asarray(np.int64(seed).astype(np.int32))


def on_mesh(step: Callable[..., Any], batch_sharding: NamedSharding) -> Callable[..., Any]:
    """`step`, traced with the sharding of activations and the platform that the models compile for."""
    mesh = batch_sharding.mesh

    @functools.wraps(step)
    def placed_step(*args: Any) -> Any:
        with placed(
            constrain=functools.partial(constrain_rows, sharding=batch_sharding),
            per_device=functools.partial(per_device, mesh=mesh),
            over_devices=functools.partial(over_devices, mesh=mesh),
            platform=platform_of(mesh.devices.flat[0]),
            splits_kernels=mesh.shape["fsdp"] * mesh.shape["tensor"] > 1,
        ):
            return step(*args)

    return placed_step


def attention_of(experiment: Experiment, platform: str) -> tuple[str, str]:
    """The attention kernel for the longest rows on `platform` (models.placement.platform_of), and the reason.

    Raises ConfigError for a kernel that cannot run there.
    """
    model, data = experiment.model, experiment.data
    lengths = (data.inputs_length, data.targets_length)[: 1 + (model.architecture == "encoder_decoder")]
    try:
        return choose_attention(model, platform, length=max(lengths), per_row_masks=has_per_row_masks(experiment))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def has_per_row_masks(experiment: Experiment) -> bool:
    """Whether rows have a prefix or an attention order, so that segments do not determine their masks."""
    in_order = any(each.objective.has_attention_order or each.objective.has_blocks for each in experiment.denoisers)
    return in_order or (experiment.model.architecture == "decoder_only" and experiment.model.has_prefix)


def abstract_state(experiment: Experiment, mesh: Mesh) -> TrainState:
    """The state's shapes, dtypes and shardings on `mesh`, without the state."""
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps, experiment.model)
    shapes = jax.eval_shape(functools.partial(initial_state, experiment, optimizer, 0), experiment.params_shapes)
    return abstract(shapes, sharding.shardings(mesh, shapes))


def initial_state(
    experiment: Experiment,
    optimizer: optax.GradientTransformation,
    seed: int | np.ndarray,
    params: Params | None = None,
) -> TrainState:
    """The state before the first step of `experiment` with the seed `seed`, or with the parameters `params`."""
    return init_state(experiment.learner, optimizer, seed, experiment.model.dtype, experiment.train.ema_decay, params)


def check_mesh(experiment: Experiment, mesh: Mesh | AbstractMesh) -> None:
    """Raises ConfigError where `mesh` cannot divide the rows of a batch."""
    config = experiment.train
    rows, steps = mesh.shape["data"] * mesh.shape["fsdp"], config.grad_accum_steps or 1  # 0: chosen before training
    if config.batch_size % (rows * steps):
        raise ConfigError(
            f"train.batch_size={config.batch_size} must be a multiple of {rows * steps}: "
            f"{rows} devices share its rows (mesh.data * mesh.fsdp), each in train.grad_accum_steps="
            f"{steps} parts{'' if config.batch_size % rows else '; train.grad_accum_steps=0 has the fewest that fit'}"
        )
