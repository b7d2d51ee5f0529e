"""The statistics of each measure of a study."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from studies.report.comparable import check_same_heldout, is_own
from studies.report.statistics import (
    Comparison,
    Summary,
    Values,
    choose_best,
    compare_each,
    reverse,
    smallest_detectable,
    summarize,
)
from studies.results import Results

# Metrics whose values are shares, by the end of their names.
_SHARES = ("accuracy", "f1", "exact_match")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What the runs say about one measure.

    Attributes:
      better: "higher" or "lower".
      baseline: of the study.
      is_own: each run is scored on its own objective and the objectives differ, so that variants do not compare: there
        are no pairs and no best.
      summaries: of every variant that is measured.
      unmeasured: the variants that the measure leaves out (`only`).
      values: variant -> seed -> value, finite ones alone.
      lacking: variant -> complete runs without a finite value, such as a loss that was not reached; only where there
        are any. Such a variant has no test and is not the best, because its worst runs are left out of its mean.
      pairs: each pair of measured variants once, with the only p that the report has for the pair
        (statistics.compare_each).
      ranked: the variants of which the best is chosen: those that lack no value, with two seeds or more if there are
        any.
      best: see statistics.choose_best; None if no variant is the best.
      detectable: the smallest difference from the baseline that the study finds with a probability of 80%, or None.
      range: the largest difference that is possible, for a measure that is a share; None for others.
    """

    measure: str
    better: str
    baseline: str
    is_own: bool
    summaries: Mapping[str, Summary]
    unmeasured: Sequence[str]
    values: Mapping[str, Values]
    lacking: Mapping[str, int]
    pairs: Mapping[tuple[str, str], Comparison] = dataclasses.field(default_factory=dict)
    ranked: Sequence[str] = ()
    best: str | None = None
    detectable: float | None = None
    range: float | None = None

    @property
    def to_baseline(self) -> dict[str, Comparison]:
        """Variant -> the variant minus the baseline."""
        return self._to(self.baseline)

    @property
    def to_best(self) -> dict[str, Comparison]:
        """Variant -> the variant minus the best; {} without a best."""
        return {} if self.best is None else self._to(self.best)

    @property
    def can_find_any(self) -> bool:
        """Whether a difference that is possible can be found with a probability of 80%."""
        return self.detectable is None or self.range is None or self.detectable <= self.range

    @property
    def seeds_differ(self) -> bool:
        """Whether the ranked variants have values at different seeds."""
        return len({tuple(sorted(self.values[variant])) for variant in self.ranked}) > 1

    def _to(self, second: str) -> dict[str, Comparison]:
        if not self.pairs:
            return {}
        return {variant: self.pair(variant, second) for variant in self.summaries if variant != second}

    def pair(self, first: str, second: str) -> Comparison:
        """Returns the comparison of two variants, without a test where the measure does not compare them."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        if (second, first) in self.pairs:
            return reverse(self.pairs[second, first])
        missing = [variant for variant in (first, second) if variant in self.unmeasured]
        reason = f"{missing[0]} is not measured" if missing else "each on its own objective"
        return Comparison(first, second, 0, None, reason=reason)

    def rank(self, comparison: Comparison) -> int:
        """Returns 1 if the first variant is better beyond noise, -1 if worse, 0 without a significant difference."""
        return comparison.sign if self.better == "higher" else -comparison.sign


def analyse(results: Results) -> dict[str, Analysis]:
    """Returns the analysis of each measure that has values.

    Raises ConfigError if two runs were scored on different held-out text.
    """
    check_same_heldout(results)
    return {measure: _analyse(results, measure) for measure in results.study.compared}


def _analyse(results: Results, measure: str) -> Analysis:
    study = results.study
    fields = study.measures[measure]
    measured = [variant for variant in study.variants if not fields.get("only") or variant in fields["only"]]
    values, lacking = {}, {}
    for variant in measured:
        found = results.values(variant, measure)
        values[variant] = {seed: value for seed, value in found.items() if math.isfinite(value)}
        complete = sum(outcome.variant == variant for outcome in results.outcomes)
        if complete > len(values[variant]):
            lacking[variant] = complete - len(values[variant])
    is_share = str(fields.get("metric", "")).endswith(_SHARES)
    analysis = Analysis(
        measure=measure,
        better=fields["better"],
        baseline=study.baseline,
        is_own=is_own(study, measure),
        summaries={variant: summarize(found) for variant, found in values.items()},
        unmeasured=[variant for variant in study.variants if variant not in measured],
        values=values,
        lacking=lacking,
        range=1.0 if is_share else None,
    )
    return analysis if analysis.is_own else _with_comparisons(analysis)


def _with_comparisons(analysis: Analysis) -> Analysis:
    pairs = compare_each(analysis.baseline, analysis.values, analysis.lacking)
    complete = {
        variant: found for variant, found in analysis.values.items() if found and variant not in analysis.lacking
    }
    # One seed may be a lucky one, so a variant with one seed is not the best of variants with more.
    ranked = {variant: found for variant, found in complete.items() if len(found) > 1} or complete
    return dataclasses.replace(
        analysis,
        pairs={(pair.first, pair.second): pair for pair in pairs},
        ranked=tuple(ranked),
        best=choose_best(ranked, analysis.better),
        detectable=smallest_detectable([pair for pair in pairs if pair.second == analysis.baseline]),
    )
