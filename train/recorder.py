"""What one run writes while it trains: lines of metrics, evaluations, checkpoints and messages."""

import math
import shlex
import time
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from contract.errors import ConfigError
from experiment.experiment import Experiment
from experiment.outside import code_flag
from experiment.schedules import make_schedule
from generate.sample import sample_for_display
from models.transformer import Params
from run.compiled_run import CompiledRun
from run.evaluation import evaluate
from run.metrics import Totals, grouped, summarize
from run.step import TrainState
from train.display import Display
from train.start import Start
from workdir.metrics import MetricsWriter
from workdir.workdir import Workdir


class DivergedError(ConfigError):
    """Training that cannot continue, because `train.max_nonfinite_updates` gradients in a row were not finite."""


_REMEDY = "lower optimizer.learning_rate, lengthen optimizer.warmup_steps"


def _diverged(step: int, skipped: int, most: int) -> DivergedError:
    return DivergedError(
        f"stopped at step {step}: the gradients of {skipped} updates in a row were not finite "
        f"(train.max_nonfinite_updates={most}): {_REMEDY} or set precision=float32, "
        "with another --workdir: the newest checkpoint may be of a model that had diverged already"
    )


class Recorder:
    """Writes the workdir of one run, and prints its messages. The loop calls the methods in this order:

        recorder.restart_clock(step)               # before the first step, and after everything that is not a step
        recorder.read(batch, seconds)              # each step
        recorder.report(step, metrics)             # each step, once the device has made it
        eval_loss = recorder.evaluate(step, state.eval_params)
        recorder.save(step, state, eval_loss)
        recorder.finish(state)                     # after the last step of this start

    Args:
      run: the run.
      start: its start, in the workdir that is written.
      display: prints the messages.
    """

    def __init__(self, run: CompiledRun, start: Start, display: Display):
        self.run, self.workdir, self.display = run, start.workdir, display
        self._config, self._checkpoints = run.experiment.train, start.checkpoints
        experiment = run.experiment
        self._totals = Totals(
            experiment.tasks_of_denoisers,
            experiment.train_step_flops,
            run.train_dataset.count_windows,
            start.counters,
            corpora=experiment.tasks_of_corpora,
            epoch_tokens=run.train_dataset.epoch_tokens,
        )
        self._writer = MetricsWriter(start.workdir, start.config, resume_step=start.step, warn=display.warn)
        for address in self._writer.addresses:
            display.message(address)
        self._schedule = make_schedule(experiment.optimizer, self._config.steps)
        self._positions = 0  # of a batch, in both stacks together

    def restart_clock(self, step: int, now: float | None = None) -> None:
        """Starts to measure the speed after `step`."""
        self._clock, self._clock_step, self._waited = time.perf_counter() if now is None else now, step, 0.0
        self._step_began = self._clock

    def read(self, batch: Mapping[str, np.ndarray], seconds: float) -> None:
        """Notes that the loop has waited for a batch, arrays [..., B, L], for `seconds`."""
        self._waited += seconds
        row = sum(array.shape[-1] for name, array in batch.items() if name.endswith("_segment_ids"))
        self._positions = row * self._config.batch_size

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        """Waits for the end of a step and adds it to the totals. Every `train.log_every` steps, writes a line.

        values: the metrics of the train step.

        Losses, accuracies and the learner's ratios are those of all batches since the line before, added up before the
        division: means over their scored tokens, in float64. They are not finite if the loss of one batch is not.

        In addition to those of `summarize`, the metrics are
          learning_rate: of the step's update.
          grad_norm: the global norm of the step's gradient, before clipping.
          useful_token_fraction: the share of all positions that are not padding, in the batches since the last line.
          skipped_updates: updates since the start of the run whose gradients were not finite.
          loss_scale: of float16, after the step.
          tokens_per_second: positions that are not padding, of both stacks, per second since the last line.
          data_wait_fraction: the share of the seconds since the last line that were spent waiting for batches.
          mfu: model FLOPs utilization since the last line, where the peak is known.
          the totals and shares since the start of the run: see Totals.

        Raises DivergedError after `train.max_nonfinite_updates` updates in a row whose gradients were not finite.
        """
        values = jax.device_get(values)
        now, skipped = time.perf_counter(), int(values["skipped_in_a_row_count"])
        self._totals.add(values, now - self._step_began)
        self._step_began = now
        if skipped:
            self.display.warn(f"step {step}: a gradient is not finite; the update was skipped ({skipped} in a row)")
        if skipped >= self._config.max_nonfinite_updates:
            raise _diverged(step, skipped, self._config.max_nonfinite_updates)
        self.display.update(step)
        if step % self._config.log_every:
            return
        sums, useful_token_fraction = self._totals.take_line()
        groups = self.run.experiment.metric_groups
        skipped_before = int(values["skipped_count"]) - (not math.isfinite(values["grad_norm"]))
        metrics = summarize(grouped(sums, groups), list(groups))
        metrics |= {
            "learning_rate": float(self._schedule(step - 1 - skipped_before)),
            "grad_norm": float(values["grad_norm"]),
            "useful_token_fraction": useful_token_fraction,
            "skipped_updates": int(values["skipped_count"]),
        }
        if "loss_scale" in values:
            metrics["loss_scale"] = float(values["loss_scale"])
        seconds, steps = now - self._clock, step - self._clock_step
        if steps > 0:
            tokens = steps * self._positions * metrics["useful_token_fraction"]
            metrics |= {"tokens_per_second": tokens / seconds, "data_wait_fraction": self._waited / seconds}
            if self.run.peak_seconds is not None:
                metrics["mfu"] = self.run.peak_seconds * steps / seconds
        self.restart_clock(step, now)
        metrics |= self._totals.metrics() | self._totals.shares()
        self._writer.write(step, "train", metrics)
        self.display.train(step, metrics)

    def evaluate(self, step: int, params: Params) -> float | None:
        """Writes a line of held-out metrics and returns their loss; None if it is not finite."""
        metrics = evaluate(self.run, params)
        self._writer.write(step, "eval", metrics | self._totals.metrics())
        self.display.eval(step, metrics)
        return metrics["loss"] if math.isfinite(metrics["loss"]) else None

    def save(self, step: int, state: TrainState, eval_loss: float | None) -> None:
        """Starts to write a checkpoint. Returns once the arrays of `state` may be donated."""
        self._writer.flush()  # the lines of a step are in the file before its checkpoint is
        self._checkpoints.save(step, state, eval_loss=eval_loss, counters=self._totals.state())

    def finish(self, state: TrainState) -> bool:
        """Waits for the checkpoints, prints how the run ended, and returns whether it made all of its steps."""
        experiment, step = self.run.experiment, int(state.step)
        self._checkpoints.wait()
        self._writer.flush()
        if step < self._config.steps:
            self.display.message(
                f"stopped at step {step}; its checkpoint is saved. To continue, run the same command again."
            )
            return False
        evaluations = self.workdir.metrics("eval") if jax.process_index() == 0 else []
        losses = {line["step"]: line["loss"] for line in evaluations if "loss" in line}
        for warning in final_warnings(experiment, losses, int(state.skipped_count)):
            self.display.warn(warning)
        sample = sample_for_display(self.run, state.eval_params)
        self.display.message(sample)
        self._writer.write_text(step, "sample", sample)
        self.display.message(f"done: {step} steps; config.json, metrics.jsonl and checkpoints are in {self.workdir}")
        self.display.message(closing_hint(experiment, self.workdir))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_) -> None:
        self._writer.close(failed=error_type is not None)


