"""What a run reports: metrics from the sums of steps, and the sums over the steps of a line and of the whole run."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from data.windows.batches import WindowCounts
from learners.learner import Sums


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
    These are means over the scored tokens of the objective, in training weighted by the `loss_weight` of denoisers. Two
    objectives score different tokens, so their losses do not compare.
    Without scored tokens, loss, perplexity and accuracy are NaN.
    """
    weight = sums["weight_sum"]
    loss = _ratio(sums["loss_sum"], weight)
    summary = {"loss": loss, "perplexity": perplexity(loss), "accuracy": _ratio(sums["correct_sum"], weight)}
    weights = np.asarray(sums["weight_sum_by_group"])
    for metric, key in (("loss", "loss_sum_by_group"), ("accuracy", "correct_sum_by_group")):
        for name, total, denoiser_weight in zip(denoiser_names, np.asarray(sums[key]), weights, strict=True):
            if denoiser_weight > 0:
                summary[f"{metric}/{name}"] = float(total) / float(denoiser_weight)
    return summary | {name: _ratio(*pair) for name, pair in sums.get("ratios", {}).items()}


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


def _ratio(total: Any, weight: Any) -> float:
    """Returns total / weight; for vectors, its mean over the entries with a weight. NaN if no entry has one."""
    total, weight = np.atleast_1d(np.asarray(total, np.float64)), np.atleast_1d(np.asarray(weight, np.float64))
    has_weight = weight > 0
    return float((total[has_weight] / weight[has_weight]).mean()) if has_weight.any() else math.nan


