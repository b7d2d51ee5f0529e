"""Totals of a run since its first step: examples, tokens, FLOPs and seconds, over which runs can be compared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.batches import WindowCounts


class Counters:
    """Totals over all steps of a run and all its processes, exact, and equal after a resume except for the seconds.

    Examples and raw tokens of batch n are a function of the config and n, so every process counts those of all rows and
    nothing is communicated. FLOPs are a function of the step. The train step sums scored tokens over devices. Totals
    are Python integers, which cannot overflow, and are written with each checkpoint: the train state, and so what the
    step computes, does not contain them.

    Args:
      denoiser_names: in the order of the counts.
      step_flops: model FLOPs of a step.
      count_windows: (first batch, number of batches) -> the examples and raw tokens of these batches.
      saved: what `state` returned at the checkpoint that the run continues from; None at the start of a run.
    """

    def __init__(
        self,
        denoiser_names: Sequence[str],
        step_flops: float,
        count_windows: Callable[[int, int], WindowCounts],
        saved: Mapping[str, Any] | None = None,
    ):
        self._names, self._step_flops, self._count_windows = denoiser_names, step_flops, count_windows
        zeros = [0] * len(denoiser_names)
        saved = saved or {"step": 0, "examples": zeros, "raw_tokens": zeros, "scored_tokens": 0, "seconds": 0.0}
        self._step = self._counted = int(saved["step"])  # steps made, and steps whose windows are counted
        self._examples, self._raw_tokens = list(saved["examples"]), list(saved["raw_tokens"])
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

        Empty without a mixture, and before the first step.
        """
        self._count()
        if len(self._names) == 1 or not self._step:
            return {}
        shares = {}
        for metric, counts in (("example_share", self._examples), ("token_share", self._raw_tokens)):
            for name, count in zip(self._names, counts, strict=True):
                shares[f"{metric}/{name}"] = count / sum(counts)
        return shares

    def state(self) -> dict[str, Any]:
        """Returns JSON values from which `saved` restores the counters."""
        self._count()
        return {
            "step": self._step,
            "examples": self._examples,
            "raw_tokens": self._raw_tokens,
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
        self._counted = self._step
