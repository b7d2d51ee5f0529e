"""Reported metrics from the sums of steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def summarize(sums: Mapping[str, Any], denoiser_names: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of sums over scored tokens: of the batches since the line before (train), or of all held-out
    batches (eval).

    Scored tokens are the positions that have a loss weight. Where a learner scores rows instead, such as labels or
    pairs of texts, its class says so, and "token" here means "row".

    Args:
      sums: a learner's Sums (learners/learner.py), of one batch or added over batches.
      denoiser_names: in the order of the vectors by denoiser; in a run of several corpora those of the corpora follow
        (`grouped`).

    Returns a dict with
      loss: nats per scored token, as a mean over the scored tokens of all denoisers.
      perplexity: exp of this mean; inf if it overflows.
      accuracy: the fraction of scored tokens whose likeliest prediction is the target.
      loss/<name>, accuracy/<name>: the same over the scored tokens of one denoiser, if it has any.
      the learner's ratios, by their names; the learner's class says over which positions each is a mean.
      unknown_fraction: of an evaluation whose learner predicts tokens, the share of unknown tokens (unk) among the
        scored tokens.
    These are means over the scored tokens of the objective. Two objectives score different tokens, so their losses do
    not compare.
    Without scored tokens, loss, perplexity and accuracy are NaN.
    """
    weight = float(sums["weight_sum"])
    loss = _ratio(float(sums["loss_sum"]), weight)
    summary = {"loss": loss, "perplexity": perplexity(loss), "accuracy": _ratio(float(sums["correct_sum"]), weight)}
    weights = np.asarray(sums["weight_sum_by_group"])
    for metric, key in (("loss", "loss_sum_by_group"), ("accuracy", "correct_sum_by_group")):
        for name, total, denoiser_weight in zip(denoiser_names, np.asarray(sums[key]), weights, strict=True):
            if denoiser_weight > 0:
                summary[f"{metric}/{name}"] = float(total) / float(denoiser_weight)
    return summary | {name: _mean_ratio(*pair) for name, pair in sums.get("ratios", {}).items()}


def grouped(sums: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Returns a learner's Sums with an entry for each of `groups` (Experiment.metric_groups) in place of each task."""
    return {
        key: np.array([np.asarray(value)[list(tasks)].sum() for tasks in groups.values()])
        if key.endswith("_by_group")
        else value
        for key, value in sums.items()
    }


def byte_metrics(name: str, sums: Mapping[str, Any], covered: float) -> dict[str, float]:
    """Returns the bits per byte of an evaluation, and the share of the bytes that it counts.

    Args:
      name: of the bits per byte: the objective's `byte_metric`, which names the scored tokens.
      sums: with loss_sum, in nats, and bytes_sum, the bytes of text that the scored tokens spell.
      covered: TokenStore.bytes_covered of the held-out documents.

    Returns a dict with
      <name>: bits of loss, summed over the scored tokens, per byte of text that these tokens spell. Unknown tokens have
        a loss and no bytes.
      bytes_covered: the share of the held-out documents' bytes that their tokens spell. Only values at equal coverage,
        which is 1 for a tokenizer that loses no text, are comparable.
    """
    return {name: float(sums["loss_sum"]) / math.log(2) / float(sums["bytes_sum"]), "bytes_covered": covered}


def perplexity(loss: float) -> float:
    """Returns exp of a loss in nats per token; inf if it overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _mean_ratio(total: Any, weight: Any) -> float:
    """Returns total / weight; for vectors, its mean over the entries with a weight. NaN if no entry has one."""
    total, weight = np.atleast_1d(np.asarray(total, np.float64)), np.atleast_1d(np.asarray(weight, np.float64))
    has_weight = weight > 0
    return float((total[has_weight] / weight[has_weight]).mean()) if has_weight.any() else math.nan


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
