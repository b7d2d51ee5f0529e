"""What the runs of a study say about each measure: floors, comparisons, verdicts, and the orders of the literature."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from studies.results import Results
from studies.statistics import (
    Comparison,
    Pair,
    Summary,
    Values,
    better_than_floor,
    compare_each,
    compare_shares,
    summarize,
)
from studies.study import Published, Study, scored_otherwise

_DOCUMENTS = 1.96  # standard errors of an interval over documents, of which there are many
_AS = ", as "  # between the name of a floor and the first of the variants that have it
NO_PRETRAINING = "no pre-training"  # the floor of Results.scratch

Floor = tuple[str, float | Values, list[str]]  # name, value, and the variants that have it
Kind = Literal["better", "worse", "no significant difference", "no better than a floor", "no test"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the runs say about one measure.

    Attributes:
      fields: of the study's measure.
      baseline: with which the others are compared. has_own_baseline: the study's baseline is not measured.
      is_own: variants are scored on other objectives, text or tokens, and do not compare.
      variants: of the study; those that are not in `values` are not measured (`only`).
      values: variant -> seed -> value, finite ones alone.
      counts: of a success rate: variant -> (runs that succeed, runs). A run without a value has failed. {} otherwise.
      pairs: two variants -> their comparison; {} if `is_own`.
      floors: name -> value, or the values of runs over seeds; the weakest first.
      at_floor: variant -> the weakest floor that it is not better than, only of variants with such a floor.
      margins: variant -> half the interval over held-out documents.
    """

    name: str
    fields: Mapping[str, Any]
    baseline: str
    has_own_baseline: bool
    is_own: bool
    variants: Sequence[str]
    values: Mapping[str, Values]
    counts: Mapping[str, tuple[int, int]]
    pairs: Mapping[Pair, Comparison]
    floors: Mapping[str, float | Values]
    at_floor: Mapping[str, str]
    margins: Mapping[str, float]

    @property
    def better(self) -> str:
        """Which values are better, "higher" or "lower"."""
        return self.fields["better"]

    @property
    def title(self) -> str:
        """The measure as Markdown, with which values are better, and with its baseline if that is not the study's."""
        against = f", against `{self.baseline}`" if self.has_own_baseline else ""
        return f"`{self.name}` ({self.better}{against})"

    @property
    def is_timed(self) -> bool:
        """Whether values depend on the speed of the machine."""
        return self.fields["kind"] == "throughput"

    @property
    def is_success_rate(self) -> bool:
        """Whether shares of seeds are compared, not means."""
        return "success_at" in self.fields

    @property
    def to_baseline(self) -> dict[str, Comparison]:
        """Variant -> the variant minus the baseline."""
        return {first: pair for (first, second), pair in self.pairs.items() if second == self.baseline}

    def kind(self, pair: Comparison) -> Kind:
        """Returns what the comparison says about its first variant.

        A variant above every floor can be better than one that is not, and nothing else follows from such a pair.
        """
        if pair.first in self.at_floor:
            return "no better than a floor"
        is_higher_better = self.better == "higher" or self.is_success_rate  # of shares
        is_better = pair.sign > 0 if is_higher_better else pair.sign < 0
        if pair.p is None or (pair.second in self.at_floor and not is_better):
            return "no test"
        if not pair.sign:
            return "no significant difference"
        return "better" if is_better else "worse"

    def verdict(self, pair: Comparison) -> str:
        """Returns the kind in words, with the floor, and marked where the test is unlikely to find what it found."""
        kind, of_baseline = self.kind(pair), ""
        if pair.first in self.at_floor:
            return f"no better than {self.at_floor[pair.first]}"
        if pair.second in self.at_floor:
            of_baseline = f"`{pair.second}` is no better than {self.at_floor[pair.second]}"
        if kind == "no test" and of_baseline:
            return of_baseline
        marked = f"{kind}, below the detectable difference" if pair.sign and pair.is_below_detectable else kind
        return f"{marked}; {of_baseline}" if of_baseline else marked

    @property
    def nothing_follows(self) -> str:
        """Why no difference of this measure says anything; "" if one may."""
        if self.baseline not in self.at_floor or "better" in map(self.kind, self.to_baseline.values()):
            return ""
        measured = {variant for variant, values in self.values.items() if values}
        if measured <= self.at_floor.keys():
            floors = list(dict.fromkeys(self.at_floor.values()))
            each = {1: "", 2: "both "}.get(len(floors), "all of ")
            which = "no variant" if len(measured) == len(self.values) else "no variant that has been measured"
            return f"{which} is better than {each}{' and '.join(floors)}"
        return f"the baseline `{self.baseline}` is no better than {self.at_floor[self.baseline]}"


def analyse(results: Results) -> list[Measured]:
    """Returns what the runs say about each measure that has values, in the order of the study."""
    families = count_families(results)
    return [_measured(results, name, families) for name in results.study.measures]


