"""How processes join, what they compare, and the steps at which they save and stop."""

import concurrent.futures
import signal
import socket

import pytest

from cluster.cluster import (
    Cluster,
    describe_difference,
    describes_several_processes,
    local_gpus,
    unjoined_warnings,
)
from cluster.stopping import StopBarrier
from contract.errors import ConfigError
from tests.train.subprocesses import ROOT, free_port, run


def test_no_other_room_uses_jax_distributed():
    files = [path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py")]
    users = {path.relative_to(ROOT).parts[0] for path in files if "jax.distributed" in path.read_text(encoding="utf-8")}
    assert users == {"cluster", "tests"}


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
        (EIGHT | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, [6, 7]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "CUDA_VISIBLE_DEVICES": ""}, []),  # a node without GPUs
        # --gpus-per-task: the tasks see GPUs of their own, which may have the same numbers.
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_GPUS_PER_TASK": "4"}, []),
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_LOCALID": "1", "SLURM_GPUS_ON_NODE": "8"}, []),
        (FOUR | {"SLURM_STEP_TASKS_PER_NODE": "3(x4)", "SLURM_GPUS_PER_TASK": "a100:4"}, []),
    ],
)
def test_tasks_divide_the_gpus_of_their_node(environment, expected):
    assert list(local_gpus(environment)) == expected


