"""Warnings at the end of a run, from its held-out losses: that it learned nothing, or stopped improving at once."""

import math
import os

import jax

from experiment.experiment import Experiment
from workdir.metrics_file import read_metrics


def final_warnings(experiment: Experiment, workdir: str | os.PathLike) -> list[str]:
    """Returns warnings, one line each, about the eval lines of workdir/metrics.jsonl. Empty in processes other than 0.

    Warns of a last held-out loss that is not finite, or above the logarithm of the number of ids in the vocabulary,
    which is the loss of a model that gives all of them the same probability. Learners that predict no tokens have
    losses of other units, for which this bound is not checked. Also warns if the first of several evaluations has the
    lowest loss.
    """
    if jax.process_index() != 0:
        return []
    evaluations = [line for line in read_metrics(workdir, "eval") if "loss" in line]
    losses = [math.inf if line["loss"] is None else line["loss"] for line in evaluations]
    if not losses:
        return []
    warnings, first, last = [], evaluations[0]["step"], evaluations[-1]["step"]
    uniform = math.log(experiment.vocab.size)
    predicts_tokens = experiment.learner.language_model(experiment.params_shapes) is not None
    if not math.isfinite(losses[-1]):
        warnings.append(
            f"the held-out loss at step {last} is not finite: lower optimizer.learning_rate, lengthen "
            "optimizer.warmup_steps or set precision=float32"
        )
    elif predicts_tokens and losses[-1] > uniform:
        warnings.append(
            f"the held-out loss at step {last}, {losses[-1]:.3f}, is above {uniform:.3f}, the logarithm of the "
            f"vocabulary ({experiment.vocab.size} ids): the model is worse than a uniform guess; lower "
            "optimizer.learning_rate or lengthen optimizer.warmup_steps"
        )
    if len(losses) > 1 and losses[0] < min(losses[1:]):
        warnings.append(
            f"the lowest held-out loss, {losses[0]:.3f}, is that of the first evaluation, at step {first}; at step "
            f"{last} it is {losses[-1]:.3f}: if the training loss falls, train for fewer steps or on more text; if it "
            "does not, lower optimizer.learning_rate"
        )
    return warnings
