"""Runs a study: python -m train.ablate --study=configs/studies/NAME.py --out=DIR [--config.a.b=value ...]

Trains every variant with every seed, each as an ordinary run in a workdir under DIR, measures the runs, and writes
DIR/report.md. The same command continues a study that was stopped, and repeats nothing.

    --dry_run       print the plan: parameters, tokens, FLOPs, and a time from two measured steps
    --report        write the report of the runs that are complete
    --mixed_code    continue a study that began with other source code; the report names the runs of each
    --worker=i/n    do the i-th of n parts of the study (launch/study_slurm.sh)

--config.a.b=value sets a field of every variant's runs; of a fine-tuning, those that it shares with them.
"""

import re
import sys
from typing import Any

import jax
from absl import flags

from command.flags import parse_flags, run_command
from command.program import plural, print_note, visible
from contract.errors import ConfigError, Stopped
from studies.analysis import analyse
from studies.dry_run import print_plan
from studies.jobs import parse_worker, run_jobs
from studies.plan import jobs_of
from studies.planning import make_plan
from studies.report import import_report_libraries, write_report
from studies.results import StudyFolder
from studies.statistics import MIN_SEEDS
from studies.study import Budget, check_overrides, load_study, with_changes
from workdir.trackers import check_trackers

_FLAGS = flags.FlagValues()
_STUDY = flags.DEFINE_string("study", None, "A file of configs/studies.", _FLAGS, required=True)
_OUT = flags.DEFINE_string("out", None, "Folder of the study. Default: studies/<study>.", _FLAGS)
_SEEDS = flags.DEFINE_integer("seeds", None, "Runs of each variant. Default: the study's.", flag_values=_FLAGS)
_BUDGET = flags.DEFINE_float(
    "budget", None, "How much each run trains. Default: the study's budget.", flag_values=_FLAGS
)
_BUDGET_UNIT = flags.DEFINE_enum(
    "budget_unit", None, ["raw_tokens", "flops"], "Unit of --budget. Default: the study's.", flag_values=_FLAGS
)
_WORKER = flags.DEFINE_string("worker", "0/1", "i/n: the part of the study to do, i from 0.", _FLAGS)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the plan and run nothing.", _FLAGS)
_MIXED_CODE = flags.DEFINE_bool("mixed_code", False, "Continue a study that began with other source code.", _FLAGS)
_REPORT = flags.DEFINE_bool("report", False, "Write the report of the complete runs and run nothing.", _FLAGS)


def main() -> None:
    """Reads the command line, and runs the study, prints its plan or writes its report."""
    argv, overrides = _split_overrides(sys.argv)
    parse_flags(_FLAGS, __doc__, argv)
    worker, num_workers = parse_worker(_WORKER.value)
    if _DRY_RUN.value and _REPORT.value:
        raise ConfigError("--dry_run and --report exclude each other: remove one")
    if _BUDGET_UNIT.value is not None and _BUDGET.value is None:
        raise ConfigError(f"--budget_unit={_BUDGET_UNIT.value} needs a budget: add --budget=AMOUNT")
    study, seeds, budget = load_study(_STUDY.value), _SEEDS.value, None
    if _BUDGET.value is not None:
        budget = Budget(_BUDGET_UNIT.value or study.budget.unit, _BUDGET.value)
    folder = StudyFolder(_OUT.value or f"studies/{study.name}")
    if _REPORT.value:  # the flags of the study need not be repeated
        there = folder.study_file()
        seeds = there.study.seeds if seeds is None else seeds
        budget = budget or there.study.budget
        overrides = there.overrides | overrides
    study = with_changes(study, seeds=seeds, budget=budget)
    check_overrides(overrides, "the command line")
    if not _DRY_RUN.value:
        import_report_libraries()  # the report needs them, hours later
        # Only the jobs use the accelerator: this process would take memory from them.
        jax.config.update("jax_platforms", "cpu")
    plan = folder.continued(make_plan(study, overrides))
    jobs = jobs_of(plan, worker, num_workers)
    if _DRY_RUN.value:
        print_plan(plan, jobs)
        return
    stopped = False
    if _REPORT.value:
        folder.check(plan)
    else:
        for variant in plan.variants.values():
            check_trackers(variant.main.fields["train"]["trackers"])
        folder.begin(plan, overrides, mixed_code=_MIXED_CODE.value)
        stopped = not run_jobs(jobs, plan, folder)
    more = ["--mixed_code"] * folder.study_file().mixed_code
    results = folder.results(plan, study.command(_STUDY.value, folder.path, overrides, *more), overrides)
    print(f"written to {write_report(results, folder.path)}")
    if study.seeds >= MIN_SEEDS and any(
        pair.p is not None for found in analyse(results) for pair in found.pairs.values()
    ):
        folder.add_report(study.seeds)
    if stopped:
        raise Stopped("stopped by a signal: run the same command again to continue")
    problems = [problem for problem in results.problems if problem.state in ("failed", "diverged", "damaged")]
    for problem in problems:
        line = f"{problem.variant}, seed {problem.seed}: {problem.state}: {problem.reason}"
        print(visible(line), file=sys.stderr)
    if diverged := [problem.job.name for problem in problems if problem.state == "diverged"]:
        print_note(
            "a run that diverged is not tried again: to train it anew, delete its outcome, such as "
            f"{folder.path / 'outcomes' / diverged[0]}.json, and its folders in runs/"
        )
    if (failed := len(problems) - len(diverged)) and not _REPORT.value:
        raise ConfigError(f"{plural(failed, 'run')} failed: run the same command again to try again")


def _split_overrides(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the command line without --config.a.b=value, and the fields a.b of these flags."""
    rest, overrides = [], {}
    for argument in argv:
        match = re.fullmatch(r"--?config\.([\w.]+)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            rest.append(argument)
        elif match[2] is None:
            raise ConfigError(f"{argument}: write it as {argument}=value")
        else:
            overrides[match[1]] = match[2]
    return rest, overrides


if __name__ == "__main__":
    run_command(main)
