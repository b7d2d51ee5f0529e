"""Several seeds of one experiment, trained at the same time on one set of devices: jax.vmap of the train step."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from contract.errors import ConfigError
from files.storage import real_path
from workdir.bucket_lock import Lock, lock_of
from workdir.checkpoint import Checkpoints
from train.display import Display
from experiment.experiment import Experiment
from run.evaluation import evaluate
from learners.learner import Batch
from train.loop import Steps, print_start, train
from workdir.lost_checkpoints import check_not_lost
from plan.memory_choice import resolve_memory, this_machine
from train.recorder import Recorder
from run.compiled_run import CompiledRun, make_run, on_mesh, seed_array, seeded_train_step
from workdir.run_config import flatten, read_config
from run.per_device import over_devices
from cluster.signals import StopRequest
from train.start import Start, first_state, make_start, make_workdir, open_checkpoints, write_start
from run.step import TrainState
from train.summary import print_summary
from workdir.tracking.writer import check_trackers

# Fields in which the experiments may differ: the compiled step and the corpus do not depend on them.
MAY_DIFFER = ("seed", "train.init_from")


def train_side_by_side(
    experiments: Sequence[Experiment], workdirs: Sequence[str], *, console: Console | None = None
) -> bool:
    """Trains experiments that differ in MAY_DIFFER alone, each in its own workdir, at the same time.

    Leaves in each workdir what train.loop.train_and_evaluate leaves, which may also continue the run, and results equal
    its results up to rounding. The training states and the batches are stacked, [K, ...], and each device holds its
    part of all of them; evaluations are made one after another. `seconds`, `tokens_per_second` and `mfu` of a run
    relate its own work to the time of the steps that all runs share.

    Each run continues from its newest checkpoint. If these are of different steps, because the program was killed while
    it saved them, unfinished runs return to the newest step of which all of them have a checkpoint, if that is the
    newest of one of them. Otherwise, runs of equal steps are trained together, and the groups one after another.

    console: where progress is printed, in lines that name the seed; standard output by default.

    Returns whether the runs made all of their steps; False after a signal to stop, once the checkpoints are saved.
    Raises ConfigError as train_and_evaluate does, naming the run, which ends all of them; and for experiments that
    differ in other fields, equal seeds, equal workdirs, mesh.backend="pmap" and several processes.
    """
    _check(experiments, workdirs)
    check_trackers(experiments[0].train.trackers)
    with contextlib.ExitStack() as stack:
        checkpoints, locks = [], []
        for experiment, workdir in zip(experiments, workdirs, strict=True):
            make_workdir(workdir)
            locks.append(stack.enter_context(lock_of(workdir)))
            check_not_lost(workdir, start_anew=False)
            checkpoints.append(open_checkpoints(workdir, keep=experiment.train.keep_checkpoints))
            stack.callback(checkpoints[-1].close)
        continued = [workdir for workdir, saved in zip(workdirs, checkpoints, strict=True) if saved.latest_step()]
        experiment = resolve_memory(
            experiments[0],
            this_machine(),
            saved=read_config(continued[0]) if continued else None,
            side_by_side=len(experiments),
        )
        shared = make_run(experiment, show_progress=console is None)
        runs = [shared.with_seed(experiment.seed, experiment.train.init_from) for experiment in experiments]
        first_steps = _first_steps(checkpoints, shared.experiment.train.steps)
        starts = []
        for run, workdir, saved, step in zip(runs, workdirs, checkpoints, first_steps, strict=True):
            with _naming(run, workdir):
                starts.append(make_start(run, workdir, saved, step=step))
        groups: dict[int, list[int]] = {}
        for k, start in enumerate(starts):
            groups.setdefault(start.step, []).append(k)
        display = Display(shared.experiment.train.steps, 0, console=console, live=False)
        print_summary(shared, display, ", ".join(workdirs))
        return all(
            _train_group(shared, [(runs[k], starts[k], locks[k]) for k in members], console)
            for _, members in sorted(groups.items())
        )


def _train_group(shared: CompiledRun, group: Sequence[tuple[CompiledRun, Start, Lock]], console: Console | None) -> bool:
    """Trains runs, whose starts are of the same step, and returns whether they made all of their steps.

    Args:
      shared: makes the evaluations of all runs, so that their step is compiled once.
      group: the runs, their starts and the locks of their workdirs.
      console: where progress is printed.
    """
    config, first = shared.experiment.train, group[0][1].step
    with contextlib.ExitStack() as stack:
        # Before later checkpoints are deleted, because an earlier one may be damaged.
        starts, states = map(list, zip(*(first_state(run, start) for run, start, _ in group), strict=True))
        recorders = []
        for (run, _, lock), start in zip(group, starts, strict=True):
            label = f"seed {run.experiment.seed}: "
            rows = run.experiment.printed_groups
            display = Display(config.steps, first, console=console, live=False, rows=rows, label=label)
            lock.check()
            write_start(run, start)
            start.checkpoints.delete_after(first)
            recorder = Recorder(
                run, start, display, functools.partial(evaluate, shared), lock=lock, name=_name(run, start.workdir)
            )
            recorders.append(stack.enter_context(recorder))
            print_start(display, start)
        stop = stack.enter_context(StopRequest(recorders[0].display.warn))
        stacked = StackedRuns([run for run, _, _ in group])
        state = stacked.stack(states)
        states.clear()  # frees their arrays
        steps = Steps(
            recorders=recorders,
            batches=stacked.train_batches,
            to_devices=stacked.to_devices,
            train_step=stacked.train_step,
            metrics_of=lambda metrics, k: jax.tree.map(lambda array: array[k], metrics),
            state_of=stacked.state_of,
        )
        state = train(steps, state, first, stop)
        return all([recorder.finish(stacked.state_of(state, k)) for k, recorder in enumerate(recorders)])


class StackedRuns:
    """Runs of one compiled train step, jax.vmap of the ordinary step over stacked states, batches and seeds, [K, ...].

    Compiled functions are compiled on first use. runs: of `CompiledRun.with_seed` of one run.
    """

    def __init__(self, runs: Sequence[CompiledRun]):
        self._runs = runs
        run = runs[0]
        self._seeds = np.stack([seed_array(run.experiment.seed) for run in runs])
        self._batch_sharding = stacked_sharding(run.batch_sharding)
        shardings = jax.tree.map(stacked_sharding, run.state_shardings)
        self._step = compiled_side_by_side_step(run.experiment, run.optimizer, run.state_shardings, run.batch_sharding)
        self._stack = jax.jit(
            lambda *states: jax.tree.map(lambda *arrays: jnp.stack(arrays), *states), out_shardings=shardings
        )
        self._state_of = jax.jit(
            lambda state, k: jax.tree.map(lambda array: array[k], state),
            in_shardings=(shardings, None),
            out_shardings=run.state_shardings,
        )

    def stack(self, states: Sequence[TrainState]) -> TrainState:
        """Returns the stacked state of the runs' states."""
        return self._stack(*states)

    def state_of(self, state: TrainState, k: int) -> TrainState:
        """Returns run k's part of a stacked state, a copy."""
        return self._state_of(state, k)

    def train_batches(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields batch `start`, `start` + 1, ... of all runs, arrays [K, B, ...]."""
        for batches in zip(*(run.train_batches(start) for run in self._runs), strict=True):
            yield {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def to_devices(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns a batch of `train_batches` on the devices, which share the rows."""
        return {name: jax.device_put(array, self._batch_sharding) for name, array in batch.items()}

    def train_step(self, state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, Any]]:
        """Returns the stacked state after an update of each run, and stacked metrics. Donates the state."""
        return self._step(state, batch, self._seeds)


