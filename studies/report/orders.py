"""Orders of variants in the literature, compared with those of a study."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from studies.report.analysis import Analysis
from studies.report.statistics import Comparison
from studies.study import Published, Study

Verdict = Literal["agrees", "disagrees", "no significant difference", "within the paper's noise"]
NOT_SIGNIFICANT: Verdict = "no significant difference"
IN_PAPERS_NOISE: Verdict = "within the paper's noise"
VERDICTS: tuple[Verdict, ...] = ("agrees", "disagrees", NOT_SIGNIFICANT, IN_PAPERS_NOISE)


@dataclasses.dataclass(frozen=True)
class Order:
    """Two variants in a paper and in the study.

    Attributes:
      first, second: the variants; the paper says that `first` is better, if it says so.
      paper: the paper's values of first and second; None if only the order is known.
      ours: first minus second, with the verdict that the report has for the pair everywhere.
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


def beyond_papers_noise(orders: Sequence[Order]) -> list[Order]:
    """Returns the orders whose published difference is beyond the paper's noise."""
    return [order for order in orders if order.verdict != IN_PAPERS_NOISE]


def count_deciding(orders: Sequence[Order]) -> int:
    """Returns how many comparisons of the study's runs decide about the orders beyond the papers' noise.

    It is less than the number of orders where papers, or two metrics of a paper, order the same pair of variants.
    """
    return len({_pair(order) for order in beyond_papers_noise(orders)})


def opposite(orders: Sequence[Order]) -> list[tuple[list[Order], list[Order]]]:
    """Returns the orders of each pair of variants that papers, or two metrics of one, publish in both directions."""
    groups: dict[tuple[str, frozenset[str]], list[Order]] = {}
    for order in beyond_papers_noise(orders):
        groups.setdefault(_pair(order), []).append(order)
    split = [
        ([order for order in group if order.first == group[0].first], [o for o in group if o.first != group[0].first])
        for group in groups.values()
    ]
    return [(one, other) for one, other in split if other]


def _pair(order: Order) -> tuple[str, frozenset[str]]:
    return order.published.measure, frozenset((order.first, order.second))


def _orders(result: Published, baseline: str, analysis: Analysis) -> list[Order]:
    published = {(first, second): True for first, second in result.better_than}  # pair -> beyond the paper's noise
    if baseline in result.values:
        for variant in result.values:
            if variant != baseline:
                first, second = _better_first(result, variant, baseline)
                published.setdefault((first, second), _is_beyond_noise(result, first, second))
    orders = []
    for (first, second), is_beyond_noise in published.items():
        ours = analysis.pair(first, second)
        verdict: Verdict = IN_PAPERS_NOISE
        if is_beyond_noise:
            verdict = {1: "agrees", 0: NOT_SIGNIFICANT, -1: "disagrees"}[analysis.rank(ours)]
        both = first in result.values and second in result.values
        paper = (float(result.values[first]), float(result.values[second])) if both else None
        orders.append(Order(result, first, second, paper, ours, verdict))
    return orders


def _better_first(result: Published, variant: str, baseline: str) -> tuple[str, str]:
    variant_is_better = (result.values[variant] > result.values[baseline]) == (result.better == "higher")
    return (variant, baseline) if variant_is_better else (baseline, variant)


def _is_beyond_noise(result: Published, first: str, second: str) -> bool:
    """Whether the paper's values differ, and by two standard deviations of a difference if these are known."""
    difference = abs(result.values[first] - result.values[second])
    return difference > 0 and difference >= 2 * math.sqrt(2) * result.sd
