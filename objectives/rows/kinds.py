"""Kinds of windows: which windows of a batch are corrupted by one call."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from contract.windows import RowPlan
from objectives.denoising import views_of
from objectives.objective import Denoiser


class Kinds(NamedTuple):
    """The windows that a table of denoisers corrupts alike, in groups that one call corrupts.

    A kind is a denoiser, or a part of a denoiser in a row plan. Tasks that differ in their corpus alone are one kind.
    """

    denoisers: tuple[Denoiser, ...]  # of each kind
    groups: tuple[tuple[int, int], ...]  # the first kind of each group, and the one after its last
    first_kind: np.ndarray  # int64 [rows of the table], the kind of a denoiser or of its part 0; the other parts follow

    def of_windows(self, denoiser_ids: np.ndarray, parts: np.ndarray | None) -> np.ndarray:
        """The kinds, int64 [E], of windows of these denoisers and parts, int [E]; parts: None without a row plan."""
        kinds = self.first_kind[denoiser_ids]
        return kinds if parts is None else kinds + parts


def make_kinds(denoisers: Sequence[Denoiser], plan: RowPlan | None) -> Kinds:
    """Returns the kinds of a table of denoisers.

    Denoising objectives with the same views are a group (objectives/denoising.py, `corrupt_together`), as are six of
    UL2's seven. Every other objective is a group of its own.
    """
    groups: dict[Hashable, dict[Hashable, tuple[tuple[Denoiser, ...], list[int]]]] = {}
    for k, denoiser in enumerate(denoisers):
        parts: tuple[Denoiser, ...] = (denoiser,)
        if plan is not None:
            parts = denoiser.parts(int(plan.parts[plan.denoiser_ids == k].max()) + 1)
        group = groups.setdefault((views_of(parts[0].objective) or denoiser.objective, bool(denoiser.mode)), {})
        _, alike = group.setdefault((denoiser.objective, denoiser.mode, len(parts)), (parts, []))
        alike.append(k)
    kinds: list[Denoiser] = []
    bounds, first_kind = [], np.zeros(len(denoisers), np.int64)
    for group in groups.values():
        begin = len(kinds)
        for parts, alike in group.values():
            first_kind[alike] = len(kinds)
            kinds += parts
        bounds.append((begin, len(kinds)))
    return Kinds(tuple(kinds), tuple(bounds), first_kind)
