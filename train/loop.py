"""The training loop: start or continue a run, step, log, evaluate, save, and stop cleanly."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from cluster.cluster import Cluster
from cluster.stopping import StopBarrier
from experiment.experiment import Experiment
from plan.memory_choice import resolve_memory, this_machine
from run.compiled_run import make_run
from run.evaluation import evaluate
from run.step import TrainState
from train.display import Display
from train.profile import StepProfile
from train.recorder import Recorder
from train.start import (
    Start,
    check_shared,
    first_whole_state,
    make_start,
    make_workdir,
    open_checkpoints,
    write_start,
)
from train.summary import print_summary
from workdir.bucket_lock import lock_of
from workdir.lost_checkpoints import check_not_lost
from workdir.run_config import flatten, read_config
from workdir.tracking.writer import check_trackers


def train_and_evaluate(
    experiment: Experiment, workdir: str, *, console: Console | None = None, start_anew: bool = False
) -> bool:
    """Trains to `train.steps` or `train.epochs`, from the newest checkpoint in `workdir` if there is one.

    Leaves config.json, metrics.jsonl, checkpoints/ and the files of trackers, such as tensorboard/, in `workdir`, which
    is locked meanwhile (workdir/workdir_lock.py). It may be a folder in a bucket, as gs://bucket/run or s3://bucket/run.

    Args:
      experiment: the run's.
      workdir: the folder of the run.
      console: where progress is printed; standard output by default.
      start_anew: whether a run in `workdir` that has no checkpoint is discarded if it lost its checkpoints or has
        another config.

    Returns whether the run made all of its steps; False after a signal to stop, once its checkpoint is saved. Raises
    ConfigError where the workdir cannot be written, is in use by another process, contains another run or is not that
    of process 0, and where training cannot continue.
    """
    # The order of a start:
    # 1. The trackers are installed, the folder is writable, no other run writes in it, it is that of all processes, and
    #    a run in it has not lost its checkpoints.
    # 2. Corpus, mesh and compiled steps are made from the config, and train.epochs is resolved to train.steps, after
    #    what the config leaves to be chosen for the memory of a device, which a continued run has in its config. The
    #    corpus must be the same in all processes, and it and the newest checkpoint, if any, must be this run's.
    # 3. The state is the checkpoint's, or a new one, possibly with another run's Transformer (train.init_from). Its
    #    step is the number of the next batch. Damaged checkpoints are renamed, and the newest whole one is taken.
    # 4. metrics.jsonl loses the lines after that step, and the counters continue. From here on a continued run equals
    #    the uninterrupted one.
    with contextlib.ExitStack() as stack:
        with Cluster().check_equal():
            check_trackers(experiment.train.trackers)
            make_workdir(workdir)
            lock = stack.enter_context(lock_of(workdir)) if jax.process_index() == 0 else None
        check_shared(workdir, lock)
        with Cluster().check_equal():
            check_not_lost(workdir, start_anew=start_anew)
        checkpoints = open_checkpoints(workdir, keep=experiment.train.keep_checkpoints)
        stack.callback(checkpoints.close)
        with Cluster().check_equal() as same_everywhere:
            saved = read_config(workdir) if checkpoints.latest_step() else None
            experiment = resolve_memory(experiment, this_machine(), saved=saved)
            run = make_run(experiment, show_progress=console is None)
            start = make_start(run, workdir, checkpoints, start_anew=start_anew)
            same_everywhere |= flatten({"corpus": start.config["corpus"]}) | {
                "checkpoints": checkpoints.steps(),
                "model.remat": experiment.model.remat,
                "train.grad_accum_steps": experiment.train.grad_accum_steps,
            }
        config = run.experiment.train
        start, state = first_whole_state(run, start)
        if lock is not None:
            lock.check()
            write_start(run, start)
        display = stack.enter_context(
            Display(config.steps, start.step, console=console, rows=experiment.printed_groups)
        )
        stop = stack.enter_context(StopBarrier(display.warn, config.checkpoint_minutes))
        recorder = stack.enter_context(Recorder(run, start, display, functools.partial(evaluate, run), lock=lock))
        print_summary(run, display, workdir)
        print_start(display, start)
        steps = Steps(
            recorders=[recorder],
            batches=run.train_batches,
            to_devices=run.to_devices,
            train_step=run.train_step,
            metrics_of=lambda metrics, _: metrics,
            state_of=lambda state, _: state,
        )
        state = train(steps, state, start.step, stop)
        return recorder.finish(state)


def print_start(display: Display, start: Start) -> None:
    """Prints the warnings of a start, and the step from which the run continues or the parameters it starts with."""
    for warning in start.warnings:
        display.warn(warning)
    if start.step:
        display.message(f"continuing from step {start.step}")
    elif start.origin:
        display.message(f"{'start':>10}  {start.origin}")


@dataclasses.dataclass(frozen=True)
class Steps:
    """What the loop trains: the steps of one run, or of several runs at the same time, with one recorder for each.

    The runs have the same `train` fields. A batch, a state and the metrics of a step are those of all runs together.
    """

    recorders: Sequence[Recorder]
    batches: Callable[[int], Iterator[dict[str, np.ndarray]]]  # from this batch number on, on the host
    to_devices: Callable[[dict[str, np.ndarray]], Any]
    train_step: Callable[[Any, Any], tuple[Any, dict[str, Any]]]  # (state, batch) -> (state, metrics)
    metrics_of: Callable[[dict[str, Any], int], dict[str, Any]]  # (metrics on the host, k) -> those of run k
    state_of: Callable[[Any, int], TrainState]  # (state, k) -> that of run k

    def report(self, step: int, device_metrics: dict[str, Any]) -> None:
        """Waits for the end of `step` and reports it to the recorders."""
        metrics = jax.device_get(device_metrics)
        now = time.perf_counter()
        for k, recorder in enumerate(self.recorders):
            recorder.report(step, self.metrics_of(metrics, k), now)

    def restart_clocks(self, step: int) -> None:
        """Starts to measure the speed after `step`."""
        for recorder in self.recorders:
            recorder.restart_clock(step)

    def evaluate_and_save(self, step: int, state: Any, *, evaluates: bool, saves: bool) -> None:
        """Evaluates each run at `step`, starts to write its checkpoint, or both."""
        for k, recorder in enumerate(self.recorders):
            state_of_run = self.state_of(state, k)
            eval_loss = recorder.evaluate(step, state_of_run.eval_params) if evaluates else None
            if saves:
                recorder.save(step, state_of_run, eval_loss)


def train(steps: Steps, state: Any, start: int, stop: StopBarrier) -> Any:
    """Trains from step `start` to `train.steps`, or until a stop is requested. The returned state is checkpointed."""
    recorders = steps.recorders
    config = recorders[0].run.experiment.train
    if start >= config.steps:
        return state
    batches, pending = steps.batches(start), None
    # The first step of a start compiles, so the profile begins with the second.
    profile = StepProfile(recorders[0].workdir, first=start + 2, steps=config.profile_steps)
    steps.restart_clocks(start)
    stop.restart()
    for step in range(start + 1, config.steps + 1):
        began = time.perf_counter()
        host_batch = next(batches)
        waited = time.perf_counter() - began
        for recorder in recorders:
            recorder.read(host_batch, waited)
        profile.before(step)
        state, metrics = steps.train_step(state, steps.to_devices(host_batch))
        # Report the previous step while the device computes this one, so that the device never waits.
        if pending is not None:
            steps.report(*pending)
        pending = step, metrics
        if profile.after(step, metrics):
            recorders[0].display.message(
                f"steps {start + 2} to {step} are profiled: tensorboard --logdir={recorders[0].workdir}"
            )
            steps.restart_clocks(step)
        if step == start + 1:
            jax.block_until_ready(metrics)  # exclude compilation from the speed
            steps.restart_clocks(step)
        evaluates = step % config.eval_every == 0 or step == config.steps
        request = stop.reached(step)
        saves = request != "" or step % config.checkpoint_every == 0 or step == config.steps
        if evaluates or saves:
            steps.report(*pending)
            pending = None
            steps.evaluate_and_save(step, state, evaluates=evaluates, saves=saves)
            steps.restart_clocks(step)
        if saves:
            stop.restart()
        if request == "stop":
            break
    return state
