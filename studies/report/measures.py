"""The table of each measure, and the values of every run."""

from collections.abc import Mapping, Sequence

from command.program import plural
from studies.report.analysis import Analysis
from studies.report.blocks import Block, Paragraph, Table
from studies.report.numbers import (
    decimals_of,
    listed,
    number,
    probability,
    significant,
    with_interval,
)
from studies.report.statistics import POWER, Comparison
from studies.results import Results
from studies.study import Study

_RANKS = {1: "better", 0: "no significant difference", -1: "worse"}

READING = (
    "Brackets are 95% intervals over seeds (t distribution). A difference is paired: it is the mean over seeds of the "
    "variant minus the baseline at the same seed, and its interval is that of this one comparison. p is that of the "
    "paired t test after Holm's correction for all comparisons with the baseline. A variant is better or worse only if "
    "this p is below 0.05; an interval without 0 is not enough. The best variant is known only after the runs are, so "
    "comparisons of the best with others than the baseline are corrected for all pairs of variants without the "
    "baseline. A pair of variants has the same verdict everywhere in this report. Measures are not corrected for each "
    "other."
)
_MOST_NAMES = 5


def measure_blocks(analysis: Analysis, results: Results) -> list[Block]:
    """Returns the table of a measure, and notes on what it lacks."""
    study, decimals = results.study, decimals_of(analysis)
    better = f"{analysis.better.capitalize()} is better."
    if analysis.is_own:
        rows = [
            [f"`{variant}`", with_interval(summary, decimals), str(summary.num_seeds)]
            for variant, summary in analysis.summaries.items()
        ] + [[f"`{variant}`", "not measured", "–"] for variant in analysis.unmeasured]
        return [
            *_conditions(study, analysis),
            Paragraph(
                "Each variant is scored on its own objective. The objectives differ, so the values do not compare, and "
                "no difference is tested."
            ),
            Table(["variant", "mean [95% interval]", "seeds"], rows, numbers=(1, 2)),
            *_notes(analysis, results),
        ]
    header = [
        "variant",
        "mean [95% interval]",
        "seeds",
        "minus the baseline [95% interval]",
        "p (Holm)",
        "against the baseline",
        "against the best",
    ]
    rows = [_row(variant, analysis, decimals) for variant in study.variants]
    return [
        Paragraph(better),
        *_conditions(study, analysis),
        Table(header, rows, numbers=(1, 2, 3, 4)),
        *_notes(analysis, results),
    ]


def _conditions(study: Study, analysis: Analysis) -> list[Block]:
    """Returns what a measure is and how it is taken."""
    fields = study.measures[analysis.measure]
    overrides = "".join(f", `{field}={value}`" for field, value in fields.get("overrides", {}).items())
    under = f" under `{fields['config']}`{overrides}" if fields.get("config") else ""
    if fields["kind"] == "fine_tuning":
        text = f"`{fields['metric']}` at the end of a fine-tuning of each run: `{fields['config']}`{overrides}."
    elif fields["kind"] == "heldout":
        text = f"`{fields['metric']}` of the held-out text{under or ', under the config of each run'}."
    elif fields["kind"] == "probe":
        flags = "".join(f" --{name}={value}" for name, value in fields["fields"].items())
        text = f"`{fields['metric']}` of `train.evaluate --probe={fields['probe']}{flags}`{under}."
    elif fields["kind"] == "tokens_to_loss":
        text = (
            f"Raw tokens of text until the held-out loss of a run is {fields['loss']}, linear between evaluations. A "
            "run that does not reach this loss has no value."
        )
    else:
        text = "Raw tokens of text per second of training steps."
    return [Paragraph(text, "note")]


