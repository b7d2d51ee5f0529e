"""The first paragraph of a report: what the numbers support, and what they do not."""

from collections.abc import Iterable, Mapping, Sequence

from train.ablate.report.analysis import Analysis
from train.ablate.report.numbers import decimals_of, large, listed, number, plural
from train.ablate.report.orders import Order, count
from train.ablate.report.statistics import POWER
from train.ablate.results import Results

_MOST_NAMES = 4
_UNITS = {"raw_tokens": "tokens of text", "flops": "FLOPs"}


def conclude(results: Results, analyses: Mapping[str, Analysis], orders: Sequence[Order]) -> str:
    """Returns the conclusion, as one paragraph. analyses: of the measures that the paragraph is about."""
    sentences = [*_missing(results)]
    if results.outcomes:
        sentences += _headline(analyses)
        sentences.append(_what_was_done(results))
        for analysis in sorted(analyses.values(), key=lambda analysis: analysis.is_own):
            sentences += _measure(analysis, results)
        sentences += [*_unseen(analyses.values()), *_papers(orders)]
        sentences.append(
            "The results hold for these models, this text and this budget, and the intervals contain the noise between "
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
    were = "was" if len(variants) == 1 else "were"
    trained = plural(len(variants), "variant")
    if results.problems:
        trained = f"{len(variants)} of {plural(len(study.variants), 'variant')}"
    up_to = "up to " if results.problems else ""
    return f"{trained} {were} trained with {up_to}{plural(seeds, 'seed')}, each run on {budget}."


def _measure(analysis: Analysis, results: Results) -> list[str]:
    """Returns what the runs say about a measure: differences from the baseline, and the best."""
    name, baseline = f"`{analysis.measure}`", results.study.baseline
    if analysis.is_own:
        return [f"{name} scores each variant on its own objective and does not compare them."]
    if analysis.best is None:
        return [f"{name} has no variant with a value in each complete run."]
    tested = {variant: pair for variant, pair in analysis.to_baseline.items() if pair.p is not None}
    begin = f"In {name} ({analysis.better} is better),"
    if not tested:
        return [f"{begin} no difference from `{baseline}` is tested; {_best(analysis)}"]
    said = [text for text in (_told(analysis, 1, "better"), _told(analysis, -1, "worse")) if text]
    unknown = [variant for variant, pair in tested.items() if not pair.sign]
    if not said:
        sentence = f"{begin} no variant can be told from `{baseline}`"
    else:
        sentence = f"{begin} {listed(said)} than `{baseline}`"
        if unknown:
            sentence += f", and {_names(unknown)} cannot be told from `{baseline}`"
    if len(tested) < len(analysis.to_baseline):
        untested = [variant for variant in analysis.to_baseline if variant not in tested]
        sentence += f"; {_names(untested)} {'is' if len(untested) == 1 else 'are'} not tested"
    return [f"{sentence}.", _capital(_best(analysis))]


def _told(analysis: Analysis, rank: int, word: str) -> str:
    """Returns "`a` (by 0.1) and `b` (by 0.05) are better", the largest differences first, or ""."""
    found = [comparison for comparison in analysis.to_baseline.values() if analysis.rank(comparison) == rank]
    found.sort(key=lambda comparison: -abs(comparison.difference or 0.0))
    decimals = max(decimals_of(analysis) - 1, 0)
    names = [f"`{pair.first}` (by {number(abs(pair.difference or 0.0), decimals)})" for pair in found]
    return f"{listed(names, _MOST_NAMES)} {'is' if len(names) == 1 else 'are'} {word}" if names else ""


def _best(analysis: Analysis) -> str:
    extreme = f"the {'highest' if analysis.better == 'higher' else 'lowest'} mean is that of `{analysis.best}`"
    tested = {variant: pair for variant, pair in analysis.to_best.items() if pair.p is not None}
    rivals = [variant for variant, pair in tested.items() if not pair.sign]
    if not tested:
        return f"{extreme}."
    if len(rivals) == len(tested):
        return f"{extreme}, but no other variant can be told from it."
    if rivals:
        return f"{extreme}; {_names(rivals)} cannot be told from it."
    others = "all other variants" if len(tested) == len(analysis.to_best) else "all other variants that are tested"
    return f"{extreme}, which is better than {others}, beyond noise."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _unseen(analyses: Iterable[Analysis]) -> list[str]:
    """Says that variants which cannot be told apart are not shown to be equal."""
    smallest = [
        f"{number(analysis.detectable, decimals_of(analysis))} in `{analysis.measure}`"
        for analysis in analyses
        if analysis.detectable is not None
        and any(pair.p is not None and not pair.sign for pair in analysis.to_baseline.values())
    ]
    if not smallest:
        return []
    return [
        "Variants that cannot be told apart are not shown to be equal: with these seeds, a difference from the "
        f"baseline has to be about {listed(smallest)} to be found with a probability of {POWER:.0%}."
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
