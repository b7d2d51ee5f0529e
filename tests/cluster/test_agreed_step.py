"""All processes of a run stop, and save by time, at the same step a few steps after a signal to any one of them."""

import json
import re
import signal
import time

import pytest

from cluster.save_timer import SaveTimer
from tests.cluster.test_lost_process import SMALL as TINY
from tests.train.subprocesses import free_port, run, start_main
from tests.train.test_resume import TIMED

STEPS = 40

CHANGED = ("--config.train.steps=", "--config.train.log_every=", "--config.train.eval_every=")

# Processes whose steps take different times, without collectives, so that nothing but the class keeps them together.
THREE_ROUNDS = """
import json, threading, time
distributed()
import jax
from train.agreed_step import AgreedStep
from train.save_timer import SaveTimer
me = jax.process_index()
reached, saved, longest, clock = [], [], 0.0, [0.0]
with AgreedStep() as agreed, SaveTimer(1.0, lambda: clock[0]) as timer:
    for step in range(1, 200):
        time.sleep(0.002 * (1 + me))
        if (me, step) in [(1, 20), (0, 80), (1, 80), (2, 120)]:
            agreed.request()
        clock[0] += 1.0 if me == 0 else 1000.0
        if timer.due(step):
            saved.append(step)
            timer.restart()
        if agreed.reached(step):
            reached.append(step)
print(json.dumps([reached, saved, [t.name for t in threading.enumerate() if t.name == "agreed step"]]))
"""

SMALL = [
    *(flag for flag in TINY if not flag.startswith(CHANGED)),
    f"--config.train.steps={STEPS}",
    "--config.train.log_every=1000",
    "--config.train.eval_every=5",
    "--config.train.eval_windows=8",
]


def start(corpus, workdir, *flags):
    flags = [
        *flags,
        f"--config.data.path={corpus / 'text'}",
        f"--config.data.cache_dir={corpus / 'cache'}",
        f"--workdir={workdir}",
        f"--coordinator_address=localhost:{free_port()}",
        "--num_processes=2",
    ]
    return [start_main(*flags, f"--process_id={index}") for index in range(2)]


def outputs_of(processes):
    try:
        return [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()


def wait_for(condition, processes):
    end = time.monotonic() + 120
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def lines_of(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def metrics_of(workdir):
    lines = map(json.loads, lines_of(workdir))
    return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]


def test_processes_of_different_speeds_agree_on_the_same_steps():
    """A request is answered by the step after that of the process that is ahead, in each round and for each object."""
    results = run(THREE_ROUNDS, devices=1, processes=3)
    assert results[0] == results[1] == results[2]
    reached, saved, threads = results[0]
    assert threads == [], "no thread is left in C++ when the interpreter exits"
    # Process 1 requests at its step 20, when process 0 is twice as far; process 0, which is ahead, at 80; process 2 at
    # its step 120.
    assert len(reached) == 3 and 20 < reached[0] < 80 <= reached[1] < 90 and reached[2] > 120
    assert saved[0] >= 60 and len(saved) in (2, 3), "the clock of process 0 counts"


def test_a_signal_to_one_process_stops_both_at_the_same_step(corpus, tmp_path):
    """Whatever train.log_every is. The continued run equals the uninterrupted one, and then saves by time."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    processes = start(corpus, whole, *SMALL)
    assert f"done: {STEPS} steps" in outputs_of(processes)[0][0]

    processes = start(corpus, stopped, *SMALL, "--stopped_status=75")
    wait_for(lambda: lines_of(stopped), processes)
    processes[1].send_signal(signal.SIGTERM)
    (stdout, _), _ = printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [75, 75], printed
    step = int(re.search(r"stopped at step (\d+); its checkpoint is saved", stdout)[1])
    assert step < STEPS and [path.name for path in (stopped / "checkpoints").iterdir()] == [str(step)]

    processes = start(corpus, stopped, *SMALL, "--config.train.checkpoint_minutes=1e-9")
    printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], printed
    assert f"continuing from step {step}" in printed[0][0] and metrics_of(stopped) == metrics_of(whole)
    assert len(list((stopped / "checkpoints").iterdir())) >= 2, "it saved before its last step"


def test_signals_before_the_first_step_end_the_processes(corpus, tmp_path):
    """JAX's service for preemption would swallow SIGTERM from the joining of the processes to the first step."""
    processes = start(corpus, tmp_path / "run", *TINY)
    wait_for((tmp_path / "run" / "run.lock").exists, processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    printed = outputs_of(processes)
    assert [process.returncode for process in processes] == [143, 143], printed
    # Python reports the exception if it is raised during a callback of JAX's garbage collection; the process ends too.
    errors = [err for _, err in printed if not err.startswith("Exception ignored in: <function _xla_gc_callback")]
    assert errors == ["error: stopped by SIGTERM\n"] * len(errors) and lines_of(tmp_path / "run") == []


@pytest.mark.parametrize(("minutes", "steps"), [(0.0, []), (1.0, [3, 7]), (0.9, [3, 7])])
def test_the_time_counts_from_the_last_checkpoint(minutes, steps):
    """Steps of 20 seconds, and another checkpoint at step 4."""
    now, due = [0.0], []
    with SaveTimer(minutes, lambda: now[0]) as timer:
        for step in range(1, 9):
            now[0] += 20.0
            if timer.due(step):
                due.append(step)
            if step == 4 or step in due:
                timer.restart()
    assert due == steps