def _row(variant: str, analysis: Analysis, decimals: int) -> list[str]:
    if variant in analysis.unmeasured:
        return [f"`{variant}`", "not measured", *["–"] * 5]
    summary = analysis.summaries[variant]
    to_baseline = analysis.to_baseline.get(variant)
    cells = [f"`{variant}`", with_interval(summary, decimals), str(summary.num_seeds)]
    if to_baseline is None:
        cells += ["baseline", "–", "–"]
    else:
        cells += [
            with_interval(to_baseline, decimals),
            probability(to_baseline.corrected),
            _relation(analysis, to_baseline),
        ]
    to_best = analysis.to_best.get(variant)
    best = "best mean" if variant == analysis.best else "–"
    return [*cells, best if to_best is None else _relation(analysis, to_best)]


def _relation(analysis: Analysis, comparison: Comparison) -> str:
    return "no test" if comparison.p is None else _RANKS[analysis.rank(comparison)]


def _notes(analysis: Analysis, results: Results) -> list[Block]:
    """Returns what is not in the table: intervals, values and tests that there are none of, with the reasons."""
    texts = []
    if analysis.detectable is not None:
        texts.append(f"{detectable(analysis)} This is at the strictest step of Holm's correction.")
    if analysis.seeds_differ:
        texts.append(
            "The variants have different seeds, so their means do not compare: the best variant is no worse than each "
            "other one on the seeds that both have."
        )
    texts += _told_elsewhere(analysis)
    seeds = [summary.num_seeds for summary in analysis.summaries.values() if summary.num_seeds]
    if seeds and max(seeds) == 1:
        texts.append("One seed of each variant has no spread: there are no intervals and no tests.")
    else:
        reasons: dict[str, list[str]] = {}
        for variant, comparison in analysis.to_baseline.items():
            if comparison.reason:
                reasons.setdefault(comparison.reason, []).append(f"`{variant}`")
        texts += [
            f"No test with the baseline ({reason}): {listed(names, _MOST_NAMES)}." for reason, names in reasons.items()
        ]
        constant = [
            f"`{variant}`"
            for variant, summary in analysis.summaries.items()
            if summary.num_seeds > 1 and summary.low is None
        ]
        if constant:
            texts.append(
                f"No interval of the mean, because the values of all seeds are equal: {listed(constant, _MOST_NAMES)}."
            )
    for variant, missing in analysis.lacking.items():
        texts.append(
            f"`{variant}`: {plural(missing, 'complete run')} without a value, left out of the mean, so that the "
            "variant is not tested and cannot be the best."
        )
    return [Paragraph(" ".join(texts), "note")] if texts else []


def detectable(analysis: Analysis) -> str:
    """Returns a sentence on the smallest difference from the baseline that these runs find; "" without one."""
    if analysis.detectable is None:
        return ""
    smallest, power = significant(analysis.detectable, 2), f"a probability of {POWER:.0%}"
    if not analysis.can_find_any:
        return (
            f"With {power}, these seeds find only differences from the baseline of about {smallest} or more; values "
            "are between 0 and 1, so no possible difference could have been found with this probability."
        )
    return f"A difference from the baseline has to be about {smallest} to be found with {power}."


def _told_elsewhere(analysis: Analysis) -> list[str]:
    """Says which pairs that are not in the table differ beyond noise."""
    shown = {analysis.baseline, analysis.best}
    significant_pairs = []
    for pair in analysis.pairs.values():
        if pair.sign and not {pair.first, pair.second} & shown:
            first, second = (pair.first, pair.second) if analysis.rank(pair) > 0 else (pair.second, pair.first)
            significant_pairs.append(f"`{first}` is better than `{second}`")
    return [f"Beyond noise, too: {listed(significant_pairs, _MOST_NAMES // 2)}."] if significant_pairs else []


def values_of_runs(results: Results, analyses: Mapping[str, Analysis]) -> Table:
    """Returns the value of every measure in every complete run."""
    shown: Sequence[Analysis] = list(analyses.values())
    decimals = {analysis.measure: 1 + decimals_of(analysis) for analysis in shown}
    rows = [
        [
            f"`{outcome.variant}`",
            str(outcome.seed),
            *(number(outcome.values.get(name), places) for name, places in decimals.items()),
        ]
        for outcome in results.outcomes
    ]
    return Table(["variant", "seed", *decimals], rows, numbers=range(1, 2 + len(decimals)))