def count_families(results: Results) -> int:
    """Returns the number of families of tests: the pairs with the baseline in each measure, and other published pairs.

    A measure in which variants do not compare has none.
    """
    study = results.study
    tested = [name for name in study.measures if not _is_own(results, name)]
    return len(tested) + sum(bool(_other_pairs(study, name)) for name in tested)


def _measured(results: Results, name: str, families: int) -> Measured:
    study, fields = results.study, results.study.measures[name]
    values: dict[str, Values] = {}
    untested, counts, margins = dict[str, str](), dict[str, tuple[int, int]](), dict[str, float]()
    for variant in study.measured(name):
        runs = results.of(variant)
        values[variant] = {run.seed: run.values[name] for run in runs if name in run.values}
        lacking = len(runs) - len(values[variant])
        diverged = sum(run.variant == variant and run.state == "diverged" for run in results.problems)
        if "success_at" in fields:
            good = sum(_succeeds(value, fields) for value in values[variant].values())
            counts[variant] = good, len(runs) + diverged
        elif diverged or lacking:
            missing = (f"{diverged} diverged",) * bool(diverged) + (f"{lacking} without a value",) * bool(lacking)
            untested[variant] = f"has runs that are absent from its mean: {', '.join(missing)}"
        if errors := [run.margins[name] for run in runs if name in run.margins]:
            margins[variant] = _DOCUMENTS * statistics.fmean(errors)
    floors = _floors(results, name)
    if fields["kind"] == "fine_tuning":
        scored = {variant for floor, _, variants in floors if floor.startswith(NO_PRETRAINING) for variant in variants}
        for variant in values.keys() - scored:
            untested[variant] = "has no finished runs without pre-training, its floor"
    own = _is_own(results, name)
    others = _other_pairs(study, name)
    pairs: Mapping[Pair, Comparison] = {}
    if not own and counts:
        pairs = compare_shares(study.baseline_of(name), counts, others, families)
    elif not own:
        pairs = compare_each(study.baseline_of(name), values, others, families, untested)
    at_floor = dict[str, str]()
    for floor, value, variants in () if own else floors:
        # A floor that is no success says nothing about which runs succeed.
        if counts and not _succeeds(summarize_floor(value).mean or 0.0, fields):
            continue
        better = better_than_floor(values, value, fields["better"])
        kind = floor.partition(_AS)[0]
        at_floor = {one: kind for one in variants if values[one] and one not in better} | at_floor
    return Measured(
        name=name,
        fields=fields,
        baseline=study.baseline_of(name),
        has_own_baseline=study.baseline_of(name) != study.baseline,
        is_own=own,
        variants=[*study.variants],
        values=values,
        counts=counts,
        pairs=pairs,
        floors={floor: value for floor, value, _ in floors},
        at_floor=at_floor,
        margins=margins,
    )


def _succeeds(value: float, fields: Mapping[str, Any]) -> bool:
    at = fields["success_at"]
    return value >= at if fields["better"] == "higher" else value <= at


def _floors(results: Results, name: str) -> list[Floor]:
    """Returns the name and the value of each floor of a measure, and the variants that have it, the weakest first.

    A floor is of the text or of the variant's model, such as a Transformer without training. If it has several values,
    each is named after its first variant.
    """
    fields = results.study.measures[name]
    found: dict[str, list[tuple[float | Values, list[str]]]] = {}
    for variant in results.study.measured(name):
        floors: dict[str, float | Values] = {}
        for floor in dict.fromkeys(floor for run in results.of(variant) for floor in run.floors.get(name, ())):
            of_runs = {
                run.seed: run.floors[name][floor] for run in results.of(variant) if floor in run.floors.get(name, ())
            }
            floors[floor] = of_runs if len(set(of_runs.values())) > 1 else next(iter(of_runs.values()))
        scratch = [run for run in results.scratch if run.variant == results.scratch_of.get(variant)]
        of_seeds = {run.seed: run.values[name] for run in scratch if name in run.values}
        if of_seeds and fields["kind"] == "fine_tuning":
            floors[NO_PRETRAINING] = of_seeds
        for floor, value in floors.items():
            of_floor = found.setdefault(floor, [])
            variants = next((variants for other, variants in of_floor if _is_same(other, value)), None)
            if variants is None:
                of_floor.append((value, variants := []))
            variants.append(variant)
    named = [
        (floor if len(of_floor) == 1 else f"{floor}{_AS}{variants[0]}", value, variants)
        for floor, of_floor in found.items()
        for value, variants in of_floor
    ]
    return sorted(named, key=lambda one: summarize_floor(one[1]).mean or 0.0, reverse=fields["better"] == "lower")


def _is_same(one: float | Values, other: float | Values) -> bool:
    """Returns whether two floors are of one text and model: equal up to the rounding of their sums."""
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return one == other
    return math.isclose(one, other, rel_tol=1e-9)


