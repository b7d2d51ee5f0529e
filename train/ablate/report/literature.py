"""Published orders of variants and the study's, with the counts of those that agree."""

from collections.abc import Mapping, Sequence

from train.ablate.report.analysis import Analysis
from train.ablate.report.blocks import Block, Heading, Paragraph, Table
from train.ablate.report.numbers import decimals_of, number, probability, with_interval
from train.ablate.report.orders import VERDICTS, Order, count

_HEADER = (
    "the paper: better",
    "than",
    "the paper's values",
    "here: first minus second",
    "p (Holm)",
    "sign here",
    "verdict",
)


def literature_blocks(orders: Sequence[Order], analyses: Mapping[str, Analysis], heading: Heading) -> list[Block]:
    """Returns a table of each published result, under the counts of all verdicts; [] without orders."""
    if not orders:
        return []
    counts = count(orders)
    told = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS)
    blocks: list[Block] = [
        heading,
        Paragraph(
            f"{told[0].upper()}{told[1:]}. An order agrees or disagrees only if the paired t test, with Holm's "
            "correction for the pairs of the published result, puts the difference of these runs beyond noise. The "
            "paper does not tell an order if its values are equal, or differ by less than two standard deviations of "
            "a difference, where the paper gives its standard deviation."
        ),
    ]
    for result in dict.fromkeys(id(order.published) for order in orders):
        group = [order for order in orders if id(order.published) == result]
        published = group[0].published
        blocks.append(Heading(published.source, 3))
        blocks.append(
            Paragraph(
                f"The paper measures {published.metric} ({_better(group[0])}), and these runs measure "
                f"`{published.measure}` ({analyses[published.measure].better} is better)."
            )
        )
        blocks.append(Table(_HEADER, [_row(order, analyses) for order in group], numbers=(2, 3, 4)))
    return blocks


def _better(order: Order) -> str:
    return f"{order.published.better} is better" if order.published.values else "the order alone is used here"


def _row(order: Order, analyses: Mapping[str, Analysis]) -> list[str]:
    analysis = analyses[order.published.measure]
    paper = "the order alone"
    if order.paper is not None:
        first, second = order.paper
        paper = f"{first:g} − {second:g} = {number(first - second, _decimals(order.paper), sign=True)}"
    here = order.ours.difference
    if here is None:
        direction = "–"
    else:
        gain = here if analysis.better == "higher" else -here
        direction = "equal" if gain == 0 else "first is better" if gain > 0 else "second is better"
    return [
        f"`{order.first}`",
        f"`{order.second}`",
        paper,
        with_interval(order.ours, decimals_of(analysis)),
        probability(order.ours.corrected),
        direction,
        f"{order.verdict} ({order.ours.reason})" if order.ours.reason else order.verdict,
    ]


def _decimals(values: tuple[float, float]) -> int:
    """Returns the decimals of a paper's values as they are written."""
    return max(len(f"{value:g}".partition(".")[2]) for value in values)
