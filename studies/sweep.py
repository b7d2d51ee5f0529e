"""The sweep of a variant: one run for each value of a field, and the value with the best first measure."""

from typing import Any

from contract.errors import ConfigError
from studies.folder import StudyFolder
from studies.jobs import Job
from studies.plan import Plan, VariantPlan
from studies.results import SweepPoint

_NOT_RUN = "not run yet"


def sweep_points(variant: VariantPlan, plan: Plan, folder: StudyFolder) -> list[SweepPoint]:
    """Returns a point for each value of the variant's sweep, in order; none without a sweep."""
    measure = plan.study.compared[0]
    points = []
    for field, values in variant.sweep.items():
        for value in values:
            name = Job(variant.name, (0,), field, value).name
            outcome, failure = folder.outcome(name), folder.failure(name)
            score = outcome.values.get(measure) if outcome is not None else None
            reason = "" if score is not None else "not finite"
            if outcome is None:
                reason = failure.error if failure is not None else _NOT_RUN
            points.append(SweepPoint(variant.name, field, value, score, reason))
    return points


def untried(variant: VariantPlan, folder: StudyFolder) -> list[str]:
    """Returns the names of the sweep's runs that have neither an outcome nor diverged."""
    names = [Job(variant.name, (0,), field, value).name for field, values in variant.sweep.items() for value in values]
    failures = {name: folder.failure(name) for name in names}
    return [
        name
        for name, failure in failures.items()
        if not folder.is_complete(name) and (failure is None or not failure.diverged)
    ]


def chosen_values(variant: VariantPlan, plan: Plan, folder: StudyFolder) -> dict[str, Any]:
    """Returns field -> the value with the best first measure; {} without a sweep.

    A learning rate that diverges is not chosen. The choice is made once, and written: all seeds have the same.

    Raises ConfigError if a value was not tried to its end, for a reason other than divergence, or if all diverged.
    """
    if not variant.sweep:
        return {}
    chosen = folder.chosen(variant.name)
    if chosen is not None:
        return chosen
    points, missing = sweep_points(variant, plan, folder), untried(variant, folder)
    if missing:
        raise ConfigError(f"variant {variant.name}: the run {missing[0]} of its sweep is not complete")
    scored = [(point.score, point) for point in points if point.score is not None]
    if not scored:
        raise ConfigError(f"variant {variant.name}: every run of its sweep diverged: {points[0].reason}")
    better = plan.measures[plan.study.compared[0]].better
    _, best = (min if better == "lower" else max)(scored, key=lambda pair: pair[0])
    folder.write_chosen(variant.name, {best.field: best.value})
    return {best.field: best.value}
