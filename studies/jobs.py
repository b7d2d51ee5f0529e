"""Does the jobs of a study, each in a process of its own: trains, fine-tunes and measures a run."""

import contextlib
import importlib.metadata
import math
import multiprocessing
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from command.flags import TRAINING_MEMORY, resolve, run_command
from command.program import end_with_parent
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.outside import code_digests
from studies.dry_run import clock
from studies.measures import TOTALS, FineTuning, Measure, RunValue, Trained, digests_of
from studies.plan import (
    AFTER_START_SEED,
    SWEEP_SEED,
    VALIDATION,
    Job,
    Plan,
    PlannedRun,
    VariantPlan,
    sweep_jobs,
    with_fields,
)
from studies.results import Curve, Outcome, StudyFolder, digest_of, source_files
from train.loop import train_and_evaluate
from train.recorder import DivergedError
from workdir.run_config import flatten, is_corpus_path, may_change
from workdir.workdir import Workdir

_STOPPED, _DIVERGED = 75, 77  # exit statuses of a job that a signal stopped, and of one that diverged
_POLL_SECONDS = 0.2
_ERROR_CHARS = 400


def parse_worker(text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n". Raises ConfigError unless 0 <= i < n."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(f"--worker={text} must be i/n, from 0/4 to 3/4 for four workers")
    return int(match[1]), int(match[2])


def run_jobs(jobs: Sequence[Job], plan: Plan, folder: StudyFolder) -> bool:
    """Does the jobs that are not done, and prints a line for each.

    A process of its own per job keeps the failures of one, such as a device that is out of memory, from the others: a
    job that fails leaves an Outcome that says so, and the next job begins.

    Returns False if a signal has ended this before the last job.
    """
    work = {job: _flops(plan, job) for job in jobs if not _is_done(folder.outcome(job, plan))}
    left, done, spent = sum(work.values()), 0.0, 0.0
    print(f"{len(jobs) - len(work)} of {len(jobs)} runs are done already", flush=True)
    with signals_of_this_process() as signals:
        for number, job in enumerate(work, start=1):
            if signals:
                return False
            left -= work[job]
            if _is_done(folder.outcome(job, plan)):
                print(f"{number}/{len(work)}  {job.name}: done, by another runner", flush=True)
                continue
            print(f"{number}/{len(work)}  {job.name} begins: {folder.log(job)}", flush=True)
            folder.remove(job)
            began = time.monotonic()
            status = in_a_process(job, plan, folder, signals)
            if status == _STOPPED or (signals and status):
                return False
            outcome = folder.outcome(job, plan)
            if outcome.state == "complete":
                done, spent = done + work[job], spent + time.monotonic() - began
            about = f"; about {clock(spent / done * left)} left" if done else ""
            values = [f"{name} {value:.4g}" for name, value in outcome.values.items()]
            result = f"{outcome.state}: {outcome.reason}" if outcome.reason else (values or ["complete"])[0]
            print(f"{number}/{len(work)}  {job.name}: {result}{about}", flush=True)
    return True


def _is_done(outcome: Outcome) -> bool:
    return outcome.state in ("complete", "diverged")  # to continue a run that diverged is to diverge again


def _flops(plan: Plan, job: Job) -> float:
    return plan.runs[job.variant].flops + sum(run.flops for run in plan.fine_tunings_of(job))


@contextlib.contextmanager
def signals_of_this_process() -> Iterator[list[int]]:
    """Yields a list to which SIGTERM and SIGINT are added within this context, in which they end nothing."""
    received: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(number, lambda number, _: received.append(number)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def in_a_process(job: Job, plan: Plan, folder: StudyFolder, signals: Sequence[int]) -> int:
    """Does a job in a process of its own and returns its exit status. One without an outcome has failed.

    signals: that this process receives. They end the job, which saves a checkpoint; a second one kills it.
    """
    log = folder.log(job)
    begin = log.stat().st_size if log.exists() else 0
    process = multiprocessing.get_context("spawn").Process(target=_main, args=(job, plan, str(folder.path)))
    # The terminal sends Ctrl-C to both processes. The new one ignores it until it has a session of its own.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, handler)
    forwarded = 0
    while process.exitcode is None:
        process.join(_POLL_SECONDS)
        if len(signals) > forwarded:
            forwarded = len(signals)
            process.terminate() if forwarded == 1 else process.kill()
    has_failed = process.exitcode not in (0, _STOPPED) and not signals
    if has_failed and not _is_done(folder.outcome(job, plan)):  # another runner may have done the job
        printed = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
        folder.write(job, _failed(job, plan, process.exitcode, printed, str(log)))
    return process.exitcode


def _failed(job: Job, plan: Plan, status: int, printed: str, log: str) -> Outcome:
    """Returns the outcome of a job whose process ended with `status`. printed: by this try, to its log."""
    # Other lines may follow that of the error, such as a notice of Grain, or be those of another runner.
    errors = [line.strip() for line in printed.splitlines() if re.match(r"error: |[\w.]*(Error|Exception)\b", line)]
    reason = errors[-1] if errors else f"exit status {status}"
    if status < 0:
        reason = f"the process was ended by signal {signal.Signals(-status).name}"
    reason = reason.removeprefix("error: ")[:_ERROR_CHARS]
    state = "diverged" if status == _DIVERGED else "failed"
    return Outcome(**vars(job), state=state, reason=f"{reason}; log: {log}", config_digest=plan.config_digest(job, {}))


def _main(job: Job, plan: Plan, out: str) -> None:
    """The process of a job. It appends what it prints to the job's log, and exits with 0 or a status for an error."""
    os.setsid()  # Ctrl-C in the terminal reaches the command, which ends the job
    folder = StudyFolder(out)
    log = os.open(folder.log(job), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    end_with_parent()  # a study that is killed leaves no run behind
    if jax.config.jax_compilation_cache_dir is None:
        # Runs of the same shapes have the same programs. Programs for one host's CPU may not run on another's.
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(os.path.join(out, "compiled", platform.node())))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

    def do() -> None:
        try:
            sys.exit(0 if do_job(job, plan, folder) else _STOPPED)
        except DivergedError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(_DIVERGED)

    run_command(do, memory_remedy=TRAINING_MEMORY)


def do_job(job: Job, plan: Plan, folder: StudyFolder) -> bool:
    """Trains the stages of a job that are not complete, in order, measures the run and writes its outcome.

    Returns False after a signal to stop. Raises ConfigError if the job fails.
    """
    measures, there = plan.measures_of(job), folder.study_file()
    code = digest_of(source_files())
    if not there.mixed_code:  # the files may have changed since the command began
        folder.check_code(code, there.code)
    swept = {job.field: job.value} if job.field else chosen_values(job.variant, plan, folder)
    stages = _stages(job, plan, folder, swept, measures)
    if not all(folder.workdir(name).is_complete for name in stages):
        folder.begin_training(job, code)
    for name, (run, fields) in stages.items():
        workdir = folder.workdir(name)
        resolve(run.config, {}, run.config)  # this process, too, executes the file: it may register an objective
        if workdir.is_complete:
            continue
        _follow_start(workdir, fields["train"]["init_from"])
        if not train_and_evaluate(make_experiment(fields), workdir.path):
            return False
    variant = plan.runs[job.variant]
    fine_tunings = {
        name: folder.workdir(f"{job.name}-{variant.fine_tuned_for(name)}")
        for name, measure in measures.items()
        if isinstance(measure, FineTuning)
    }
    start = folder.workdir(f"{job.name}-start") if variant.start is not None else None
    trained = Trained(folder.workdir(job.name), start, fine_tunings)
    config = trained.workdir.config() if variant.main is not None else {}
    for name, (run, fields) in stages.items():
        _check_config(folder.workdir(name), fields)
        if folder.workdir(name).config()["corpus"]["fingerprint"] != run.text_digest:  # the corpus has changed since
            raise ConfigError(
                f"{folder.workdir(name)} was trained on other text than the study's: restore the corpus, or delete the "
                "run to train it again"
            )
    measured = {name: measure.measure(name, trained) for name, measure in measures.items()}
    environment = _environment() | variant.text_digests | digests_of(measures.values())
    environment |= code_digests(folder.workdir(name).config() for name in stages)
    commands = [run.command(fields, folder.workdir(name).path) for name, (run, fields) in stages.items()]
    commands += dict.fromkeys(filter(None, (measure.command(trained) for measure in measures.values())))
    outcome = Outcome(
        **vars(job),
        **_numbers(measured),
        **(_training(variant, trained) if variant.main is not None else {}),
        swept=swept,
        commands=commands,
        heldout_digest=config.get("corpus", {}).get("heldout", ""),
        environment=environment | {"hash of the source code": code},
        code="+".join(folder.code_of(job)) or "unknown",
        measured_by=code,
        config_digest=plan.config_digest(job, swept),
    )
    folder.write(job, outcome)
    return True


def _follow_start(workdir: Workdir, start: str) -> None:
    """Writes the path of its start, the run `start`, to the config of a run that began where this study was before."""
    config = workdir.config() if workdir.has_config else {}
    before = flatten(config).get("train.init_from", start)
    if before != start and os.path.basename(before) == os.path.basename(start):
        workdir.write_config(with_fields(config, {"train.init_from": start}))


def _check_config(workdir: Workdir, fields: Mapping[str, Any]) -> None:
    """Raises ConfigError unless a finished run has the config `fields`, as one that another command continued has not.

    The folder of a study, and so of a start, may have another name since.
    """
    there, planned = flatten(workdir.config()), flatten(fields)
    for field, value in planned.items():
        is_fixed = not may_change(field) or is_corpus_path(field)  # the digest of its text is not planned
        is_fixed |= field == "train.steps" and not planned["train.epochs"]
        if is_fixed and field != "train.init_from" and there.get(field) != value:
            raise ConfigError(
                f"{workdir} was trained with another config than the study's ({field} is {there.get(field)} there and "
                f"{value} here): delete the run to train it again"
            )


def _training(variant: VariantPlan, trained: Trained) -> dict[str, Any]:
    """Returns the fields of an Outcome that describe the training of a variant."""
    before, lines = trained.before, [line for line in trained.lines if line["step"] and line["loss"] is not None]
    curve = Curve(
        raw_tokens=[before["raw_tokens"] + line["raw_tokens"] for line in lines],
        flops=[before["flops"] + line["flops"] for line in lines],
        loss=[line["loss"] for line in lines],
    )
    totals = {total: before[total] + trained.lines[-1][total] for total in TOTALS}
    return {"curve": curve, "num_params": variant.num_params, "steps": variant.steps, **totals}


def _numbers(measured: Mapping[str, RunValue]) -> dict[str, Any]:
    """Returns the fields of an Outcome with the finite numbers of measures."""

    def is_finite(number: float | None) -> bool:
        return number is not None and math.isfinite(number)

    floors = {name: {k: v for k, v in found.floors.items() if is_finite(v)} for name, found in measured.items()}
    values = {name: found.value for name, found in measured.items() if is_finite(found.value)}
    return {
        "values": values,
        "margins": {name: found.margin for name, found in measured.items() if is_finite(found.margin)},
        "floors": {name: found for name, found in floors.items() if found},
    }


def _stages(
    job: Job, plan: Plan, folder: StudyFolder, swept: dict[str, Any], measures: dict[str, Measure]
) -> dict[str, tuple[PlannedRun, dict[str, Any]]]:
    """Returns name of the workdir -> the run and its config: a start, the run, and fine-tunings for `measures`."""
    variant = plan.runs[job.variant]
    seed, main = SWEEP_SEED if job.field else job.seed, job.name
    stages: dict[str, tuple[PlannedRun, dict[str, Any]]] = {}
    same = {"seed": seed} | (VALIDATION if job.field else {})
    changes, start_of_tuned = swept | same, {}
    if variant.start is not None:
        stages[f"{main}-start"] = variant.start, with_fields(variant.start.fields, same)
        begin = folder.workdir(f"{main}-start").path
        changes |= {"seed": seed + AFTER_START_SEED, "train.init_from": begin}
    if variant.main is not None:
        stages[main] = variant.main, with_fields(variant.main.fields, changes)
        start_of_tuned = {"train.init_from": folder.workdir(main).path}
    for name, measure in measures.items():
        if isinstance(measure, FineTuning):
            run = variant.fine_tunings[name]
            stages[f"{main}-{variant.fine_tuned_for(name)}"] = run, with_fields(run.fields, same | start_of_tuned)
    return stages


def chosen_values(variant: str, plan: Plan, folder: StudyFolder) -> dict[str, Any]:
    """Returns field -> the value with the best first measure of the variant's sweep; {} without a sweep.

    A learning rate that diverges is not chosen.

    Raises ConfigError if a value was not tried to its end, for a reason other than divergence, or if none has a value.
    """
    if not (jobs := sweep_jobs(plan.runs[variant])):
        return {}
    outcomes = [folder.outcome(job, plan) for job in jobs]
    for job, outcome in zip(jobs, outcomes, strict=True):
        if not _is_done(outcome):
            raise ConfigError(f"variant {variant}: the run {job.name} of its sweep is not complete")
    measure = plan.study.first_measure
    scored = [outcome for outcome in outcomes if measure in outcome.values]
    if not scored:
        reason = next((outcome.reason for outcome in outcomes if outcome.reason), "all are trained to their end")
        raise ConfigError(
            f"variant {variant}: no run of its sweep has a finite {measure} ({reason}): sweep other values of "
            f"{jobs[0].field}, with another --out"
        )
    choose = min if plan.measures[measure].better == "lower" else max
    best = choose(scored, key=lambda outcome: outcome.values[measure])
    return {best.field: best.value}


def _environment() -> dict[str, str]:
    """Returns what this process runs on: name -> text."""
    devices = jax.devices()
    versions = {package: importlib.metadata.version(package) for package in ("jax", "flax", "optax", "numpy")}
    return {
        "device": f"{devices[0].device_kind} x {len(devices)}",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        **versions,
    }
