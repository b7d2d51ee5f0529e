"""The loss of a process, and an error in one process alone, end the others soon, with status 1 and one line."""

import signal
import time

import pytest
from workdir.workdir_lock import LOCK_FILE

from cluster.distributed import END_SECONDS, describes_several_processes
from tests.train.subprocesses import free_port, start_main

SMALL = [
    "--config=configs/clm.py",
    "--config.data.source=text",
    "--config.data.inputs_length=32",
    "--config.model.num_layers=1",
    "--config.model.num_heads=2",
    "--config.model.num_kv_heads=2",
    "--config.model.head_dim=16",
    "--config.optimizer.warmup_steps=1",
    "--config.train.steps=1000000",
    "--config.train.batch_size=4",
    "--config.train.log_every=1",
    "--config.train.eval_every=1000000",
]
NARROW = ["--config.model.d_model=32", "--config.model.d_ff=32", "--config.train.checkpoint_every=1000000"]


# The end of the others is at once; a busy machine needs longer.
SECONDS = 20


def start(corpus, tmp_path, num_processes, flags=NARROW):
    flags = [
        *SMALL,
        f"--config.data.path={corpus / 'text'}",
        f"--config.data.cache_dir={corpus / 'cache'}",
        f"--workdir={tmp_path / 'run'}",
        f"--coordinator_address=localhost:{free_port()}",
        f"--num_processes={num_processes}",
        *flags,
    ]
    return [start_main(*flags, f"--process_id={index}") for index in range(num_processes)]


def assert_lost(process, victim, seconds):
    """The process ends with a line about the victim.

    If the victim is process 0, which is JAX's coordinator, JAX writes messages of its own, and on a busy machine its
    C++ code may end the process before the line is written.
    """
    _, err = process.communicate(timeout=seconds)
    if victim == 0 and process.returncode == -signal.SIGABRT:
        assert "Terminating process because the JAX distributed service detected fatal errors" in err
        return
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert process.returncode == 1 and len(lines) == 1, err
    assert f" lost process {victim} (" in lines[0] and "continue from the newest checkpoint" in lines[0]
    assert "Check failure stack trace" not in err
    if victim:
        assert err.splitlines() == lines


@pytest.mark.parametrize(("num_processes", "victim"), [(2, 0), (4, 3)])
def test_the_others_end_with_one_line(num_processes, victim, corpus, tmp_path):
    """The victim is the coordinator of two processes, and one of four that is not the coordinator."""
    started = start(corpus, tmp_path, num_processes)
    try:
        _wait_for_step(tmp_path / "run" / "metrics.jsonl", 2, started)
        started[victim].kill()
        for index, process in enumerate(started):
            if index != victim:
                assert_lost(process, victim, SECONDS)
    finally:
        _kill(started)


def test_a_process_that_is_killed_during_a_save_is_named(corpus, tmp_path):
    """The other one waits in a barrier of Orbax, and not in a collective, whose connections the kernel closes."""
    large = ["--config.model.d_model=256", "--config.model.d_ff=2048", "--config.train.checkpoint_every=1"]
    started = start(corpus, tmp_path, 2, large)
    try:
        _wait_for_step(tmp_path / "run" / "metrics.jsonl", 2, started)
        checkpoints, end = tmp_path / "run" / "checkpoints", time.monotonic() + 60
        while not any("tmp" in path.name for path in checkpoints.iterdir()):
            assert time.monotonic() < end
        started[1].kill()
        assert_lost(started[0], 1, SECONDS)
    finally:
        _kill(started)


def test_an_error_in_one_process_ends_all(corpus, tmp_path):
    """Process 0 has lost the lock of the workdir, and the other process waits for it in a collective."""
    started = start(corpus, tmp_path, 2)
    try:
        _wait_for_step(tmp_path / "run" / "metrics.jsonl", 2, started)
        (tmp_path / "run" / LOCK_FILE).unlink()
        _, err = started[0].communicate(timeout=END_SECONDS + SECONDS)
        assert started[0].returncode == 1 and err.startswith("error: --workdir="), err
        assert "run.lock is gone" in err and len(err.splitlines()) == 1
        lines = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        assert_lost(started[1], 0, SECONDS)
        assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == lines
    finally:
        _kill(started)


def _kill(processes):
    for process in processes:
        process.kill()
        process.wait()


def _wait_for_step(metrics, step, processes):
    deadline = time.monotonic() + 240
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= step):
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was completed"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "one"}, False),
        ({"TPU_WORKER_HOSTNAMES": "one,two"}, True),
    ],
)
def test_clusters_that_describe_several_processes(environment, several):
    assert describes_several_processes(environment) == several
