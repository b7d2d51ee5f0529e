"""The first paragraph of a report: what the numbers support, and what they do not."""

from collections.abc import Mapping, Sequence

from train.ablate.report.analysis import Analysis
from train.ablate.report.numbers import decimals_of, large, listed, number, plural
from train.ablate.report.orders import Order, count
from train.ablate.report.statistics import POWER, Comparison
from train.ablate.results import Results

_MOST_NAMES = 4
_UNITS = {"raw_tokens": "tokens of text", "flops": "FLOPs"}


def conclude(results: Results, analyses: Mapping[str, Analysis], orders: Sequence[Order]) -> str:
    """Returns the conclusion, as one paragraph. analyses: of the measures that the paragraph is about."""
    sentences = [*_missing(results)]
    if results.outcomes:
        sentences += _headline(analyses)
        sentences.append(_what_was_done(results))
        for analysis in analyses.values():
            sentences += _measure(analysis, results)
        sentences += _papers(orders)
        sentences.append(
            "All of this holds for these models, this text and this budget; the intervals contain the noise between "
            "training seeds alone."
        )
    return " ".join(sentences)


def _missing(results: Results) -> list[str]:
    if not results.problems:
        return []
    total = len(results.outcomes) + len(results.problems)
    states = dict.fromkeys(problem.state for problem in results.problems)
    counts = [f"{sum(problem.state == state for problem in results.problems)} {state}" for state in states]
    begin = f"This study is not complete: {len(results.outcomes)} of {plural(total, 'run')} are complete"
    if not results.outcomes:
        return [f"{begin} ({', '.join(counts)}), so there is no result yet."]
    return [f"{begin} ({', '.join(counts)}). What follows is about the complete runs alone and can change."]


def _headline(analyses: Mapping[str, Analysis]) -> list[str]:
    """Says first of all if no difference is beyond noise."""
    compared = [analysis for analysis in analyses.values() if not analysis.is_own]
    if not analyses:
        return ["This study compares times alone, in the last section."]
    if not compared:
        return ["No measure of this study compares its variants: each run is scored on its own objective."]
    tests = [
        comparison
        for analysis in compared
        for comparison in (*analysis.to_baseline.values(), *analysis.to_best.values())
    ]
    if not any(comparison.p is not None for comparison in tests):
        seeds = max((summary.num_seeds for analysis in compared for summary in analysis.summaries.values()), default=0)
        if seeds < 2:
            return [
                "With one seed of each variant the noise is not known, so the numbers support no order of the variants."
            ]
        return ["No two variants can be tested, because the spread of their differences is not known."]
    if not any(comparison.sign for comparison in tests):
        return ["No difference between variants is beyond the noise between seeds."]
    return []


def _what_was_done(results: Results) -> str:
    study = results.study
    variants = list(dict.fromkeys(outcome.variant for outcome in results.outcomes))
    seeds = len({outcome.seed for outcome in results.outcomes})
    budget = f"{large(study.budget.amount)} {_UNITS[study.budget.unit]}"
    return f"{plural(len(variants), 'variant')} were trained on {budget} each, with {plural(seeds, 'seed')}.".replace(
        "1 variant were", "1 variant was"
    )


def _measure(analysis: Analysis, results: Results) -> list[str]:
    """Returns what the runs say about a measure: differences from the baseline, the best, and what stays unknown."""
    name, baseline = f"`{analysis.measure}`", results.study.baseline
    if analysis.is_own:
        return [f"{name} scores each variant on its own objective and does not compare them."]
    if analysis.best is None:
        return [f"{name} has no variant with a value in each complete run."]
    told = [
        _told(analysis, 1, "better"),
        _told(analysis, -1, "worse"),
    ]
    said = [text for text in told if text]
    unknown = [variant for variant, comparison in analysis.to_baseline.items() if not comparison.sign]
    if said:
        sentence = f"In {name} ({analysis.better} is better), {listed(said)} than `{baseline}`"
        if unknown:
            sentence += f", and {_names(unknown)} cannot be told from `{baseline}`"
    else:
        sentence = f"In {name} ({analysis.better} is better), no variant can be told from `{baseline}`"
    return [f"{sentence}.", _best(analysis), *_unseen(analysis, unknown)]


def _told(analysis: Analysis, rank: int, word: str) -> str:
    """Returns "`a` (by 0.1) and `b` (by 0.05) are better", the largest differences first, or ""."""
    found = [comparison for comparison in analysis.to_baseline.values() if analysis.rank(comparison) == rank]
    found.sort(key=lambda comparison: -abs(comparison.difference or 0.0))
    decimals = decimals_of(analysis)
    names = [f"`{pair.first}` (by {number(abs(pair.difference or 0.0), decimals)})" for pair in found]
    return f"{listed(names, _MOST_NAMES)} {'is' if len(names) == 1 else 'are'} {word}" if names else ""


def _best(analysis: Analysis) -> str:
    extreme = "highest" if analysis.better == "higher" else "lowest"
    rivals = [variant for variant, comparison in analysis.to_best.items() if not comparison.sign]
    if not rivals:
        return f"`{analysis.best}` has the {extreme} mean and is beyond noise better than all other variants."
    if len(rivals) == len(analysis.to_best):
        return f"`{analysis.best}` has the {extreme} mean, but no other variant can be told from it."
    return f"`{analysis.best}` has the {extreme} mean; {_names(rivals)} cannot be told from it."


def _unseen(analysis: Analysis, unknown: Sequence[str]) -> list[str]:
    """Says that variants which cannot be told apart are not shown to be equal."""
    tested: list[Comparison] = [analysis.to_baseline[variant] for variant in unknown]
    if analysis.detectable is None or not any(comparison.p is not None for comparison in tested):
        return []
    smallest = number(analysis.detectable, decimals_of(analysis))
    return [
        f"This does not show that they are equal: with these seeds a difference from the baseline has to be about "
        f"{smallest} to be found with a probability of {POWER:.0%}."
    ]


def _names(variants: Sequence[str]) -> str:
    return listed([f"`{variant}`" for variant in variants], _MOST_NAMES)


def _papers(orders: Sequence[Order]) -> list[str]:
    if not orders:
        return []
    counts = count(orders)
    told = len(orders) - counts["not told by the paper"]
    if not told:
        return ["The literature tells none of the published orders from its own noise."]
    sentences = [
        f"Of {plural(told, 'published order')}, {counts['agrees']} agree{'s' if counts['agrees'] == 1 else ''} with "
        f"these runs, {counts['disagrees']} disagree{'s' if counts['disagrees'] == 1 else ''}, and "
        f"{counts['cannot be told']} cannot be told."
    ]
    for order in orders:
        if order.verdict == "disagrees":
            sentences.append(
                f"Against {order.published.source}, `{order.second}` is better here than `{order.first}` in "
                f"`{order.published.measure}`."
            )
    return sentences
