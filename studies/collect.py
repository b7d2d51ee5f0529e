"""Collects the results of a study from its folder."""

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from contract.errors import ConfigError
from studies.folder import StudyFolder
from studies.plan import Plan
from studies.results import Outcome, Problem, Results
from studies.sweep import sweep_points
from workdir.resolve import config_flags


def collect(name: str, path: str, plan: Plan, overrides: Mapping[str, Any], folder: StudyFolder) -> Results:
    """Returns what the complete runs of a study gave, and a problem for every other run.

    name, path: of the study and its file. overrides: those of the command line.
    """
    outcomes: list[Outcome] = []
    problems: list[Problem] = []
    for variant in plan.variants:
        for seed in range(plan.study.seeds):
            found = _run(f"{variant}-seed{seed}", variant, seed, folder)
            if isinstance(found, Outcome):
                outcomes.append(found)
            else:
                problems.append(found)
    arguments = [f"--study={path}", f"--out={folder.path}", f"--seeds={plan.study.seeds}"]
    arguments += [f"--budget={plan.study.budget.amount:g}", *config_flags(overrides)]
    variants = {
        variant: dataclasses.replace(fields, overrides=_without(fields.overrides, overrides))
        for variant, fields in plan.study.variants.items()
    }
    return Results(
        name=name,
        study=dataclasses.replace(plan.study, variants=variants, overrides={**plan.study.overrides, **overrides}),
        command=shlex.join(["python", "-m", "train.ablate", *arguments]),
        outcomes=outcomes,
        problems=problems,
        sweeps=[point for variant in plan.variants.values() for point in sweep_points(variant, plan, folder)],
        environment=_merged(outcomes),
    )


def _without(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in others}


def _merged(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Returns the environments of all outcomes; different values of a name are joined by "; "."""
    values: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for name, text in outcome.environment.items():
            values.setdefault(name, {})[text] = None
    return {name: "; ".join(texts) for name, texts in values.items()}


def _run(name: str, variant: str, seed: int, folder: StudyFolder) -> Outcome | Problem:
    try:
        outcome = folder.outcome(name)
    except ConfigError as error:
        return Problem(variant, seed, "damaged", str(error))
    if outcome is not None:
        return outcome
    failure = folder.failure(name)
    if failure is not None:
        return Problem(variant, seed, "failed", failure.error)
    if os.path.exists(folder.workdir(name)) or os.path.exists(folder.workdir(f"{name}-start")):
        return Problem(variant, seed, "unfinished", "the run or its measures are not complete")
    return Problem(variant, seed, "missing", "the run has not started")
