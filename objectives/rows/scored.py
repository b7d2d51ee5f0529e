"""The most positions that are scored in a row, computed before any text is read: how many logits a row needs."""

from collections.abc import Sequence

import numpy as np

from contract.windows import BatchSpec
from objectives.objective import Denoiser
from objectives.rows.lengths import RowShape


def most_scored(denoisers: Sequence[Denoiser], spec: BatchSpec, row_shape: RowShape) -> int:
    """Returns an upper bound of the positions with a loss weight in a row: for every text and every random draw.

    Where documents determine how many examples a row has ("pack", "whole"), the bound is the length of the row.

    Args:
      denoisers: the table.
      spec: the windows of the rows.
      row_shape: the positions of the rows.
    """
    length = row_shape.targets_length if row_shape.architecture == "encoder_decoder" else row_shape.inputs_length
    if any(window.documents in ("pack", "whole") for window in spec.windows):
        return length
    if spec.plan is None:
        bounds = [_bounds(denoiser, w.raw_length)[-1] for denoiser, w in zip(denoisers, spec.windows, strict=True)]
        return min(length, spec.examples_per_row * int(max(bounds)))
    bounds_of_examples = np.zeros(spec.plan.raw_lengths.shape, np.int64)
    for k, denoiser in enumerate(denoisers):
        is_denoiser = spec.plan.denoiser_ids == k
        for part, of_part in enumerate(denoiser.parts(int(spec.plan.parts[is_denoiser].max()) + 1)):
            chosen = is_denoiser & (spec.plan.parts == part)
            of_lengths = _bounds(of_part, int(spec.plan.raw_lengths.max()))
            bounds_of_examples[chosen] = of_lengths[spec.plan.raw_lengths[chosen] - 1]
    return min(length, int(bounds_of_examples.sum(axis=1).max()))


def _bounds(denoiser: Denoiser, longest: int) -> np.ndarray:
    """int64 [longest]: the bound of the examples of windows of 1, ..., longest tokens and of shorter windows."""
    return np.maximum.accumulate(denoiser.objective.most_scored(np.arange(1, longest + 1)))
