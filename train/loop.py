"""The training loop: start or continue a run, step, log, evaluate, save, and stop cleanly."""

import math
import os
import time
from typing import Any

import jax
import numpy as np

from contract.errors import ConfigError
from data.split import heldout_digest
from train.agreement import agreement
from train.checkpoint import Checkpoints
from train.counters import Counters
from train.display import Display
from train.epochs import resolve_epochs
from train.experiment import Experiment
from train.final_warnings import final_warnings
from train.generate.sample import sample_for_display
from train.heldout import evaluate
from train.line_sums import LineSums
from train.metrics import MetricsWriter, summarize
from train.overlap import check_start
from train.profile import StepProfile
from train.restore import start_from
from train.run import Run, make_run
from train.run_config import check_same_run, flatten, read_config, write_config
from train.schedules import make_schedule
from train.signals import StopRequest
from train.step import TrainState
from train.summary import print_shares, print_summary


def train_and_evaluate(experiment: Experiment, workdir: str) -> None:
    """Trains to `train.steps` or `train.epochs`, from the newest checkpoint in `workdir` if there is one.

    Leaves config.json, metrics.jsonl, checkpoints/ and tensorboard/ in `workdir`. Raises ConfigError where the workdir
    cannot be written or contains another run, and where training cannot continue.
    """
    config = experiment.train
    # The order of a start:
    # 1. The folder is writable, and the newest checkpoint in it, if any, is this run's.
    # 2. Corpus, mesh and compiled steps are made from the config, and train.epochs is resolved to train.steps. The
    #    corpus must be the run's, and the same in all processes.
    # 3. The state is the checkpoint's, or a new one, possibly with another run's Transformer (train.init_from). Its
    #    step is the number of the next batch.
    # 4. metrics.jsonl loses the lines after that step, and the counters continue. From here on a continued run equals
    #    the uninterrupted one.
    with agreement():
        _make_workdir(workdir)
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=config.keep_checkpoints)
    start = checkpoints.latest_step() or 0
    with agreement() as same_everywhere:
        run = resolve_epochs(make_run(experiment))
        experiment, config = run.experiment, run.experiment.train
        # Not run.store.folder.name, which differs between hosts whose files differ in their modification times alone.
        corpus = {
            "fingerprint": run.store.content_digest,
            "tokenizer": experiment.tokenizer.fingerprint,
            "heldout": heldout_digest(run.heldout_documents, experiment.data.split),
        }
        resolved = experiment.config | {"corpus": corpus}
        changes = check_same_run(read_config(workdir), resolved) if start else []
        saved_counters = checkpoints.counters(start) if start else None
        notes = check_start(run) if config.init_from and not start else []
        same_everywhere |= flatten({"corpus": corpus}) | {"newest checkpoint": start}
    if jax.process_index() == 0:
        write_config(workdir, resolved)
    state = checkpoints.restore(run.state_shapes) if start else run.init_state()
    if config.init_from and not start:
        state = state.starting_with(start_from(run, state.params, config.init_from))
    writer = MetricsWriter(workdir, resume_step=start)
    counters = Counters(experiment.denoiser_names, experiment.train_step_flops, run.count_windows, saved_counters)

    with Display(config.steps, start) as display, StopRequest(display.warn, every=config.log_every) as stop:
        print_summary(run, display, workdir)
        for note in notes:
            display.warn(note)
        for change in changes:
            display.warn(f"the run continues with a changed config: {change}")
        if start:
            display.message(f"continuing from step {start}")
        if start < config.steps:
            line_sums = LineSums(saved_counters["line"] if saved_counters else ())
            state = _Loop(run, workdir, checkpoints, counters, line_sums, writer, display, stop).train(state, start)
        checkpoints.wait()
        step = int(state.step)
        print_shares(experiment, counters, display)
        if step < config.steps:
            display.message(
                f"stopped at step {step}; its checkpoint is saved. To continue, run the same command again."
            )
        else:
            for warning in final_warnings(experiment, workdir):
                display.warn(warning)
            display.message(sample_for_display(run, state.eval_params))
            display.message(
                f"done: {step} steps; checkpoints, metrics.jsonl and tensorboard are in {workdir}. "
                f"To continue, raise train.{'epochs' if config.epochs else 'steps'}; "
                + _next_command(experiment, workdir)
            )
    checkpoints.close()
    writer.close()


def _next_command(experiment: Experiment, workdir: str) -> str:
    """Returns what to run after the training: train.generate, or train.evaluate if the model predicts no tokens."""
    if experiment.learner.language_model(experiment.params_shapes) is None:
        return f"to evaluate: python -m train.evaluate --workdir={workdir}"
    return f"to sample: python -m train.generate --workdir={workdir} --prompt=..."


def _make_workdir(workdir: str) -> None:
    try:
        os.makedirs(workdir, exist_ok=True)
        if not os.access(workdir, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", workdir)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: choose another folder") from error


