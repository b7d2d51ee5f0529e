"""The training loop: start or continue a run, step, log, evaluate, save, and stop cleanly."""

import contextlib
import tempfile
import time

import jax
from rich.console import Console

from cluster.cluster import Cluster
from cluster.stopping import StopBarrier
from experiment.experiment import Experiment
from files.paths import in_bucket
from huggingface.teacher import load_teacher
from run.compiled_run import CompiledRun, make_run
from run.memory import resolve_memory, this_machine
from run.step import TrainState
from train.display import Display
from train.recorder import Recorder
from train.start import check_new_run, check_shared, make_start, make_state, restore_newest_intact
from train.summary import print_summary
from workdir.run_config import flatten
from workdir.trackers import check_trackers
from workdir.workdir import Workdir


def train_and_evaluate(experiment: Experiment, workdir: Workdir | str, *, console: Console | None = None) -> bool:
    """Trains to `train.steps` or `train.epochs`, from the newest checkpoint in `workdir` if there is one.

    Leaves config.json, metrics.jsonl, checkpoints/ and the files of trackers, such as tensorboard/, in `workdir`, which
    is locked meanwhile. It may be a folder in a bucket, as gs://bucket/run or s3://bucket/run.

    Args:
      experiment: the run's.
      workdir: the folder of the run.
      console: where progress is printed; standard output by default.

    Returns whether the run made all of its steps; False after a signal to stop, once its checkpoint is saved. Raises
    ConfigError where the workdir cannot be written, is in use by another process, contains another run or is not that
    of process 0, and where training cannot continue.
    """
    # The order of a start:
    # 1. The trackers are installed, the folder is writable, no other run writes in it, it is that of all processes, and
    #    a run in it has not lost its checkpoints.
    # 2. A teacher, if any, is loaded. Corpus, mesh and compiled steps are made from the config, and train.epochs is
    #    resolved to train.steps, after what the config leaves to be chosen for the memory of a device, which a
    #    continued run has in its config. The corpus must be the same in all processes, and it, the teacher and the
    #    newest checkpoint, if any, must be this run's.
    # 3. The state is the checkpoint's, or a new one, possibly with another run's Transformer (train.init_from). Its
    #    step is the number of the next batch. Damaged checkpoints are renamed, and the newest intact one is taken.
    # 4. metrics.jsonl loses the lines after that step, and the counters continue. From here on a continued run equals
    #    the uninterrupted one.
    workdir, is_first = Workdir(workdir), jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        with Cluster().check_equal():
            check_trackers(experiment.train.trackers)
            check_new_run(workdir)
            lock = stack.enter_context(workdir.lock()) if is_first else None
        if jax.process_count() > 1:
            check_shared(workdir, lock)
        with Cluster().check_equal():
            workdir.check_not_lost()
        checkpoints = stack.enter_context(workdir.checkpoints(keep=experiment.train.keep_checkpoints))
        has_teacher = experiment.learner.setup.distillation.teacher
        experiment, frozen = load_teacher(experiment) if has_teacher else (experiment, ())
        # Process 0 makes a token store that is missing; the others find it where data.cache_dir is shared.
        most = 3 * len(experiment.data.of_corpora())
        with Cluster().check_equal() as same_everywhere, Cluster().exchanges(most) as exchanges:
            saved = workdir.config() if checkpoints.steps() else None
            experiment = resolve_memory(experiment, this_machine(), saved=saved)
            run = make_run(experiment, frozen=frozen, show_progress=console is None, exchanges=exchanges)
            start = make_start(run, workdir, checkpoints)
            same_everywhere |= flatten({name: start.config.get(name, {}) for name in ("corpus", "teacher")})
            same_everywhere["checkpoints"] = checkpoints.steps()
            same_everywhere["model.remat"] = experiment.model.remat
            same_everywhere["train.grad_accum_steps"] = experiment.train.grad_accum_steps
        start, state = (restore_newest_intact if start.step else make_state)(run, start)
        config = run.experiment.train
        display = Display(config.steps, start.step, console=console, rows=experiment.printed_groups)
        stack.enter_context(display)
        if is_first:  # which alone prints, and counts the n-grams of the trigram model
            workdir.write_tokenizer(run.experiment.tokenizer)
            workdir.write_config(start.config)
            print_summary(run, display, str(workdir))
        stop = stack.enter_context(StopBarrier(display.warn, config.checkpoint_minutes))
        recorder = stack.enter_context(Recorder(run, start, display))
        for line in start.warnings:
            display.warn(line)
        if start.origin:
            display.message(start.origin)
        if start.step == 0 and config.init_from:  # whether it is the model that was meant, and what training changes
            recorder.evaluate(0, state.eval_params)
        state = train(run, recorder, state, start.step, stop)
        return recorder.finish(state)


def train(run: CompiledRun, recorder: Recorder, state: TrainState, start: int, stop: StopBarrier) -> TrainState:
    """Trains from step `start` to `train.steps`, or until a stop is requested. The returned state is checkpointed."""
    config = run.experiment.train
    if start >= config.steps:
        return state
    batches, pending = run.train_batches(start), None
    recorder.restart_clock(start)
    # The first step of a start compiles, so the trace begins with the second.
    num_traced = config.profile_steps * (jax.process_index() == 0)
    traced = range(start + 2, min(start + 2 + num_traced, config.steps + 1))
    stop.restart()
    for step in range(start + 1, config.steps + 1):
        began = time.perf_counter()
        batch = next(batches)
        recorder.read(batch, time.perf_counter() - began)
        if step in traced[:1]:
            trace_folder = recorder.workdir.tensorboard
            if in_bucket(trace_folder):  # the profiler writes to local folders alone
                trace_folder = tempfile.mkdtemp(prefix="cloze-trace-")
            jax.profiler.start_trace(trace_folder)
        state, metrics = run.train_step(state, run.to_devices(batch))
        # Report the previous step while the device computes this one, so that the device never waits.
        if pending is not None:
            recorder.report(*pending)
        pending = step, metrics
        if step in traced[-1:]:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
            recorder.display.message(f"steps {traced[0]} to {step} are profiled: tensorboard --logdir={trace_folder}")
            recorder.restart_clock(step)
        if step == start + 1:
            jax.block_until_ready(metrics)  # exclude compilation from the speed
            recorder.restart_clock(step)
        evaluates = step % config.eval_every == 0 or step == config.steps
        request = stop.reached(step)
        saves = request != "" or step % config.checkpoint_every == 0 or step == config.steps
        if evaluates or saves:
            recorder.report(*pending)
            pending = None
            eval_loss = recorder.evaluate(step, state.eval_params) if evaluates else None
            if saves:
                recorder.save(step, state, eval_loss)
                stop.restart()
            recorder.restart_clock(step)
        if request == "stop":
            break
    return state
