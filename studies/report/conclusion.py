"""The beginning of a report: what the numbers support, and what they do not."""

import dataclasses
from collections.abc import Mapping, Sequence

from command.program import plural
from studies.report.analysis import Analysis
from studies.report.literature import deciding, metrics, opposite_sentences
from studies.report.measures import detectable
from studies.report.numbers import large, listed, size
from studies.report.orders import NOT_SIGNIFICANT, Order, beyond_papers_noise, count
from studies.report.statistics import Comparison
from studies.results import Results

_MOST_NAMES = 3  # of a list within a sentence; more are counted
_UNITS = {"raw_tokens": "tokens of text", "flops": "FLOPs"}


@dataclasses.dataclass(frozen=True)
class Conclusion:
    """headline: a paragraph. points: a text for each measure, one on the literature and one on the limits."""

    headline: str
    points: Sequence[str] = ()


def conclude(results: Results, analyses: Mapping[str, Analysis], orders: Sequence[Order]) -> Conclusion:
    """Returns the conclusion. analyses: of the measures that it is about, in the order of the study."""
    sentences = _missing(results)
    if not results.outcomes:
        return Conclusion(" ".join(sentences))
    compared = [analysis for analysis in analyses.values() if not analysis.is_own]
    sentences += [_answer(results, list(analyses.values()), compared), _what_was_done(results)]
    points = [_measure(analysis) for analysis in sorted(analyses.values(), key=lambda analysis: analysis.is_own)]
    return Conclusion(" ".join(sentences), [*points, *_papers(orders), _limits(compared)])


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


def _answer(results: Results, analyses: Sequence[Analysis], compared: Sequence[Analysis]) -> str:
    """Returns the answer: that of the first measure, or what is not known."""
    if not analyses:
        return "This study compares times alone, in the last section."
    if not compared:
        return "No measure of this study compares its variants: each run is scored on its own objective."
    pairs = [pair for analysis in compared for pair in analysis.pairs.values()]
    tested = [pair for pair in pairs if pair.p is not None]
    if not tested:
        return _why_no_test(results, compared)
    significant = [pair for pair in tested if pair.sign]
    if not significant and len(tested) < len(pairs):
        return (
            f"No difference between variants that can be tested is beyond the noise between seeds: {len(tested)} of "
            f"{plural(len(pairs), 'comparison')} can be tested."
        )
    if not significant:
        return "No difference between variants is beyond the noise between seeds."
    baseline = f"the baseline `{results.study.baseline}`"
    with_baseline = [analysis for analysis in compared if any(pair.sign for pair in analysis.to_baseline.values())]
    if not with_baseline:
        is_tested = any(pair.p is not None for analysis in compared for pair in analysis.to_baseline.values())
        reason = "is beyond the noise between seeds" if is_tested else "can be tested"
        return (
            f"No difference from {baseline} {reason}; of {plural(len(tested), 'comparison')} that can be tested, "
            f"{len(significant)} {'is' if len(significant) == 1 else 'are'} beyond noise, between other variants."
        )
    first = compared[0]
    others = [f"`{analysis.measure}`" for analysis in with_baseline if analysis is not first]
    if first not in with_baseline:
        return (
            f"In `{first.measure}`, the first measure, no difference from {baseline} is beyond the noise between "
            f"seeds; some are in {listed(others, _MOST_NAMES)}."
        )
    is_first = ", the first measure" if len(compared) > 1 else ""
    too = f" Differences are beyond the noise in {listed(others, _MOST_NAMES)}, too." if others else ""
    found = f"{_better_and_worse(first)} than {baseline}"
    return f"In `{first.measure}`{is_first}, {found}, beyond the noise between seeds.{too}"


def _why_no_test(results: Results, compared: Sequence[Analysis]) -> str:
    seeds = max((summary.num_seeds for analysis in compared for summary in analysis.summaries.values()), default=0)
    if results.problems:
        return "Nothing can be tested yet, so the numbers support no order of the variants."
    if seeds < 2:
        return "With one seed of each variant the noise is not known, so the numbers support no order of the variants."
    if any(analysis.lacking for analysis in compared):
        return "No two variants can be tested, because complete runs have no value of the measures."
    return "No two variants can be tested, because the spread of their differences is not known."


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


def _measure(analysis: Analysis) -> str:
    """Returns what the runs say about a measure: differences from the baseline, and the best."""
    name, baseline = f"`{analysis.measure}`", f"`{analysis.baseline}`"
    if analysis.is_own:
        return f"{name}: each variant is scored on its own objective, so the values do not compare."
    tested = {variant: pair for variant, pair in analysis.to_baseline.items() if pair.p is not None}
    unknown = [variant for variant, pair in tested.items() if not pair.sign]
    untested = [variant for variant in analysis.to_baseline if variant not in tested]
    significant = _better_and_worse(analysis)
    if not tested:
        sentence = f"no difference from {baseline} is tested"
    elif not significant:
        sentence = f"no variant differs significantly from {baseline}"
    else:
        sentence = f"{significant} than {baseline}"
        if unknown:
            sentence += f"; no significant difference: {_names(unknown)}"
    if tested and untested:
        sentence += f"; {_names(untested)} {'is' if len(untested) == 1 else 'are'} not tested"
    some = ""
    if analysis.unmeasured:
        total = len(analysis.summaries) + len(analysis.unmeasured)
        some = f"; {len(analysis.summaries)} of {total} variants are measured"
    sentences = [f"{name} ({analysis.better} is better{some}): {sentence}.", _best(analysis)]
    if unknown:
        sentences.append(detectable(analysis))
    return " ".join(sentences)


