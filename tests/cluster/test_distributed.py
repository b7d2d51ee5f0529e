"""The GPUs of each task of a cluster, and the time limit for joining."""

import time

import pytest

from cluster.distributed import gpus_of_node, local_gpus
from contract.errors import ConfigError
from tests.train.subprocesses import free_port, run, run_main, start_main

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
SLURM = {"SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_LOCALID": "0"}
FOUR = SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (EIGHT, []),  # no scheduler: all GPUs
        (EIGHT | SLURM, []),  # one task a node: all GPUs
        (EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_LOCALID": "5"}, [5]),
        (EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_LOCALID": "1"}, [4, 5, 6, 7]),
        (EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8,1", "SLURM_LOCALID": "0"}, []),  # node 1 has one task
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_LOCALID": "5", "CUDA_VISIBLE_DEVICES": "5"}, []),
        (EIGHT | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, [6, 7]),
        (EIGHT | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, []),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "CUDA_VISIBLE_DEVICES": ""}, []),  # a node without GPUs
        # --gpus-per-task: the tasks see GPUs of their own, which may have the same numbers.
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_GPUS_PER_TASK": "4"}, []),
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_LOCALID": "1", "SLURM_GPUS_ON_NODE": "8"}, []),
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "3(x4)", "SLURM_GPUS_PER_TASK": "a100:4"}, []),
        # --gpu-bind=none: they see all.
        (
            EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_LOCALID": "1", "SLURM_GPUS_PER_TASK": "4"},
            [4, 5, 6, 7],
        ),
    ],
)
def test_tasks_divide_the_gpus_of_their_node(environment, expected):
    assert list(local_gpus(environment)) == expected


def test_gpus_that_cannot_be_divided_are_an_error():
    with pytest.raises(ConfigError, match="3 tasks of this node share 8 GPUs"):
        local_gpus(EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3(x4)"})


def test_the_summary_counts_the_gpus_of_all_tasks_of_the_node():
    eight_tasks = EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8(x4)"}
    assert gpus_of_node(eight_tasks, 1) == (8, 8)
    assert gpus_of_node(EIGHT | SLURM, 1) == (1, 8)
    assert gpus_of_node(EIGHT, 8) == (8, 8)
    two_tasks = FOUR | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_GPUS_PER_TASK": "gpu:4"}
    assert gpus_of_node(two_tasks, 4) == (8, 8) and gpus_of_node(two_tasks, 2) == (4, 8)


def test_one_task_per_node_keeps_all_devices_visible():
    program = """
import json, os
os.environ |= {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
               "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1",
               "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
from train.distributed import initialize
initialize(None, None, None, multi_host=True, timeout_seconds=60)
from jax._src.xla_bridge import CUDA_VISIBLE_DEVICES
print(json.dumps([jax.process_count(), CUDA_VISIBLE_DEVICES.value]))
"""
    assert run(program, devices=1) == [[1, "all"]]


def test_a_coordinator_that_does_not_answer_ends_the_process_with_one_line(tmp_path):
    address = f"localhost:{free_port()}"
    began = time.monotonic()
    status, out, err = run_main(
        f"--workdir={tmp_path}",
        f"--coordinator_address={address}",
        "--num_processes=2",
        "--process_id=1",
        "--join_timeout=2",
    )
    assert status == 1 and out == "" and time.monotonic() - began < 60
    assert err.startswith("error: process 1 has waited 2 s (--join_timeout)") and address in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_two_processes_with_one_index_end_with_one_line_each(index, tmp_path):
    """Of two processes 0, the later one finds the coordinator's port in use."""
    address = f"localhost:{free_port()}"
    flags = ["--num_processes=2", f"--process_id={index}", f"--workdir={tmp_path}", "--join_timeout=15"]
    began = time.monotonic()
    started = [start_main(*flags, f"--coordinator_address={address}") for _ in range(2)]
    try:
        printed = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [1, 1] and time.monotonic() - began < 90
    late = f"error: process {index} has waited 15 s (--join_timeout) for the other processes of this run: check that "
    in_use = f"error: process 0 cannot be the coordinator {address}: Address already in use: another program or another"
    first, second = sorted([err for _, err in printed], reverse=True)
    assert first.startswith(late) and second.startswith(late if index else in_use)
    assert [out for out, _ in printed] == ["", ""] and len((first + second).splitlines()) == 2


def test_pmap_is_refused_at_the_start_of_several_processes(corpus, tmp_path):
    """Each process has a state of its own, which the first checkpoint cannot contain."""
    address = f"--coordinator_address=localhost:{free_port()}"
    flags = ["--config.mesh.backend=pmap", f"--config.data.path={corpus / 'text'}", address, "--num_processes=2"]
    flags += [f"--config.data.cache_dir={tmp_path / 'cache'}", f"--workdir={tmp_path / 'run'}"]
    started = [start_main(*flags, f"--process_id={index}") for index in range(2)]
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 1 and "step" not in out
            assert err == (
                "error: mesh.backend='pmap' must be 'jit' for several processes: checkpoints need one state of all\n"
            )
    finally:
        for process in started:
            process.kill()
    assert not (tmp_path / "cache").exists()