def closing_hint(experiment: Experiment, workdir: Workdir) -> str:
    """Returns the command that reads a finished run: it samples, or evaluates where the run predicts no tokens."""
    reads = f"--workdir={shlex.quote(str(workdir))}{code_flag(experiment.learner, experiment.denoisers)}"
    vocab, promptings = experiment.vocab, [denoiser.objective.prompting for denoiser in experiment.denoisers]
    if not any(promptings) or experiment.learner.language_model(experiment.params_shapes) is None:
        return f"To evaluate: python -m train.evaluate {reads}"
    reads_masks = all(prompting is None or vocab.mask in prompting.special_tokens(vocab) for prompting in promptings)
    prompt = f"'... {vocab.names()[vocab.mask]} ...'" if reads_masks else "..."  # some of these need a mask
    return f"To sample: python -m train.generate {reads} --prompt={prompt}"


def final_warnings(experiment: Experiment, losses: Mapping[int, float | None], skipped: int) -> list[str]:
    """Returns warnings, one line each, about the skipped updates and the held-out losses of a finished run.

    losses: of each evaluation by its step; None where it is not finite. skipped: updates, of which float16 has a few.

    The logarithm of the number of ids in the vocabulary is the loss of a model that gives all of them the same
    probability; losses of learners that predict no tokens have other units.
    """
    warnings, steps = [], experiment.train.steps
    if 10 * skipped > steps:
        warnings.append(f"{skipped} of {steps} updates were skipped, as their gradients were not finite: {_REMEDY}")
    if not losses:
        return warnings
    last, last_loss = [*losses.items()][-1]
    uniform = math.log(experiment.vocab.size)
    if last_loss is None:
        return [*warnings, f"the held-out loss at step {last} is not finite: {_REMEDY} or set precision=float32"]
    if last_loss > uniform and experiment.learner.language_model(experiment.params_shapes) is not None:
        warnings.append(
            f"the held-out loss at step {last}, {last_loss:.3f}, is above {uniform:.3f}, the logarithm of the "
            f"vocabulary ({experiment.vocab.size} ids), so a uniform guess is better: {_REMEDY}"
        )
    finite = {step: math.inf if loss is None else loss for step, loss in losses.items()}
    lowest = min(finite, key=lambda step: (finite[step], -step))
    if lowest < last and lowest in (0, min(step for step in losses if step)):
        when = "the first evaluation, at step" if lowest else "the start, step"
        warnings.append(
            f"the lowest held-out loss, {finite[lowest]:.3f}, is that of {when} {lowest}; at step "
            f"{last} it is {last_loss:.3f}: if the training loss falls, train for fewer steps or on more text; if it "
            "does not, lower optimizer.learning_rate"
        )
    return warnings