def _better_and_worse(analysis: Analysis) -> str:
    """Returns "`a` (by 0.1) and `b` (by 0.05) are better and `c` (by 0.2) is worse", the largest first, or ""."""
    parts = []
    for rank, word in ((1, "better"), (-1, "worse")):
        found = [comparison for comparison in analysis.to_baseline.values() if analysis.rank(comparison) == rank]
        found.sort(key=lambda comparison: -abs(comparison.difference or 0.0))
        if found:
            names = listed([_with_size(pair) for pair in found], _MOST_NAMES)
            parts.append(f"{names} {'is' if len(found) == 1 else 'are'} {word}")
    return listed(parts)


def _with_size(pair: Comparison) -> str:
    return f"`{pair.first}` (by {size(pair)})"


def _best(analysis: Analysis) -> str:
    """Returns a sentence on the best variant. The comparisons with the baseline are in the sentence before."""
    if analysis.best is None:
        if not analysis.ranked:
            return "No variant has a value in each complete run."
        return "No variant is the best, because the variants have too few seeds in common."
    best = f"`{analysis.best}`"
    if len(analysis.ranked) == 1:
        return f"{best} is the only variant with enough values to be the best, so there is no best of several."
    if analysis.best == analysis.baseline:
        best = f"the baseline {best}"
    mean = "highest" if analysis.better == "higher" else "lowest"
    common = "On the seeds that two variants have in common, the" if analysis.seeds_differ else "The"
    extreme = f"{common} {mean} mean is that of {best}"
    tested = {variant: pair for variant, pair in analysis.to_best.items() if pair.p is not None}
    rivals = [variant for variant, pair in tested.items() if not pair.sign]
    if not tested or analysis.best == analysis.baseline:
        return f"{extreme}."
    if len(rivals) == len(tested):
        others = "no other variant" if len(tested) == len(analysis.to_best) else "no other variant that is tested"
        return f"{extreme}, but {others} differs significantly from it."
    if rivals:
        return f"{extreme}; no significant difference from it: {_names(rivals)}."
    others = "all other variants" if len(tested) == len(analysis.to_best) else "all other variants that are tested"
    return f"{extreme}, which is better than {others}, beyond noise."


def _names(variants: Sequence[str]) -> str:
    """Returns the names of few variants, or the number of many."""
    if len(variants) > _MOST_NAMES:
        return plural(len(variants), "variant")
    return listed([f"`{variant}`" for variant in variants])


def _papers(orders: Sequence[Order]) -> list[str]:
    if not orders:
        return []
    num_published, counts = len(beyond_papers_noise(orders)), count(orders)
    if not num_published:
        return ["Literature: none of the published orders is beyond the paper's own noise."]
    sentences = [
        f"Literature: of {plural(num_published, 'published order')}, {counts['agrees']} "
        f"agree{'s' if counts['agrees'] == 1 else ''} with these runs, {counts['disagrees']} "
        f"disagree{'s' if counts['disagrees'] == 1 else ''}, and {counts[NOT_SIGNIFICANT]} "
        "have no significant difference here.",
        deciding(orders).strip(),
    ]
    against: dict[tuple[str, str, str], list[Order]] = {}
    for order in orders:
        if order.verdict == "disagrees":
            against.setdefault((order.second, order.first, order.published.measure), []).append(order)
    sentences += [
        f"`{better}` is better here than `{worse}` in `{measure}`, against {metrics(group)}."
        for (better, worse, measure), group in list(against.items())[:_MOST_NAMES]
    ]
    if len(against) > _MOST_NAMES:
        sentences.append(f"{plural(len(against) - _MOST_NAMES, 'more comparison')} disagree.")
    contradictions = opposite_sentences(orders)
    sentences += contradictions[:_MOST_NAMES]
    if len(contradictions) > _MOST_NAMES:
        sentences.append(f"{plural(len(contradictions) - _MOST_NAMES, 'more pair')} are published in both orders.")
    return [" ".join(sentence for sentence in sentences if sentence)]


def _limits(compared: Sequence[Analysis]) -> str:
    """Returns what the results cannot say."""
    sentences = []
    if len(compared) > 1:
        sentences.append(
            f"verdicts are corrected for the number of comparisons within a measure, not for the {len(compared)} "
            "measures, so a single verdict among many can be chance."
        )
    if any(pair.p is not None and not pair.sign for analysis in compared for pair in analysis.pairs.values()):
        sentences.append("variants without a significant difference are not shown to be equal.")
    sentences.append(
        "the results hold for these models, this text and this budget, and the intervals contain the noise between "
        "training seeds alone."
    )
    return f"Limits: {' '.join([sentences[0], *(text[0].upper() + text[1:] for text in sentences[1:])])}"
