"""The statistics of each measure of a study."""

import dataclasses
import math
from collections.abc import Mapping

from contract.errors import ConfigError
from train.ablate.report.statistics import (
    Comparison,
    Summary,
    Values,
    compare_all,
    compare_every_pair,
    reverse,
    smallest_detectable,
    summarize,
)
from train.ablate.results import Results
from train.ablate.study import Study

# Overrides that change which tokens a run's own loss is over, or their vocabulary.
_SCORED_BY = ("objective.", "loss.", "data.tokenizer")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What the runs say about one measure.

    Attributes:
      better: "higher" or "lower".
      is_own: each run is scored on its own objective and the objectives differ, so that variants do not compare: the
        fields below `lacking` are empty.
      summaries: of every variant.
      values: variant -> seed -> value, finite ones alone.
      lacking: variant -> complete runs without a finite value, such as a loss that was not reached; only where there
        are any. Such a variant has no test and is not the best, because its worst runs are left out of its mean.
      to_baseline: variant -> the variant minus the baseline, corrected over all variants but the baseline.
      best: the variant with the best mean; None if no variant has one.
      to_best: variant -> the variant minus the best, corrected over all pairs of variants, because the best is known
        only after the results are.
      detectable: the smallest difference from the baseline that the study finds with a probability of 80%, or None.
    """

    measure: str
    better: str
    is_own: bool
    summaries: Mapping[str, Summary]
    values: Mapping[str, Values]
    lacking: Mapping[str, int]
    to_baseline: Mapping[str, Comparison] = dataclasses.field(default_factory=dict)
    best: str | None = None
    to_best: Mapping[str, Comparison] = dataclasses.field(default_factory=dict)
    detectable: float | None = None

    def rank(self, comparison: Comparison) -> int:
        """Returns 1 if the first variant is better beyond noise, -1 if it is worse, 0 if that cannot be told."""
        return comparison.sign if self.better == "higher" else -comparison.sign

    def compare(self, pairs: list[tuple[str, str]]) -> list[Comparison]:
        """Returns the comparisons of pairs of variants, corrected over them."""
        return [self._without_test(comparison) for comparison in compare_all(pairs, self.values)]

    def _without_test(self, comparison: Comparison) -> Comparison:
        """Returns the comparison, without its test if a variant lacks values."""
        for variant in (comparison.first, comparison.second):
            if variant in self.lacking:
                return Comparison(
                    comparison.first,
                    comparison.second,
                    comparison.num_seeds,
                    comparison.difference,
                    reason=f"{variant} has complete runs without a value",
                )
        return comparison


def analyse(results: Results) -> dict[str, Analysis]:
    """Returns the analysis of each measure that has values.

    Raises ConfigError if two runs were scored on different held-out text.
    """
    _check_same_heldout(results)
    return {measure: _analyse(results, measure) for measure in results.study.compared}


def _analyse(results: Results, measure: str) -> Analysis:
    study = results.study
    values, lacking = {}, {}
    for variant in study.variants:
        found = results.values(variant, measure)
        values[variant] = {seed: value for seed, value in found.items() if math.isfinite(value)}
        complete = sum(outcome.variant == variant for outcome in results.outcomes)
        if complete > len(values[variant]):
            lacking[variant] = complete - len(values[variant])
    analysis = Analysis(
        measure=measure,
        better=study.measures[measure]["better"],
        is_own=_is_own(study, measure),
        summaries={variant: summarize(found) for variant, found in values.items()},
        values=values,
        lacking=lacking,
    )
    return analysis if analysis.is_own else _with_comparisons(analysis, study.baseline)


def _with_comparisons(analysis: Analysis, baseline: str) -> Analysis:
    others = [variant for variant in analysis.summaries if variant != baseline]
    to_baseline = analysis.compare([(variant, baseline) for variant in others])
    means = {
        variant: summary.mean
        for variant, summary in analysis.summaries.items()
        if summary.mean is not None and variant not in analysis.lacking
    }
    best = None
    if means:
        best = (max if analysis.better == "higher" else min)(means, key=means.__getitem__)
    pairs = [analysis._without_test(comparison) for comparison in compare_every_pair(analysis.values)]
    with_best = [pair if pair.second == best else reverse(pair) for pair in pairs if best in (pair.first, pair.second)]
    return dataclasses.replace(
        analysis,
        to_baseline=dict(zip(others, to_baseline, strict=True)),
        best=best,
        to_best={comparison.first: comparison for comparison in with_best},
        detectable=smallest_detectable(to_baseline),
    )


def _is_own(study: Study, measure: str) -> bool:
    """Whether each run is scored on its own objective, and the variants differ in objective."""
    fields = study.measures[measure]
    if fields["kind"] not in ("heldout", "tokens_to_loss") or fields.get("config"):
        return False
    return objectives_differ(study)


def objectives_differ(study: Study) -> bool:
    """Returns whether the variants' own losses are over different tokens, as far as configs and overrides show it."""
    return len({_objective(study, variant) for variant in study.variants}) > 1


def _objective(study: Study, name: str) -> str:
    """What decides about the tokens of the variant's own loss, as text: the config file and the overrides that do."""
    variant = study.variants[name]
    fields = study.overrides | variant.overrides | variant.sweep
    scored_by = sorted((field, repr(value)) for field, value in fields.items() if field.startswith(_SCORED_BY))
    return repr((study.config_of(name).partition(":")[0], scored_by))


def _check_same_heldout(results: Results) -> None:
    for outcome in results.outcomes:
        first = results.outcomes[0]
        if outcome.heldout_digest != first.heldout_digest:
            raise ConfigError(
                f"study {results.name}: the runs of {first.variant}, seed {first.seed}, and {outcome.variant}, seed "
                f"{outcome.seed}, hold out different text (heldout_digest {first.heldout_digest} and "
                f"{outcome.heldout_digest}), so their values do not compare: give all variants the same fields "
                "data.source, path, heldout_fraction, split_seed, split_by and heldout_path"
            )