def compiled_side_by_side_step(
    experiment: Experiment,
    optimizer: optax.GradientTransformation,
    state_shardings: TrainState,
    batch_sharding: NamedSharding,
) -> Callable[[TrainState, Batch, np.ndarray], tuple[TrainState, dict[str, Any]]]:
    """Returns (states, batches, seeds) -> (states, metrics), all [K, ...], compiled on first use; donates the states.

    The arguments are those of run.compiled_run.compiled_train_step; the shardings are those of a single run.
    """
    shardings = jax.tree.map(stacked_sharding, state_shardings)
    return jax.jit(
        on_mesh(
            jax.vmap(seeded_train_step(experiment, optimizer, batch_sharding.mesh)),
            batch_sharding,
            over_devices_with_equal_heads,
        ),
        in_shardings=(shardings, stacked_sharding(batch_sharding), None),
        out_shardings=(shardings, None),
        donate_argnums=0,
    )


def over_devices_with_equal_heads(
    function: Callable[..., jax.Array], arguments: Sequence[str], result: str, *, mesh: Mesh
) -> Callable[..., jax.Array]:
    """Returns run.per_device.over_devices, of arguments whose dimensions "1" are broadcast to all rows and heads.

    Under jax.vmap, JAX's rule for cuDNN's attention reshapes a mask or a bias as if it had all rows and heads, and
    fails for one row or one head.
    """
    named = [names.replace("1", "B" if names.startswith("1") else "H") for names in arguments]
    run = over_devices(function, named, result, mesh=mesh)

    def run_with_equal_heads(*arrays: jax.Array) -> jax.Array:
        rows, heads = arrays[0].shape[:2]  # the first argument are queries, BHQK
        sizes = {"B": rows, "H": heads}

        def broadcast(array: jax.Array, given: str, names: str) -> jax.Array:
            shape = [sizes[names[i]] if given[i] == "1" else size for i, size in enumerate(array.shape)]
            return jnp.broadcast_to(array, shape)

        return run(*map(broadcast, arrays, arguments, named))

    return run_with_equal_heads


