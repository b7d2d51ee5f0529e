"""Kinds of windows: which windows of a batch are corrupted by one call."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from contract.windows import RowPlan
from objectives.denoising import views_of
from objectives.objective import Denoiser


class Kinds(NamedTuple):
    """The different denoisers of a table, in groups whose windows are corrupted by one call.

    A kind is an objective with a mode: that of a denoiser, or of a part of one in a row plan. Denoisers of several
    corpora that differ in nothing else are one kind.
    """

    denoisers: tuple[Denoiser, ...]  # one of each kind
    groups: tuple[tuple[int, int], ...]  # the first kind of each group, and the one after its last
    of_parts: np.ndarray  # int64 [rows of the table, P], the kind of each part of a denoiser; part 0 without a row plan

    def of_windows(self, denoiser_ids: np.ndarray, parts: np.ndarray | None) -> np.ndarray:
        """The kinds, int64 [E], of windows of these denoisers and parts, int [E]; parts: None without a row plan."""
        return self.of_parts[denoiser_ids, 0 if parts is None else parts]


def make_kinds(denoisers: Sequence[Denoiser], plan: RowPlan | None) -> Kinds:
    """Returns the kinds of a table of denoisers.

    Denoising objectives with the same views are a group (objectives/denoising.py, `corrupt_together`), as are six of
    UL2's seven. Every other kind is a group of its own.
    """
    of_denoisers: list[tuple[Denoiser, ...]] = []
    for k, denoiser in enumerate(denoisers):
        count = 0 if plan is None else int(plan.parts[plan.denoiser_ids == k].max()) + 1
        of_denoisers.append(denoiser.parts(count) if count else (denoiser,))
    kinds: dict[Hashable, Denoiser] = {}
    groups: dict[Hashable, list[Hashable]] = {}
    for part in (part for parts in of_denoisers for part in parts):
        if _kind(part) not in kinds:
            kinds[_kind(part)] = part
            views = views_of(part.objective)
            groups.setdefault((views, bool(part.mode)) if views else _kind(part), []).append(_kind(part))
    numbers = {kind: number for number, kind in enumerate(kind for group in groups.values() for kind in group)}
    of_parts = np.zeros((len(denoisers), max(map(len, of_denoisers))), np.int64)
    for k, parts in enumerate(of_denoisers):
        of_parts[k, : len(parts)] = [numbers[_kind(part)] for part in parts]
    ends = np.cumsum([len(group) for group in groups.values()]).tolist()
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return Kinds(tuple(kinds[kind] for kind in numbers), tuple(bounds), of_parts)


def _kind(denoiser: Denoiser) -> Hashable:
    return denoiser.objective, denoiser.mode
