"""What `train.ablate --dry_run` prints: the runs of a study, what differs beyond its question, and their time."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiment.experiment import make_experiment
from huggingface.teacher import load_teacher
from run.compiled_run import make_run
from run.memory import resolve_memory, this_machine
from studies.plan import Job, Plan, PlannedRun, with_fields

_MEASURED_STEPS = 2  # of a dry run


def print_plan(plan: Plan, jobs: Sequence[Job]) -> None:
    """Prints the runs of `jobs`, those of one worker, and an estimate of their time on this machine.

    The steps are measured after compilation. Compilation, evaluations, probes and checkpoints are not in the estimate.
    """
    study = plan.study
    print(
        f"{study.question}\n{len(plan.variants)} variants x {study.seeds} seeds, {study.budget.amount:.4g} "
        f"{study.budget.unit} each; measures: {', '.join(study.measures)}\n"
    )
    names = list(plan.variants)
    for field, values in plan.questions.items():
        print(f"differs, as the study asks: {_by_variant(field, values, names)}")
    for line in describe_confounders(plan.confounders, names):
        print(line)
    print("\n".join([plan.text_facts, *(f"WARNING: {warning}" for warning in plan.warnings), ""]))
    table = [("variant", "runs", "parameters", "steps", "raw tokens", "FLOPs", "fine-tuning steps", "s/step", "time")]
    total, measured = 0.0, dict[str, float]()
    for number, (name, variant) in enumerate(plan.runs.items(), start=1):
        progress = f"measuring {name}, {number} of {len(plan.runs)}: compiles each step and runs it three times"
        print(progress, file=sys.stderr, flush=True)
        own = [job for job in jobs if job.variant == name]
        seconds = sum(_seconds(run, measured) for run in variant.stages)
        fine_tunings = [run for job in own for run in plan.fine_tunings_of(job)]
        whole = len(own) * seconds + sum(_seconds(run, measured) for run in fine_tunings)
        total += whole
        cells = ["-"] * 4
        if variant.main is not None:
            cells = [f"{variant.num_params / 1e6:,.2f}M", f"{variant.steps:,}", f"{variant.raw_tokens:,}"]
            cells += [f"{variant.flops:.3g}"]
        steps = " + ".join(f"{run.steps:,}" for run in variant.distinct_fine_tunings) or "-"
        per_step = f"{seconds / variant.steps:.3g}" if variant.steps else "-"
        table.append((name, str(len(own)), *cells, steps, per_step, clock(whole)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        print("  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]))
    print(
        "s/step is that of the training; time includes the fine-tunings\n\n"
        f"about {clock(total)} of training steps on {jax.devices()[0].device_kind} x {jax.device_count()}; "
        "compilation, evaluations and probes come on top"
    )


def describe_confounders(confounders: Mapping[str, Sequence[Any]], variants: Sequence[str]) -> list[str]:
    """Returns lines on the fields in which variants differ beyond the question; [] where there are none."""
    if not confounders:
        return []
    lines = ["CONFOUNDED: the variants also differ in fields that are not part of the question:"]
    for field, values in confounders.items():
        lines.append(f"  {_by_variant(field, values, variants)}")
    remedy = "give all variants one model with same_model=..., override the field, or name it in varies=(...)"
    return [*lines, f"  a difference may be the effect of these fields: {remedy}", ""]


def _by_variant(field: str, values: Sequence[Any], variants: Sequence[str]) -> str:
    return f"{field}: {', '.join(f'{name} {value}' for name, value in zip(variants, values, strict=True))}"


def _seconds(run: PlannedRun, measured: dict[str, float]) -> float:
    """The time of a run's steps, from two steps after the first one."""
    # Init parameters anew: the fine-tuned model's start does not exist yet.
    fields = with_fields(run.fields, {"train.init_from": ""})
    key = repr(with_fields(fields, {"seed": 0, "optimizer.learning_rate": 0.0}))
    if key not in measured:
        experiment, frozen = make_experiment(fields), ()
        if experiment.learner.setup.distillation.teacher:
            experiment, frozen = load_teacher(experiment)
        run_here = make_run(resolve_memory(experiment, this_machine()), frozen=frozen, show_progress=False)
        state, batches = run_here.init_state(), run_here.train_batches(0)
        for count in range(1 + _MEASURED_STEPS):
            state, metrics = run_here.train_step(state, run_here.to_devices(next(batches)))
            if not count:  # the step is compiled
                jax.block_until_ready(metrics)
                began = time.perf_counter()
        jax.block_until_ready(metrics)
        measured[key] = (time.perf_counter() - began) / _MEASURED_STEPS
    return measured[key] * run.steps


def clock(seconds: float) -> str:
    """Returns a time as text, such as "5 min"."""
    minutes = seconds / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"