def summarize_floor(value: float | Values) -> Summary:
    """Returns the mean of a floor, with its interval where the floor is of runs; a number has no seeds."""
    return Summary(0, value) if isinstance(value, int | float) else summarize(value)


def _is_own(results: Results, measure: str) -> bool:
    """Returns whether a measure scores other text or tokens of the measured variants, which then do not compare.

    It may if the variants have different configs or presets and their own losses are measured, or different values of
    the fields of `scored_otherwise`. Bits per byte compare for any objective, and what is scored in equal parts for any
    tokenizer, so False for these where they are of the same text. Rows of another length or another number of windows
    are another sample of the held-out text, and so is the part of it that a tokenizer covers. A floor is a fixed model
    of the same text, so all variants must have the same.
    """
    study, fields = results.study, results.study.measures[measure]
    variants = study.measured(measure)
    if not _may_differ(results, fields, variants):
        return False
    floors = [one for one in _floors(results, measure) if not one[0].startswith(NO_PRETRAINING)]
    measured = {run.variant for run in results.outcomes if measure in run.values} & {*variants}
    same = bool(floors) and all(measured <= set(names) for _, _, names in floors)
    return not (same and (fields["kind"] != "heldout" or fields["metric"] == "bits_per_byte"))


def objectives_differ(results: Results, variants: Iterable[str]) -> bool:
    """Returns whether the own losses of `variants` are over different tokens, or may be.

    They may be if the variants have different configs or presets, or different values of fields that change the loss or
    its tokens. Two configs that set such fields to the same values count as different.
    """
    return _may_differ(results, {"kind": "heldout", "metric": "loss"}, [*variants])


def _may_differ(results: Results, fields: Mapping[str, Any], variants: Sequence[str]) -> bool:
    """Returns whether a measure scores other text or tokens of `variants`, or their own losses under other configs."""
    is_own = fields["kind"] == "heldout" and not fields.get("config")
    if is_own and len({results.study.config_of(variant) for variant in variants}) > 1:
        return True
    return bool(scored_otherwise(fields, _configs(results, variants)))


def _configs(results: Results, variants: Iterable[str]) -> list[Mapping[str, Any]]:
    """Returns the flat config of the runs of each of `variants`; where it is not known, its overrides."""
    study = results.study
    return [
        study.overrides | study.variants[name].overrides | study.variants[name].sweep | results.configs.get(name, {})
        for name in variants
    ]


@dataclasses.dataclass(frozen=True)
class Order:
    """Two variants in a paper, which says that `first` is better, and in the study.

    Attributes:
      ours: first minus second.
      here: Measured.verdict of it.
      verdict: "agrees", "disagrees", "undecided", "within the paper's noise" or "no spread published".
    """

    published: Published
    first: str
    second: str
    ours: Comparison
    here: str
    verdict: str


def published_orders(study: Study, measure: Measured) -> list[Order]:
    """Returns every pair of variants that the study's published results of `measure` order.

    A paper's order is one only if its values differ by two standard deviations of a difference between two runs.
    """
    orders = []
    for result in study.published:
        for first, second in _ordered_pairs(study, result) if result.measure == measure.name else ():
            ours = measure.pairs.get((first, second), Comparison(first, second, reason="not compared here"))
            if not result.sd or not {first, second} <= result.values.keys():
                verdict = "no spread published"
            elif abs(result.values[first] - result.values[second]) < 2 * math.sqrt(2) * result.sd:
                verdict = "within the paper's noise"
            else:
                # The models of papers are above every floor.
                kind = "no test" if ours.second in measure.at_floor else measure.kind(ours)
                verdict = {"better": "agrees", "worse": "disagrees"}.get(kind, "undecided")
            orders.append(Order(result, first, second, ours, measure.verdict(ours), verdict))
    return orders


def _ordered_pairs(study: Study, result: Published) -> list[Pair]:
    """Returns the pairs of variants of a published result, the better one first."""
    pairs = dict.fromkeys(result.better_than)
    for variant in result.values:
        if variant != study.baseline:
            gain = result.values[variant] - result.values[study.baseline]
            is_better = gain >= 0 if result.better == "higher" else gain <= 0
            pairs[(variant, study.baseline) if is_better else (study.baseline, variant)] = None
    return [*pairs]


def _other_pairs(study: Study, measure: str) -> list[Pair]:
    """Returns the published pairs of measured variants without the baseline, each in one direction."""
    pairs: dict[Pair, None] = {}
    measured = study.measured(measure)
    for result in study.published:
        for first, second in _ordered_pairs(study, result) if result.measure == measure else ():
            is_new = (second, first) not in pairs and study.baseline_of(measure) not in (first, second)
            if is_new and first in measured and second in measured:
                pairs[first, second] = None
    return [*pairs]
