"""Sums over the steps of one line of metrics.jsonl, so that a line reports all of its batches and not the last one."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learners.learner import Sums

# Metrics of a train step that are not the learner's Sums (run/step.py).
_OF_THE_STEP = (
    "grad_norm",
    "useful_token_fraction",
    "scored_tokens",
    "skipped_count",
    "skipped_in_a_row_count",
    "loss_scale",
)


class LineSums:
    """The learner's Sums, and the share of useful positions, added over the steps since the line before, in float64.

    They are written with each checkpoint. A run that is continued between two lines therefore writes the same next line
    as an uninterrupted one.

    saved: what `state` returned at the checkpoint that the run continues from; empty at the start of a run.
    """

    def __init__(self, saved: Sequence[Any] = ()):
        self._leaves = [np.asarray(leaf, np.float64) for leaf in saved]
        self._structure: Any = None  # of the leaves; known after the first step

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Adds a step. metrics: those of the train step, on the host."""
        sums = {name: value for name, value in metrics.items() if name not in _OF_THE_STEP}
        step = {"sums": sums, "useful": metrics.get("useful_token_fraction", 0.0), "steps": 1}
        leaves, self._structure = jax.tree.flatten(step)
        leaves = [np.asarray(leaf, np.float64) for leaf in leaves]
        self._leaves = [a + b for a, b in zip(self._leaves, leaves, strict=True)] if self._leaves else leaves

    def take(self) -> tuple[Sums, float]:
        """Returns the learner's Sums over the steps, and the mean share of useful positions; starts the next line."""
        total = jax.tree.unflatten(self._structure, self._leaves)
        self._leaves = []
        return total["sums"], float(total["useful"] / total["steps"])

    def state(self) -> list[Any]:
        """Returns JSON values from which `saved` restores the sums."""
        return [leaf.tolist() for leaf in self._leaves]