def test_gpus_that_cannot_be_divided_are_an_error():
    with pytest.raises(ConfigError, match="3 tasks of this node share 8 GPUs"):
        local_gpus(EIGHT | SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3(x4)"})


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


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ""),
        ({"MEGASCALE_NUM_SLICES": "1", "TPU_PROCESS_ADDRESSES": "one:8476", "JOB_COMPLETION_INDEX": "0"}, ""),
        ({"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_NUM_SLICES=2 is of one process among several"),
        ({"TPU_PROCESS_ADDRESSES": "one:8476,two:8476"}, "TPU_PROCESS_ADDRESSES=one:8476,two:8476 is of"),
        ({"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "JOB_COMPLETION_INDEX=3 is of"),
        ({"JAX_COORDINATOR_ADDRESS": ""}, ""),
        ({"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}, "JAX_COORDINATOR_ADDRESS=10.0.0.1:1234 is of one process"),
    ],
)
def test_one_process_in_the_environment_of_several_is_a_warning(environment, named):
    """Process 0 of an indexed job cannot be distinguished from a job of one pod: the others warn."""
    warnings = unjoined_warnings(environment)
    assert len(warnings) == bool(named)
    assert all(warning.startswith(named) and "--multi_host" in warning for warning in warnings)


def test_some_of_the_values_that_describe_processes_are_an_error():
    with pytest.raises(ConfigError, match=r"^--coordinator_address is missing: several processes need --coord"):
        Cluster.join(None, 2, 0, multi_host=False, timeout_seconds=5)


NEEDED = "give every process of a run the same config, corpus, versions and workdir"


def report(host, error=None, **values):
    return {"host": host, "error": error, "values": values}


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([report("a", x=1), report("b", x=1)], ""),
        (
            [report("a", x=1, y="s"), report("b", x=2, y="s"), report("c", x=3)],
            f"process 1 (b) has x=2, and process 0 (a) has x=1: {NEEDED}",
        ),
        ([report("a", x=None), report("b")], f"process 1 (b) has x=none, and process 0 (a) has x=null: {NEEDED}"),
        (
            [report("a", p=1, q=1, r=1), report("b", p=2, q=2, r=2)],
            f"process 1 (b) has p=2, and process 0 (a) has p=1, and 2 more differ: {NEEDED}",
        ),
        ([report("a", x=1), report("b", "data.path='x' is missing")], "process 1 (b): data.path='x' is missing"),
    ],
)
def test_the_line_names_the_process_and_what_differs(reports, line):
    assert describe_difference(reports) == line


def test_a_single_process_is_equal_to_itself():
    assert Cluster().all_gather({"x": 1}) == [{"x": 1}]
    with Cluster().check_equal() as values:
        values["x"] = 1
    with pytest.raises(ZeroDivisionError), Cluster().check_equal():
        raise ZeroDivisionError


PROGRAM = """
import json, time
from cluster.cluster import Cluster
from cluster.stopping import StopBarrier
from contract.errors import ConfigError
cluster = Cluster.join("localhost:%PORT%", 3, int(sys.argv[1]), multi_host=False, timeout_seconds=100)
me, lines = jax.process_index(), []
for stage in range(5):
    try:
        with cluster.check_equal() as values:
            values["x"] = int(stage == 1 and me == 2)
            if stage == 2 and me == 1:
                raise ZeroDivisionError("no rows")
            if stage == 3:
                raise ConfigError("the same in all")
        lines.append("")
    except (ConfigError, ZeroDivisionError) as error:
        lines.append(f"{type(error).__name__}: {error}")

turns = []
for fails in (False, True):
    began, gathered = [], []

    def work():
        began.append(time.time())
        if me == 0:
            time.sleep(0.5)
            if fails:
                raise ConfigError("no corpus")

    try:
        with cluster.exchanges(2) as exchanges:
            if fails and me == 2:
                raise ConfigError("another error")
            exchanges.in_turn(work)
            gathered = exchanges.all_gather(me)
    except ConfigError:
        pass
    turns.append([began, gathered])

clock, reached = [0.0], []
with StopBarrier(print, 1.0, clock=lambda: clock[0]) as barrier:
    for step in range(1, 41):
        cluster.all_gather(step)  # the metrics of the step before
        time.sleep(0.001 * ((step + me) % 3))
        clock[0] += 3.0 if me == 0 else 1000.0
        if (me, step) in ((1, 30), (2, 31)):
            barrier._handle(15, None)
        if what := barrier.reached(step):
            reached.append([step, what])
            barrier.restart()
            if what == "stop":
                break
print(json.dumps([lines, reached, turns]))
"""


@pytest.mark.slow
def test_three_processes_compare_values_take_turns_and_stop_at_the_same_step():
    """Process 0's clock requests a checkpoint at step 20; 1 and 2 receive SIGTERM after 30 and 31 steps."""
    program = PROGRAM.replace("%PORT%", str(free_port()))
    first, second, third = run(program, devices=1, processes=3)
    host = socket.gethostname()
    differs = f"ConfigError: process 2 ({host}) has x=1, and process 0 ({host}) has x=0: {NEEDED}"
    same = "ConfigError: the same in all"
    assert (
        first[0] == third[0] == ["", differs, f"ConfigError: process 1 ({host}): ZeroDivisionError: no rows", same, ""]
    )
    for left, of_first, of_second, of_third in zip((False, True), first[2], second[2], third[2], strict=True):
        assert of_second[0][0] >= of_first[0][0] + 0.5 and len(of_third[0]) == (not left)
        assert of_second[1] == ([None, 1, None] if left else [0, 1, 2])
        assert of_first[1] == of_third[1] == ([] if left else [0, 1, 2])
    assert second[0] == ["", differs, "ZeroDivisionError: no rows", same, ""]
    assert first[1] == second[1] == third[1] == [[22, "save"], [32, "stop"]]


@pytest.mark.parametrize(("minutes", "steps"), [(0.0, []), (1.0, [3, 7]), (0.9, [3, 7])])
def test_the_time_counts_from_the_last_checkpoint(minutes, steps):
    """Steps of 20 seconds, and another checkpoint at step 4."""
    now, due = [0.0], []
    with StopBarrier(pytest.fail, minutes, clock=lambda: now[0]) as barrier:
        for step in range(1, 9):
            now[0] += 20.0
            if barrier.reached(step) == "save":
                due.append(step)
            if step == 4 or step in due:
                barrier.restart()
    assert due == steps


def test_a_run_may_be_in_another_thread_of_a_program():
    """Python lets the main thread alone install handlers: as in asyncio.to_thread(cloze.train, ...)."""

    def steps() -> list[str]:
        with StopBarrier(pytest.fail) as barrier:
            return [barrier.reached(step) for step in (1, 2)]

    with concurrent.futures.ThreadPoolExecutor() as threads:
        assert threads.submit(steps).result() == ["", ""]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_a_stop_and_the_second_is_as_before(number, monkeypatch):
    seconds, lines, before = [0.0], [], []
    monkeypatch.setattr("cluster.stopping.time.monotonic", lambda: seconds[0])
    previous = signal.signal(number, lambda *_: before.append("signal"))
    try:
        with StopBarrier(lines.append) as barrier:
            assert barrier.reached(1) == ""
            signal.raise_signal(number)
            signal.raise_signal(number)  # within a second: forwarded by the scheduler
            assert barrier.reached(2) == "stop" and before == [] and len(lines) == 1
            seconds[0] = 2.0
            signal.raise_signal(number)
            assert before == ["signal"]
    finally:
        signal.signal(number, previous)
