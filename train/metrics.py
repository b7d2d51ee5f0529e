"""Reported metrics from the sums of steps, and the files that they are written to."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import tensorboardX

from contract.errors import ConfigError


def summarize(sums: Mapping[str, Any], denoiser_names: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of sums over scored tokens: of the batches since the line before (train), or of all held-out
    batches (eval).

    Scored tokens are the positions that have a loss weight. Where a learner scores rows instead, such as labels or
    pairs of texts, its class says so, and "token" here means "row".

    Args:
      sums: a learner's Sums (train/learners/learner.py), of one batch or added over batches.
      denoiser_names: in the order of the vectors by denoiser.

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


class MetricsWriter:
    """Appends to workdir/metrics.jsonl, one JSON object per line, and to TensorBoard's files in workdir/tensorboard.

    Only process 0 writes; in other processes, the methods do nothing.

    resume_step: the step of the checkpoint that the run continues from. Lines of later steps, which the continued run
      writes again, are removed, as is an incomplete last line. The metrics of a step are written before its checkpoint,
      so the final file is the same as without the interruption. 0 starts a new run and removes all lines.

    Raises ConfigError if the files cannot be written, or if metrics.jsonl contains other lines.
    """

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        self._file = self._tensorboard = None
        if jax.process_index() != 0:
            return
        path = os.path.join(workdir, "metrics.jsonl")
        try:
            os.makedirs(workdir, exist_ok=True)
            lines = _lines_up_to(path, resume_step) if os.path.exists(path) else []
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".tmp", path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
            self._tensorboard = tensorboardX.SummaryWriter(
                os.path.join(workdir, "tensorboard"),
                purge_step=resume_step + 1 if resume_step else 0,  # TensorBoard hides the repeated steps
                filename_suffix=f".from_{resume_step}",
            )
        except OSError as error:
            raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: {error.filename}") from error

    def write(self, step: int, split: Literal["train", "eval"], metrics: Mapping[str, Any]) -> None:
        """Writes scalars in their order, and flushes, so that they survive a kill of the process.

        NaN and infinity, which JSON does not have, are null in metrics.jsonl and are omitted from TensorBoard.
        """
        if self._file is None:
            return
        values = {name: _json_number(value) for name, value in metrics.items()}
        self._file.write(json.dumps({"step": int(step), "split": split, **values}, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in values.items():
            if value is not None:
                self._tensorboard.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._file is not None:
            self._file.close()
            self._tensorboard.close()
            self._file = None


def _lines_up_to(path: str, step: int) -> list[str]:
    """Returns the complete lines of steps up to `step`; none if `step` is 0. Raises ConfigError for other lines."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    kept = []
    for number, line in enumerate(lines, start=1):
        try:
            line_step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}, line {number} is not a line of metrics: move the file away") from error
        if step > 0 and line_step <= step:
            kept.append(line)
    return kept


def _json_number(value: Any) -> int | float | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _mean_ratio(total: Any, weight: Any) -> float:
    """Returns total / weight; for vectors, its mean over the entries with a weight. NaN if no entry has one."""
    total, weight = np.atleast_1d(np.asarray(total, np.float64)), np.atleast_1d(np.asarray(weight, np.float64))
    has_weight = weight > 0
    return float((total[has_weight] / weight[has_weight]).mean()) if has_weight.any() else math.nan


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
