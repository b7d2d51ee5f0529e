"""Orders of variants in the literature, compared with those of a study."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from train.ablate.report.analysis import Analysis
from train.ablate.report.statistics import Comparison
from train.ablate.study import Published, Study

Verdict = Literal["agrees", "disagrees", "cannot be told", "not told by the paper"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "disagrees", "cannot be told", "not told by the paper")


@dataclasses.dataclass(frozen=True)
class Order:
    """Two variants in a paper and in the study.

    Attributes:
      first, second: the variants; the paper says that `first` is better, if it says so.
      paper: the paper's values of first and second; None if only the order is known.
      ours: first minus second, corrected over the pairs of the published result.
    """

    published: Published
    first: str
    second: str
    paper: tuple[float, float] | None
    ours: Comparison
    verdict: Verdict


def compare_with_papers(study: Study, analyses: Mapping[str, Analysis]) -> list[Order]:
    """Returns every pair of variants that the study's published results order."""
    return [order for result in study.published for order in _orders(result, study.baseline, analyses[result.measure])]


def count(orders: Sequence[Order]) -> dict[Verdict, int]:
    """Returns the number of orders with each verdict."""
    return {verdict: sum(order.verdict == verdict for order in orders) for verdict in VERDICTS}


def _orders(result: Published, baseline: str, analysis: Analysis) -> list[Order]:
    told = {(first, second): True for first, second in result.better_than}
    if baseline in result.values:
        for variant in result.values:
            if variant != baseline:
                first, second = _better_first(result, variant, baseline)
                told[first, second] = told.get((first, second), False) or _is_told(result, first, second)
    orders = []
    for (first, second), ours in zip(told, analysis.compare(list(told)), strict=True):
        if analysis.is_own:  # the values are of different objectives, whatever their difference
            ours = Comparison(first, second, ours.num_seeds, None, reason="each on its own objective")
        verdict: Verdict = "not told by the paper"
        if told[first, second]:
            verdict = {1: "agrees", 0: "cannot be told", -1: "disagrees"}[analysis.rank(ours)]
        both = first in result.values and second in result.values
        paper = (float(result.values[first]), float(result.values[second])) if both else None
        orders.append(Order(result, first, second, paper, ours, verdict))
    return orders


def _better_first(result: Published, variant: str, baseline: str) -> tuple[str, str]:
    variant_is_better = (result.values[variant] > result.values[baseline]) == (result.better == "higher")
    return (variant, baseline) if variant_is_better else (baseline, variant)


def _is_told(result: Published, first: str, second: str) -> bool:
    """Whether the paper's values differ, and by two standard deviations of a difference if these are known."""
    difference = abs(result.values[first] - result.values[second])
    return difference > 0 and difference >= 2 * math.sqrt(2) * result.sd
