"""Totals of a run since its first step: examples, tokens, FLOPs and seconds, over which runs can be compared."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data.windows.batches import WindowCounts


class Counters:
    """Totals over all steps of a run and all its processes, exact, and equal after a resume except for the seconds.

    Examples and raw tokens of batch n are a function of the config and n, so every process counts those of all rows and
    nothing is communicated. FLOPs are a function of the step. The train step sums scored tokens over devices. Totals
    are Python integers, which cannot overflow, and are written with each checkpoint: the train state, and so what the
    step computes, does not contain them.

    Args:
      denoisers: the numbers of each denoiser's tasks (experiment/tasks.py), by its name. The counts are in their order.
      step_flops: model FLOPs of a step.
      count_windows: (first batch, number of batches) -> the examples and raw tokens of these batches.
      saved: what `state` returned at the checkpoint that the run continues from; None at the start of a run.
      corpora: the numbers of each corpus' tasks, by its name; empty in a run of one corpus.
      epoch_tokens: int [number of tasks], the raw tokens of one pass of each task over its corpus; read for `corpora`.
    """

    def __init__(
        self,
        denoisers: Mapping[str, Sequence[int]],
        step_flops: float,
        count_windows: Callable[[int, int], WindowCounts],
        saved: Mapping[str, Any] | None = None,
        *,
        corpora: Mapping[str, Sequence[int]] = types.MappingProxyType({}),
        epoch_tokens: Sequence[int] | np.ndarray = (),
    ):
        self._denoisers, self._corpora, self._epoch_tokens = denoisers, corpora, epoch_tokens
        self._step_flops, self._count_windows = step_flops, count_windows
        zeros = [0] * sum(map(len, denoisers.values()))
        saved = saved or {"step": 0, "examples": zeros, "raw_tokens": zeros, "scored_tokens": 0, "seconds": 0.0}
        self._step = self._counted = int(saved["step"])  # steps made, and steps whose windows are counted
        self._examples, self._raw_tokens = list(saved["examples"]), list(saved["raw_tokens"])
        self._windows = list(saved.get("windows", zeros))
        self._scored_tokens, self._seconds = int(saved["scored_tokens"]), float(saved["seconds"])

    def add_step(self, scored_tokens: int, seconds: float) -> None:
        """Adds a step: the scored tokens of its batch, and the seconds since the step before it."""
        self._step += 1
        self._scored_tokens += scored_tokens
        self._seconds += seconds

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
            "examples": sum(self._examples),
            "raw_tokens": sum(self._raw_tokens),
            "scored_tokens": self._scored_tokens,
            "flops": float(self._step * self._step_flops),
            "seconds": self._seconds,
        }

    def shares(self) -> dict[str, float]:
        """Returns example_share/<name> and token_share/<name>, each denoiser's share of `examples` and `raw_tokens`.

        In a run of several corpora each corpus has these shares too, and
          window_share/<name>: its share of the windows that were drawn. Denoisers have it too.
          raw_tokens/<corpus>: the raw tokens that were read from it.
          epochs/<corpus>: how often its training text was read, as a mean over its tokens: 1.5 is one and a half times.

        Without the denoisers' shares where there is one denoiser. Empty before the first step.
        """
        self._count()
        if not self._step:
            return {}
        groups = {**(self._denoisers if len(self._denoisers) > 1 else {}), **self._corpora}
        shares: dict[str, float] = {}
        counted = {"example_share": self._examples, "token_share": self._raw_tokens}
        counted |= {"window_share": self._windows} if self._corpora else {}
        for metric, counts in counted.items():
            for name, tasks in groups.items():
                shares[f"{metric}/{name}"] = sum(counts[k] for k in tasks) / sum(counts)
        for name, tasks in self._corpora.items():
            shares[f"raw_tokens/{name}"] = sum(self._raw_tokens[k] for k in tasks)
            # Denoisers may read a corpus with and without the EOS of documents, so passes are counted by denoiser.
            shares[f"epochs/{name}"] = sum(self._raw_tokens[k] / int(self._epoch_tokens[k]) for k in tasks)
        return shares

    def state(self) -> dict[str, Any]:
        """Returns JSON values from which `saved` restores the counters."""
        self._count()
        return {
            "step": self._step,
            "examples": self._examples,
            "raw_tokens": self._raw_tokens,
            **({"windows": self._windows} if self._corpora else {}),
            "scored_tokens": self._scored_tokens,
            "seconds": self._seconds,
        }

    def _count(self) -> None:
        """Adds the windows of the steps since the last call."""
        if self._counted == self._step:
            return
        counts = self._count_windows(self._counted, self._step - self._counted)
        self._examples = [total + int(n) for total, n in zip(self._examples, counts.examples, strict=True)]
        self._raw_tokens = [total + int(n) for total, n in zip(self._raw_tokens, counts.raw_tokens, strict=True)]
        self._windows = [total + int(n) for total, n in zip(self._windows, counts.windows, strict=True)]
        self._counted = self._step
