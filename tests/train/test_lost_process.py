"""The loss of a process ends the others soon, with status 1 and one line."""

import time

import pytest

from tests.train.subprocesses import free_port, start_main
from train.distributed import HEARTBEAT_TIMEOUT_SECONDS, describes_several_processes

SMALL = [
    "--config=configs/clm.py",
    "--config.data.source=text",
    "--config.data.inputs_length=32",
    "--config.model.num_layers=1",
    "--config.model.d_model=32",
    "--config.model.num_heads=2",
    "--config.model.num_kv_heads=2",
    "--config.model.head_dim=16",
    "--config.model.d_ff=32",
    "--config.optimizer.warmup_steps=1",
    "--config.train.steps=1000000",
    "--config.train.batch_size=4",
    "--config.train.log_every=1",
    "--config.train.eval_every=1000000",
    "--config.train.checkpoint_every=1000000",
]


@pytest.mark.parametrize(("num_processes", "victim"), [(2, 0), (4, 3)])
def test_the_others_end_with_one_line(num_processes, victim, corpus, tmp_path):
    """The victim is the coordinator of two processes, and one of four that is not the coordinator."""
    address = f"--coordinator_address=localhost:{free_port()}"
    started = [
        start_main(*SMALL, f"--config.data.path={corpus / 'text'}", f"--config.data.cache_dir={corpus / 'cache'}",
                   f"--workdir={tmp_path / 'run'}", address, f"--num_processes={num_processes}", f"--process_id={i}")
        for i in range(num_processes)
    ]  # fmt: skip
    try:
        _wait_for_step(tmp_path / "run" / "metrics.jsonl", 2, started)
        started[victim].kill()
        killed = time.monotonic()
        for i, process in enumerate(started):
            if i == victim:
                continue
            _, err = process.communicate(timeout=2 * HEARTBEAT_TIMEOUT_SECONDS)
            assert process.returncode not in (0, None), err
            lines = [line for line in err.splitlines() if line.startswith("error: ")]
            # If the coordination service is faster, it ends the process itself with another message, as does gloo if it
            # finds an incomplete message of the dead process.
            assert len(lines) == 1 or "another task died" in err or "gloo::" in err, err
            assert all("lost another process of this run" in line for line in lines)
        assert time.monotonic() - killed < 2 * HEARTBEAT_TIMEOUT_SECONDS
    finally:
        for process in started:
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