def stacked_sharding(sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding of arrays that are stacked along a new first axis, which is not split."""
    return NamedSharding(sharding.mesh, P(None, *sharding.spec))


def _check(experiments: Sequence[Experiment], workdirs: Sequence[str]) -> None:
    """Raises ConfigError unless the experiments can train side by side in these workdirs."""
    first = flatten(experiments[0].config)
    for experiment in experiments[1:]:
        other = flatten(experiment.config)
        fields = [name for name in {**first, **other} if first.get(name) != other.get(name) and name not in MAY_DIFFER]
        if fields:
            name = fields[0]
            raise ConfigError(
                f"{name}={first.get(name)!r} and {name}={other.get(name)!r} cannot train side by side: the experiments "
                f"may differ in {' and '.join(MAY_DIFFER)} alone, and {len(fields) - 1} more fields differ"
            )
    if experiments[0].mesh.backend == "pmap":
        raise ConfigError("mesh.backend='pmap' must be 'jit' for seeds side by side, or train them one after another")
    if jax.process_count() > 1:
        raise ConfigError("seeds cannot train side by side in several processes: train them one after another")
    seeds = [experiment.seed for experiment in experiments]
    for what, values in (
        ("seeds", seeds),
        ("workdirs", [real_path(workdir) for workdir in workdirs]),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"the {what} {', '.join(map(str, values))} must differ: each is one run")


def _first_steps(checkpoints: Sequence[Checkpoints], steps: int) -> list[int]:
    """Returns the step that each run continues from, as described at train_side_by_side. steps: of a finished run."""
    newest = [saved.latest_step() or 0 for saved in checkpoints]
    unfinished = [k for k, step in enumerate(newest) if step < steps]
    common = min((newest[k] for k in unfinished), default=0)
    if all(common in checkpoints[k].steps() for k in unfinished):
        for k in unfinished:
            newest[k] = common
    return newest


@contextlib.contextmanager
def _naming(run: CompiledRun, workdir: str) -> Iterator[None]:
    """Adds the name of the run to a ConfigError within this context."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_name(run, workdir) + str(error)) from error


def _name(run: CompiledRun, workdir: str) -> str:
    return f"seed {run.experiment.seed} ({workdir}): "
