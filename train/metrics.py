"""From the step's sums to the numbers that are reported, and to the files that keep them."""

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
    """The reported numbers of sums over scored tokens, of one batch or of many batches added up.

    sums: as train.learner.Learner has them; the vectors by source are in the order of `denoiser_names`.
    Returns loss (nats per scored token), perplexity (exp of it, inf where that overflows), accuracy (the share of
    scored tokens whose likeliest prediction is the target) and, for each source that scored a token, `loss/<name>` and
    `accuracy/<name>`. Where nothing was scored loss, perplexity and accuracy are NaN.
    """
    weight = float(sums["weight_sum"])
    loss = _ratio(float(sums["loss_sum"]), weight)
    summary = {"loss": loss, "perplexity": perplexity(loss), "accuracy": _ratio(float(sums["correct_sum"]), weight)}
    weights = np.asarray(sums["weight_sum_by_denoiser"])
    for metric, key in (("loss", "loss_sum_by_denoiser"), ("accuracy", "correct_sum_by_denoiser")):
        for name, total, source_weight in zip(denoiser_names, np.asarray(sums[key]), weights, strict=True):
            if source_weight > 0:
                summary[f"{metric}/{name}"] = float(total) / float(source_weight)
    return summary | {name: _mean_ratio(*pair) for name, pair in sums.get("ratios", {}).items()}


def perplexity(loss: float) -> float:
    """exp of a loss in nats per token; inf where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class MetricsWriter:
    """Appends to workdir/metrics.jsonl, one JSON object a line, and to TensorBoard's files in workdir/tensorboard.

    `resume_step`: the step of the checkpoint the run continues from. Lines of later steps, which the continued run
    makes again, are removed, and so is a last line that a kill cut short: with everything up to a step written before
    that step's checkpoint, the file ends up as if there had been no interruption. 0: a run from its beginning, nothing
    is kept. Only process 0 writes; elsewhere every method does nothing.

    Raises ConfigError where the files cannot be written, or where metrics.jsonl holds something else.
    """

    def __init__(self, workdir: str | os.PathLike, *, resume_step: int):
        self._file = self._tensorboard = None
        if jax.process_index() != 0:
            return
        path = os.path.join(workdir, "metrics.jsonl")
        try:
            os.makedirs(workdir, exist_ok=True)
            kept = _lines_up_to(path, resume_step) if os.path.exists(path) else []
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".tmp", path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
            self._tensorboard = tensorboardX.SummaryWriter(
                os.path.join(workdir, "tensorboard"),
                purge_step=resume_step + 1 if resume_step else 0,  # TensorBoard hides what the continued run repeats
                filename_suffix=f".from_{resume_step}",
            )
        except OSError as error:
            raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: {error.filename}") from error

    def write(self, step: int, split: Literal["train", "eval"], metrics: Mapping[str, Any]) -> None:
        """Writes scalars, in their order. NaN and infinity, which JSON does not have, become null in metrics.jsonl
        and are left out of TensorBoard. What is written survives a kill of the process."""
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
    """total / weight; of vectors, the mean over the entries that have a weight. NaN where none has."""
    total, weight = np.atleast_1d(np.asarray(total, np.float64)), np.atleast_1d(np.asarray(weight, np.float64))
    weighed = weight > 0
    return float((total[weighed] / weight[weighed]).mean()) if weighed.any() else math.nan


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
