"""Published orders of variants and the study's, with the counts of those that agree."""

from collections.abc import Mapping, Sequence

from command.program import plural
from studies.report.analysis import Analysis
from studies.report.blocks import Block, Heading, Paragraph, Table
from studies.report.numbers import decimals_of, listed, number, probability, with_interval
from studies.report.orders import (
    VERDICTS,
    Order,
    beyond_papers_noise,
    count,
    count_deciding,
    opposite,
)

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
    verdicts = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS)
    blocks: list[Block] = [
        heading,
        Paragraph(
            f"{verdicts[0].upper()}{verdicts[1:]}. {deciding(orders)}An order agrees or disagrees only if the "
            "difference of these runs is beyond noise; p and the verdict are those of the measure's own comparisons. "
            "An order is within the paper's noise if its values are equal, or differ by less than two standard "
            "deviations of a difference, where the paper gives its standard deviation."
        ),
    ]
    contradictions = opposite_sentences(orders)
    if contradictions:
        blocks.append(Paragraph(" ".join(contradictions)))
    for result in dict.fromkeys(id(order.published) for order in orders):
        group = [order for order in orders if id(order.published) == result]
        published = group[0].published
        blocks.append(Heading(f"{published.source}: {published.metric}", 3))
        blocks.append(
            Paragraph(
                f"The paper measures {published.metric} ({_better(group[0])}), and these runs measure "
                f"`{published.measure}` ({analyses[published.measure].better} is better)."
            )
        )
        blocks.append(Table(_HEADER, [_row(order, analyses) for order in group], numbers=(2, 3, 4)))
    return blocks


def deciding(orders: Sequence[Order]) -> str:
    """Returns a sentence on how few comparisons decide about the orders, or "" if each order has its own."""
    num_orders, comparisons = len(beyond_papers_noise(orders)), count_deciding(orders)
    if num_orders == comparisons:
        return ""
    decide = "decides" if comparisons == 1 else "decide"
    which = f"all {num_orders} orders beyond the papers' noise"
    return f"{plural(comparisons, 'comparison')} of these runs {decide} about {which}. "


def opposite_sentences(orders: Sequence[Order]) -> list[str]:
    """Returns a sentence for each pair of variants that papers, or two metrics of a paper, order in both directions."""
    sentences = []
    for one, other in opposite(orders):
        first, second = f"`{one[0].first}`", f"`{one[0].second}`"
        sources = {order.published.source for order in (*one, *other)}
        if len(sources) == 1:
            better, worse = (listed([order.published.metric for order in group]) for group in (one, other))
            where = f" in {sources.pop()}"
        else:
            better, worse, where = metrics(one), metrics(other), ""
        sentences.append(
            f"The published orders of {first} and {second} contradict each other{where}: {first} is better in {better} "
            f"and worse in {worse}, so these runs cannot agree with both."
        )
    return sentences


def metrics(orders: Sequence[Order]) -> str:
    """Returns the papers' metrics of `orders`, with their sources, each source once."""
    by_source: dict[str, list[str]] = {}
    for order in orders:
        by_source.setdefault(order.published.source, []).append(order.published.metric)
    return listed([f"{listed(list(dict.fromkeys(names)))} of {source}" for source, names in by_source.items()])


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
