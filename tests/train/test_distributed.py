"""The GPUs of each task of a cluster, and the time limit for joining."""

import time

import pytest

from contract.errors import ConfigError
from tests.train.subprocesses import free_port, run, run_main
from train.distributed import gpus_of_node, local_gpus

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
SLURM = {"SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_LOCALID": "0"}


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
