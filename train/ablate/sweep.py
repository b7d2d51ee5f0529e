"""The sweep of a variant: one run for each value of a field, and the value with the best first measure."""

from typing import Any

from contract.errors import ConfigError
from train.ablate.folder import StudyFolder
from train.ablate.jobs import Job
from train.ablate.plan import Plan, VariantPlan
from train.ablate.results import SweepPoint


def sweep_points(variant: VariantPlan, plan: Plan, folder: StudyFolder) -> list[SweepPoint]:
    """Returns a point for each value of the variant's sweep, in order; none without a sweep."""
    measure = plan.study.compared[0]
    points = []
    for field, values in variant.sweep.items():
        for value in values:
            name = Job(variant.name, (0,), field, value).name
            outcome, failure = folder.outcome(name), folder.failure(name)
            score = outcome.values.get(measure) if outcome is not None else None
            reason = "" if score is not None else failure or ("no value" if outcome is not None else "not run yet")
            points.append(SweepPoint(variant.name, field, value, score, reason))
    return points


def chosen_values(variant: VariantPlan, plan: Plan, folder: StudyFolder) -> dict[str, Any]:
    """Returns field -> the value with the best first measure; {} without a sweep.

    Values whose runs failed, such as a learning rate that diverges, are not chosen. Raises ConfigError if some value
    was not tried, or if all failed.
    """
    points = sweep_points(variant, plan, folder)
    if not points:
        return {}
    waiting = [point for point in points if point.reason == "not run yet"]
    if waiting:
        missing = f"{waiting[0].field}={waiting[0].value!r}"
        raise ConfigError(f"variant {variant.name}: its sweep has no run of {missing} yet")
    scored = [(point.score, point) for point in points if point.score is not None]
    if not scored:
        raise ConfigError(f"variant {variant.name}: every run of its sweep failed: {points[0].reason}")
    better = plan.measures[plan.study.compared[0]].better
    _, best = (min if better == "lower" else max)(scored, key=lambda pair: pair[0])
    return {best.field: best.value}
