"""Evaluation on the held-out documents: every window at most once, with sums by denoiser and document."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from data.batches import loader
from data.heldout import Heldout
from models.transformer import Params
from train import sharding
from train.experiment import Experiment
from train.metrics import byte_metrics, summarize
from train.run import Run

_SUMS = ("loss_sum", "weight_sum", "correct_sum", "bytes_sum")


def evaluate(run: Run, params: Params) -> dict[str, float]:
    """Returns held-out metrics of `params`.

    The windows are those of data/heldout.py: the same at every call, for every seed, batch size, packing and number of
    devices, and each at most once. Sums are over all windows, in float64, and are divided once.

    Returns the metrics of train.metrics.summarize, and
      those of train.metrics.byte_metrics, where the objective has a byte metric.
      unknown_fraction: the share of the scored tokens that are unknown, if the learner predicts tokens.
      loss_stderr, loss_stderr/<name>: the standard error of the loss over documents, where two or more are read.
      documents/<name>: the number of documents of which the denoiser reads a part.
      tokens/<name>: the number of the denoiser's scored tokens, or rows where the learner scores rows.
    """
    experiment = run.experiment
    totals = DocumentSums(
        run.heldout,
        experiment.denoiser_names,
        byte_metric=experiment.byte_metric,
        bytes_covered=run.store.bytes_covered(run.heldout_documents.index),
    )
    ratios: dict[str, Any] = {}
    for n, sums in enumerate(map(jax.device_get, _sums(run, params))):
        totals.add(n, sums)
        for name, pair in sums.get("ratios", {}).items():
            pair = np.asarray(pair, np.float64)
            ratios[name] = ratios[name] + pair if name in ratios else pair
    return totals.metrics(ratios)


def _sums(run: Run, params: Params) -> Iterator[dict[str, Any]]:
    """Yields the Sums of each held-out batch, one batch later, so that the device does not wait for the host."""
    data, pending = run.experiment.data, None
    batches = run.heldout.batches
    for batch in loader(batches, start=0, threads=data.reader_threads, prefetch=data.prefetch_batches):
        sums = run.eval_step(params, sharding.to_global(batch, run.batch_sharding))
        if pending is not None:
            yield pending
        pending = sums
    if pending is not None:
        yield pending


class DocumentSums:
    """Sums over held-out examples, by denoiser and by the document in which the example begins."""

    def __init__(
        self, heldout: Heldout, denoiser_names: Sequence[str], *, byte_metric: str = "", bytes_covered: float = 1.0
    ):
        """byte_metric, bytes_covered: as the arguments of train.metrics.byte_metrics."""
        self._heldout = heldout
        self._names = denoiser_names
        self._byte_metric, self._covered = byte_metric, bytes_covered
        self._numbers: dict[int, int] = {}  # document's number in the store -> column of the sums
        # float64 [K, D]; D grows
        self._sums = {name: np.zeros((len(denoiser_names), 0)) for name in _SUMS}

    def add(self, n: int, sums: dict[str, Any]) -> None:
        """Adds the Sums of batch n, whose groups are examples."""
        examples = self._heldout.examples(n)
        distinct, inverse = np.unique(examples.documents, return_inverse=True)
        columns = np.array([self._numbers.setdefault(d, len(self._numbers)) for d in distinct.tolist()])[inverse]
        new = len(self._numbers) - self._sums["loss_sum"].shape[1]
        for name in self._sums:
            self._sums[name] = np.pad(self._sums[name], ((0, 0), (0, new)))
            if f"{name}_by_group" in sums:
                by_group = np.asarray(sums[f"{name}_by_group"], np.float64)
                np.add.at(self._sums[name], (examples.denoiser_ids, columns), by_group[examples.groups])

    def metrics(self, ratios: dict[str, Any]) -> dict[str, float]:
        """Returns the metrics of all added sums. ratios: name -> (sum, weight), as in Sums."""
        # The denoisers' sums are weighted so that the loss of a mixture is that of its shares, whatever number of
        # windows of each denoiser is scored.
        heldout, names = self._heldout, self._names
        factors = np.divide(
            heldout.shares, heldout.num_windows, out=np.zeros(len(names)), where=heldout.num_windows > 0
        )
        weighted = {name: factors[:, None] * sums for name, sums in self._sums.items()}
        by_denoiser = {f"{name}_by_group": sums.sum(axis=1) for name, sums in self._sums.items()}
        total = {name: float(sums.sum()) for name, sums in weighted.items()}
        metrics = summarize(total | by_denoiser | {"ratios": ratios}, names)
        if total["bytes_sum"] > 0:
            metrics |= byte_metrics(self._byte_metric, total, self._covered)
        metrics |= _finite("loss_stderr", _standard_error(weighted["loss_sum"], weighted["weight_sum"]))
        for k, name in enumerate(names):
            loss, weight = (self._sums[key][k : k + 1] for key in ("loss_sum", "weight_sum"))
            if weight.sum() > 0:
                metrics |= _finite(f"loss_stderr/{name}", _standard_error(loss, weight))
                metrics[f"documents/{name}"] = int(heldout.num_documents[k])
                metrics[f"tokens/{name}"] = round(float(weight.sum()))
        return metrics


def _standard_error(loss: np.ndarray, weight: np.ndarray) -> float:
    """The standard error of sum(loss) / sum(weight), both [K, D], over documents as independent clusters.

    Linearized ratio estimator (Cochran 1977, Sampling Techniques, section 6.4). NaN for fewer than two documents.
    """
    read = weight.sum(axis=0) > 0
    count, total = int(read.sum()), weight.sum()
    if count < 2:
        return math.nan
    residuals = (loss.sum(axis=0) - loss.sum() / total * weight.sum(axis=0))[read]
    return math.sqrt(count / (count - 1) * float(np.square(residuals).sum())) / float(total)


def _finite(name: str, value: float) -> dict[str, float]:
    return {name: value} if math.isfinite(value) else {}


def score_all(experiment: Experiment) -> Experiment:
    """Returns `experiment` with evaluations that score every held-out window."""
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, eval_windows=0))