class Totals:
    """Sums over steps: those of one line of metrics.jsonl, and totals since the first step, over which runs compare.

    A line reports all of its batches and not the last one: the learner's Sums and the share of useful positions are
    added over the steps since the line before, in float64.

    The totals since the first step are over all processes, exact, and equal after a resume except for the seconds.
    Examples and raw tokens of batch n are a function of the config and n, so every process counts those of all rows and
    nothing is communicated. FLOPs are a function of the step. The train step sums scored tokens over devices. Totals
    are Python integers, which cannot overflow.

    All are written with each checkpoint: the train state, and so what the step computes, does not contain them. A run
    that is continued between two lines therefore writes the same next line as an uninterrupted one.

    Args:
      denoisers: the task indices (experiment/tasks.py) of each denoiser, by its name. The counts are in their order.
      step_flops: model FLOPs of a step.
      count_windows: (first batch, number of batches) -> the examples and raw tokens of these batches.
      saved: what `state` returned at the checkpoint that the run continues from; None at the start of a run.
      corpora: the task indices of each corpus, by its name; empty in a run of one corpus.
      epoch_tokens: int [number of tasks], the raw tokens of one pass of each task over its corpus.
    """

    def __init__(
        self,
        denoisers: Mapping[str, Sequence[int]],
        step_flops: float,
        count_windows: Callable[[int, int], WindowCounts],
        saved: Mapping[str, Any] | None = None,
        *,
        corpora: Mapping[str, Sequence[int]] = types.MappingProxyType({}),
        epoch_tokens: Sequence[int] | np.ndarray,
    ):
        self._denoisers, self._corpora, self._epoch_tokens = denoisers, corpora, epoch_tokens
        self._step_flops, self._count_windows = step_flops, count_windows
        zeros = [0] * sum(map(len, denoisers.values()))
        saved = saved or {"step": 0, "examples": zeros, "raw_tokens": zeros, "scored_tokens": 0, "seconds": 0.0}
        self._step = self._counted = int(saved["step"])  # steps made, and steps whose windows are counted
        self._counts = {name: list(saved.get(name, zeros)) for name in WindowCounts._fields}
        self._scored_tokens, self._seconds = int(saved["scored_tokens"]), float(saved["seconds"])
        self._line = [np.asarray(leaf, np.float64) for leaf in saved.get("line", ())]
        self._line_structure: Any = None  # of the leaves in `_line`; known after the first step

    def add(self, metrics: Mapping[str, Any], seconds: float) -> None:
        """Adds a step: the metrics of the train step, on the host, and the seconds since the step before it."""
        self._step += 1
        self._scored_tokens += int(metrics["scored_tokens"])
        self._seconds += seconds
        sums = {name: value for name, value in metrics.items() if "_sum" in name or name == "ratios"}
        step = {"sums": sums, "useful": metrics["useful_token_fraction"], "steps": 1}
        leaves, self._line_structure = jax.tree.flatten(step)
        leaves = [np.asarray(leaf, np.float64) for leaf in leaves]
        self._line = [a + b for a, b in zip(self._line, leaves, strict=True)] if self._line else leaves

    def take_line(self) -> tuple[Sums, float]:
        """Returns the learner's Sums over the steps, and the mean share of useful positions; starts the next line."""
        total = jax.tree.unflatten(self._line_structure, self._line)
        self._line = []
        return total["sums"], float(total["useful"] / total["steps"])

    def metrics(self) -> dict[str, int | float]:
        """Returns the totals.

        examples: examples that batches were made from: windows of raw text, or the documents in a window where each
          document is an example of its own (data.documents="pack" or "whole").
        raw_tokens: the tokens of these examples before corruption and padding, with the EOS of a document where windows
          contain it. The second texts that NSP takes from other documents are not counted.
        scored_tokens: positions of the batches that have a loss weight, those of skipped updates included.
        flops: model FLOPs of the forward and backward passes, padding included, as models/flops.py counts them.
        seconds: wall time of training. Evaluations, checkpoints and the first step after each start, which compiles,
          are not counted, and neither are steps that were lost with a killed process.
        """
        self._count()
        return {
            "examples": sum(self._counts["examples"]),
            "raw_tokens": sum(self._counts["raw_tokens"]),
            "scored_tokens": self._scored_tokens,
            "flops": float(self._step * self._step_flops),
            "seconds": self._seconds,
        }

    def shares(self) -> dict[str, float]:
        """Returns example_share/<name> and token_share/<name>, each denoiser's share of `examples` and `raw_tokens`.

        epochs: how often the training text was read, as a mean over its tokens: 1.5 is one and a half times.

        In a run of several corpora each corpus has these shares too, and
          window_share/<name>: its share of the windows that were drawn. Denoisers have it too.
          raw_tokens/<corpus>, epochs/<corpus>: of its training text, in place of `epochs`.

        Without the denoisers' shares where there is one denoiser. Empty before the first step.
        """
        self._count()
        if not self._step:
            return {}
        groups = {**(self._denoisers if len(self._denoisers) > 1 else {}), **self._corpora}
        shares: dict[str, float] = {}
        raw_tokens = self._counts["raw_tokens"]
        counted = {"example_share": self._counts["examples"], "token_share": raw_tokens}
        counted |= {"window_share": self._counts["windows"]} if self._corpora else {}
        for metric, counts in counted.items():
            for name, tasks in groups.items():
                shares[f"{metric}/{name}"] = sum(counts[k] for k in tasks) / sum(counts)
        # Denoisers may read a corpus with and without the EOS of documents, so passes are counted by denoiser.
        epochs = [read / int(total) for read, total in zip(raw_tokens, self._epoch_tokens, strict=True)]
        for name, tasks in self._corpora.items():
            shares[f"raw_tokens/{name}"] = sum(raw_tokens[k] for k in tasks)
            shares[f"epochs/{name}"] = sum(epochs[k] for k in tasks)
        if not self._corpora:
            shares["epochs"] = sum(epochs)
        return shares

    def state(self) -> dict[str, Any]:
        """Returns JSON values from which `saved` restores the totals and the line."""
        self._count()
        return {
            "step": self._step,
            **{name: counts for name, counts in self._counts.items() if name != "windows" or self._corpora},
            "scored_tokens": self._scored_tokens,
            "seconds": self._seconds,
            "line": [leaf.tolist() for leaf in self._line],
        }

    def _count(self) -> None:
        """Adds the windows of the steps since the last call."""
        if self._counted == self._step:
            return
        counts = self._count_windows(self._counted, self._step - self._counted)
        for name, totals in self._counts.items():
            self._counts[name] = [total + int(n) for total, n in zip(totals, getattr(counts, name), strict=True)]
        self._counted = self._step
