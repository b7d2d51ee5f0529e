"""The plan of a study as a table: parameters, tokens, FLOPs, and the time of two measured steps."""

import sys
import time
from collections.abc import Sequence

import jax
from rich.console import Console
from rich.table import Table

from experiment.experiment import make_experiment
from plan.memory_choice import resolve_memory, this_machine
from run.compiled_run import make_run
from studies.jobs import Job
from studies.plan import Plan, PlannedRun

_MEASURED_STEPS = 2
_WIDTH = 120  # of the table in a file or a pipe


def print_plan(plan: Plan, jobs: Sequence[Job], console: Console | None = None) -> None:
    """Prints the runs of `jobs`, those of one worker, and an estimate of their time on this machine.

    The steps are measured after compilation. Compilation, evaluations, probes and checkpoints are not in the estimate.
    """
    console = console or Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH
    study, table = plan.study, Table(box=None, padding=(0, 2), header_style="dim")
    console.print(study.question)
    console.print(
        f"{len(plan.variants)} variants x {study.seeds} seeds, {study.budget.amount:.4g} {study.budget.unit} each; "
        f"measures: {', '.join(study.measures)}\n"
    )
    for header in (
        "variant",
        "runs",
        "parameters",
        "steps",
        "raw tokens",
        "FLOPs",
        "fine-tuning steps",
        "s/step",
        "time",
    ):
        table.add_column(header, justify="left" if header == "variant" else "right")
    total = 0.0
    measured: dict[str, float] = {}
    for number, (name, variant) in enumerate(plan.variants.items(), start=1):
        count = sum(len(job.seeds) for job in jobs if job.variant == name)
        fine_tunings = variant.distinct_fine_tunings
        measures = f"measuring {name}, {number} of {len(plan.variants)}: compiles each step and runs it three times"
        print(measures, file=sys.stderr, flush=True)
        trained = [run for run in (variant.start, variant.main) if run is not None]
        seconds = sum(_seconds(run, measured) for run in trained)
        finals = sum(len(job.seeds) for job in jobs if job.variant == name and not job.field)
        whole = count * seconds + finals * sum(_seconds(run, measured) for run in fine_tunings)
        total += whole
        table.add_row(
            name,
            str(count),
            f"{variant.num_params / 1e6:,.2f}M",
            f"{variant.steps:,}",
            f"{variant.raw_tokens:,}",
            f"{variant.flops:.3g}",
            " + ".join(f"{run.steps:,}" for run in fine_tunings) or "-",
            f"{seconds / variant.steps:.3g}",
            _clock(whole),
        )
    console.print(table)
    console.print("s/step is that of the training; time includes the fine-tunings")
    console.print(
        f"\nabout {_clock(total)} of training steps on {jax.devices()[0].device_kind} x {jax.device_count()}; "
        "compilation, evaluations and probes come on top"
    )


def _seconds(run: PlannedRun, measured: dict[str, float]) -> float:
    """The time of a run's steps, from two steps after the first one."""
    # Init parameters anew: the fine-tuned model's start does not exist yet.
    fields = run.fields | {"train": run.fields["train"] | {"init_from": ""}}
    key = repr({name: value for name, value in fields.items() if name not in ("seed", "optimizer")})
    if key not in measured:
        run_here = make_run(resolve_memory(make_experiment(fields), this_machine()), show_progress=False)
        state, batches = run_here.init_state(), run_here.train_batches(0)
        state, metrics = run_here.train_step(state, run_here.to_devices(next(batches)))
        jax.block_until_ready(metrics)
        began = time.perf_counter()
        for _ in range(_MEASURED_STEPS):
            state, metrics = run_here.train_step(state, run_here.to_devices(next(batches)))
        jax.block_until_ready(metrics)
        measured[key] = (time.perf_counter() - began) / _MEASURED_STEPS
    return measured[key] * run.steps


def _clock(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"
