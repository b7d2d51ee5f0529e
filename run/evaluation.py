"""Evaluation on the held-out documents: every window at most once, with sums by denoiser and document."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Set
from typing import Any

import jax
import numpy as np

from data.windows.batches import loader
from data.windows.documents import Documents, MixedDocuments
from data.windows.heldout_batches import Heldout, ScoredExamples
from experiment.experiment import Experiment
from models.transformer import Params
from run import sharding
from run.compiled_run import CompiledRun
from run.metrics import byte_metrics, summarize

_SUMS = ("loss_sum", "weight_sum", "correct_sum", "bytes_sum")


def evaluate(run: CompiledRun, params: Params) -> dict[str, float]:
    """Returns held-out metrics of `params`.

    The windows are those of data/windows/heldout_batches.py: the same at every call, for every seed, batch size,
    packing and number of devices, and each at most once. Sums are over all windows, in float64, and are divided once.

    Returns the metrics of run.metrics.summarize, and
      those of run.metrics.byte_metrics, where the objective has a byte metric.
      unknown_fraction: the share of the scored tokens that are unknown, if the learner predicts tokens.
      loss_stderr, loss_stderr/<name>: the standard error of the loss over documents, where two or more are read.
      accuracy_stderr, and <byte metric>_stderr: those of the accuracy and of the bits per byte.
      documents/<name>: the number of documents of which the denoiser reads a part.
      tokens/<name>: the number of the denoiser's scored tokens, or rows where the learner scores rows.
    In a run of several corpora a <name> is that of a denoiser or of a corpus, and both have these metrics.
    """
    totals = DocumentSums(run.experiment, run.heldout, run.corpora.heldout_documents)
    ratios: dict[str, Any] = {}
    for n, sums in enumerate(map(jax.device_get, _sums(run, params))):
        totals.add(n, sums)
        for name, pair in sums.get("ratios", {}).items():
            pair = np.asarray(pair, np.float64)
            ratios[name] = ratios[name] + pair if name in ratios else pair
    return totals.metrics(ratios)


def heldout_windows(experiment: Experiment) -> str:
    """Returns the windows of text that evaluations score, such as "256 tokens (pack)": what a prediction can read."""
    windows = [
        "whole documents" if spec.documents == "whole" else f"{experiment.window_length(k)} tokens ({spec.documents})"
        for k, spec in enumerate(experiment.window_specs)
    ]
    return ", ".join(dict.fromkeys(windows))


def _sums(run: CompiledRun, params: Params) -> Iterator[dict[str, Any]]:
    """Returns the Sums of each held-out batch, one batch later, so that the device does not wait for the host."""
    data = run.experiment.data
    batches = loader(run.heldout.batches, start=0, threads=data.reader_threads, prefetch=data.prefetch_batches)
    found = (run.eval_step(params, sharding.to_global(batch, run.batch_sharding)) for batch in batches)
    return (sums for sums, _ in itertools.pairwise(itertools.chain(found, [None])))


class DocumentSums:
    """Sums over held-out examples of an experiment, by task and by the document in which the example begins.

    documents: the held-out documents.
    """

    def __init__(self, experiment: Experiment, heldout: Heldout, documents: Documents | MixedDocuments):
        self._heldout, self._documents = heldout, documents
        self._groups, self._byte_metric = experiment.metric_groups, experiment.byte_metric
        self._dummy_bytes = experiment.tokenizer.dummy_bytes
        self._sums = {name: np.zeros((len(heldout.shares), len(heldout.documents))) for name in _SUMS}
        # (task, column, column) of each two documents of which an example contains a part
        self._shared: set[tuple[int, int, int]] = set()

    def add(self, n: int, sums: dict[str, Any]) -> None:
        """Adds the Sums of batch n, whose groups are examples."""
        examples = self._heldout.examples(n)
        columns = np.searchsorted(self._heldout.documents, examples.documents)
        for name, total in self._sums.items():
            if f"{name}_by_group" in sums:
                values = np.asarray(sums[f"{name}_by_group"], np.float64)[examples.groups]
                if name == "bytes_sum":
                    values = self._bytes_of_text(values, examples)
                np.add.at(total, (examples.denoiser_ids, columns), values)
        pairs = np.searchsorted(self._heldout.documents, examples.shared)
        self._shared.update(zip(examples.shared_by.tolist(), *pairs.T.tolist(), strict=True))

    def _bytes_of_text(self, num_bytes: np.ndarray, examples: ScoredExamples) -> np.ndarray:
        """The bytes of the examples' tokens, float64 [E], without those that the tokenizer adds to the text.

        An objective with a byte metric scores all tokens of an example. An example of several documents has the share
        of the first of them.
        """
        num_bytes = num_bytes - self._dummy_bytes * examples.texts
        return num_bytes * self._documents.in_text(examples.documents)

    def metrics(self, ratios: dict[str, Any]) -> dict[str, float]:
        """Returns the metrics of all added sums. ratios: name -> (sum, weight), as in Sums."""
        # The sums are weighted so that each task has its share of the raw tokens in training, whatever number of its
        # windows is scored, and however long they are.
        heldout, names = self._heldout, list(self._groups)
        factors = np.divide(
            heldout.shares, heldout.num_raw_tokens, out=np.zeros(len(heldout.shares)), where=heldout.num_raw_tokens > 0
        )
        weighted = {name: factors[:, None] * sums for name, sums in self._sums.items()}
        of_groups = {name: self._of_group(np.array(tasks), factors) for name, tasks in self._groups.items()}
        by_group = {
            f"{name}_by_group": np.array([sums[name].sum() for sums in of_groups.values()]) for name in self._sums
        }
        total = {name: float(sums.sum()) for name, sums in weighted.items()}
        metrics = summarize(total | by_group | {"ratios": ratios}, names)
        shared = {(i, j) for _, i, j in self._shared}
        loss, correct, weight, num_bytes = (
            weighted[name] for name in ("loss_sum", "correct_sum", "weight_sum", "bytes_sum")
        )
        if total["bytes_sum"] > 0:
            metrics |= byte_metrics(self._byte_metric, total, self._documents.bytes_covered())
            stderr = standard_error(loss, num_bytes, shared) / math.log(2)
            metrics |= _finite(f"{self._byte_metric}_stderr", stderr)
        metrics |= _finite("loss_stderr", standard_error(loss, weight, shared))
        metrics |= _finite("accuracy_stderr", standard_error(correct, weight, shared))
        for name, tasks in self._groups.items():
            loss, weight = (of_groups[name][key] for key in ("loss_sum", "weight_sum"))
            if weight.sum() > 0:
                shared = {(i, j) for task, i, j in self._shared if task in tasks}
                metrics |= _finite(f"loss_stderr/{name}", standard_error(loss, weight, shared))
                metrics[f"documents/{name}"] = heldout.documents_read(tasks)
                metrics[f"tokens/{name}"] = round(float(self._sums["weight_sum"][list(tasks)].sum()))
        return metrics

    def _of_group(self, tasks: np.ndarray, factors: np.ndarray) -> dict[str, np.ndarray]:
        """The sums [number of tasks, D] of a group, weighted relative to each other; of a single task as they are."""
        largest = factors[tasks].max()
        relative = factors[tasks] / largest if largest > 0 else np.ones(len(tasks))
        return {name: relative[:, None] * sums[tasks] for name, sums in self._sums.items()}


def standard_error(loss: np.ndarray, weight: np.ndarray, shared: Set[tuple[int, int]] = frozenset()) -> float:
    """The standard error of sum(loss) / sum(weight), both [K, D], over documents.

    Linearized ratio estimator (Cochran 1977, Sampling Techniques, section 6.4), with documents as clusters. An example
    with text of two documents counts for the first of them, so these two are correlated, and the estimator includes the
    products of the residuals of such documents, as Conley (1999) does for neighbors. NaN for fewer than two documents.

    shared: columns of two documents of which an example contains a part.
    """
    read = weight.sum(axis=0) > 0
    count, total = int(read.sum()), weight.sum()
    if count < 2:
        return math.nan
    residuals = (loss.sum(axis=0) - loss.sum() / total * weight.sum(axis=0)) * read
    independent = float(np.square(residuals).sum())
    first, second = np.asarray(sorted({(min(pair), max(pair)) for pair in shared}), np.int64).reshape(-1, 2).T
    correlated = 2 * float((residuals[first] * residuals[second]).sum())
    # The sum of products can be negative by chance, and never makes the documents better than independent.
    return math.sqrt(count / (count - 1) * (independent + max(correlated, 0.0))) / float(total)


def _finite(name: str, value: float) -> dict[str, float]:
    return {name: value} if math.isfinite(value) else {}


def score_all(experiment: Experiment) -> Experiment:
    """Returns `experiment` with evaluations that score every held-out window."""
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, eval_windows=0))