class _Loop:
    """The steps of one start of the program."""

    def __init__(
        self,
        run: Run,
        workdir: str,
        checkpoints: Checkpoints,
        counters: Counters,
        line_sums: LineSums,
        writer: MetricsWriter,
        display: Display,
        stop: StopRequest,
    ):
        self.run, self.workdir, self.checkpoints = run, workdir, checkpoints
        self.counters, self.line_sums = counters, line_sums
        self.writer, self.display, self.stop = writer, display, stop
        self.config = run.experiment.train
        self.schedule = make_schedule(run.experiment.optimizer, self.config.steps)
        self.positions = 0

    def train(self, state: TrainState, start: int) -> TrainState:
        """Trains to `train.steps`, or until a stop is requested. The returned state is checkpointed."""
        batches = self.run.train_batches(start)
        pending = None
        # The first step of a start compiles, so the profile begins with the second.
        profile = StepProfile(self.workdir, first=start + 2, steps=self.config.profile_steps)
        self._restart_clock(start)
        for step in range(start + 1, self.config.steps + 1):
            began = time.perf_counter()
            host_batch = next(batches)
            self.waited += time.perf_counter() - began
            self.positions = _positions(host_batch) * self.config.batch_size
            profile.before(step)
            state, metrics = self.run.train_step(state, self.run.to_devices(host_batch))
            # Report the previous step while the device computes this one, so that the device never waits.
            if pending is not None:
                self._report(*pending)
            pending = step, metrics
            if profile.after(step, metrics):
                self.display.message(f"steps {start + 2} to {step} are profiled: tensorboard --logdir={self.workdir}")
                self._restart_clock(step)
            if step == start + 1:
                jax.block_until_ready(metrics)  # exclude compilation from the speed
                self._restart_clock(step)
            evaluates = step % self.config.eval_every == 0 or step == self.config.steps
            stops = self.stop.requested(step)
            if evaluates or stops or step % self.config.checkpoint_every == 0:
                self._report(*pending)
                pending = None
                eval_loss = self._evaluate(step, state) if evaluates else None
                if stops or step % self.config.checkpoint_every == 0 or step == self.config.steps:
                    totals = self.counters.state() | {"line": self.line_sums.state()}
                    self.checkpoints.save(step, state, eval_loss=eval_loss, counters=totals)
                self._restart_clock(step)
            if stops:
                break
        return state

    def _restart_clock(self, step: int, now: float | None = None) -> None:
        self.clock, self.clock_step, self.waited = time.perf_counter() if now is None else now, step, 0.0
        self.step_began = self.clock

    def _report(self, step: int, device_metrics: dict[str, Any]) -> None:
        """Waits for the end of `step`, and adds the step to the totals. Every `train.log_every` steps, writes a line.

        Losses, accuracies and the learner's ratios are those of all batches since the line before, added up before the
        division: means over their scored tokens, in float64. They are not finite if the loss of one batch is not.

        In addition to those of `summarize`, the metrics are
          learning_rate: of the step's update.
          grad_norm: the global norm of the step's gradient, before clipping.
          useful_token_fraction: the share of all positions that are not padding, in the batches since the last line.
          skipped_updates: updates since the start of the run whose gradients were not finite.
          tokens_per_second: positions that are not padding, of both stacks, per second since the last line.
          data_wait_fraction: the share of the seconds since the last line that were spent waiting for batches.
          mfu: model FLOPs utilization since the last line, where the peak is known.
          the totals and shares since the start of the run: see Counters.
        """
        values = jax.device_get(device_metrics)
        skipped, scored_tokens = int(values["skipped_in_a_row_count"]), int(values["scored_tokens"])
        now = time.perf_counter()
        self.line_sums.add(values)
        self.counters.add_step(scored_tokens, now - self.step_began)
        self.step_began = now
        if skipped:
            self.display.warn(f"step {step}: a gradient is not finite; the update was skipped ({skipped} in a row)")
        if skipped >= self.config.max_nonfinite_updates:
            raise ConfigError(
                f"stopped at step {step}: the gradients of {skipped} updates in a row were not finite "
                f"(train.max_nonfinite_updates={self.config.max_nonfinite_updates}); lower optimizer.learning_rate, "
                "lengthen optimizer.warmup_steps or set precision=float32. The newest checkpoint is intact"
            )
        self.display.update(step)
        if step % self.config.log_every:
            return
        sums, useful_token_fraction = self.line_sums.take()
        metrics = summarize(sums, self.run.experiment.denoiser_names)
        metrics |= {
            "learning_rate": float(self.schedule(step - 1 - int(values["skipped_count"]))),
            "grad_norm": float(values["grad_norm"]),
            "useful_token_fraction": useful_token_fraction,
            "skipped_updates": int(values["skipped_count"]),
        }
        if "loss_scale" in values:
            metrics["loss_scale"] = float(values["loss_scale"])
        seconds, steps = now - self.clock, step - self.clock_step
        if steps > 0:
            tokens = steps * self.positions * metrics["useful_token_fraction"]
            metrics |= {"tokens_per_second": tokens / seconds, "data_wait_fraction": self.waited / seconds}
            if self.run.peak_seconds is not None:
                metrics["mfu"] = self.run.peak_seconds * steps / seconds
        self._restart_clock(step, now)
        metrics |= self.counters.metrics() | self.counters.shares()
        self.writer.write(step, "train", metrics)
        self.display.train(step, metrics)

    def _evaluate(self, step: int, state: TrainState) -> float | None:
        metrics = evaluate(self.run, state.eval_params)
        self.writer.write(step, "eval", metrics | self.counters.metrics())
        self.display.eval(step, metrics)
        return metrics["loss"] if math.isfinite(metrics["loss"]) else None


def _positions(batch: dict[str, np.ndarray]) -> int:
    """The positions of a row, of both stacks together."""
    return sum(array.shape[1] for name, array in batch.items() if name.endswith("_segment_ids"))
