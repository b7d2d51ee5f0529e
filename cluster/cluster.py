"""The processes of a run: how they join, exchange values, and compare what must be equal in all of them.

This room alone uses jax.distributed.
"""

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
from jax._src import distributed  # the client of the key-value store has no public name; Orbax takes it from here too

from cluster.devices import visible_gpus
from contract.errors import ConfigError

# A process whose heartbeats stop for this long counts as lost, and JAX's coordination service ends the other processes.
_HEARTBEAT_SECONDS = 60
# Processes may need hours to build their token stores. The coordination service notices processes that end.
_EXCHANGE_MILLISECONDS = 24 * 3600 * 1000
_exchanges = itertools.count()
# Variable -> its values in a process among several, as a regular expression.
_OF_SEVERAL = {"MEGASCALE_NUM_SLICES": r"[2-9]|[1-9]\d+", "JOB_COMPLETION_INDEX": r"[1-9]\d*"}
_OF_SEVERAL |= {"TPU_PROCESS_ADDRESSES": r".*,.*", "JAX_COORDINATOR_ADDRESS": r".+"}


class Exchanges(NamedTuple):
    """What processes do together in a block that one of them may leave by an error (`Cluster.exchanges`)."""

    in_turn: Callable[[Callable[[], None]], None]  # runs a function in process 0, and then in the others
    all_gather: Callable[[Any], list[Any]]  # as Cluster.all_gather; None for a process that has left the block


ALONE = Exchanges(lambda function: function(), lambda value: [value])


class Cluster:
    """The processes of this run as JAX knows them: those that `join` has joined, or this process alone.

    An object has no state of its own. As a context manager, it leaves the cluster at its end, once all processes have
    ended without an error. After an error the process ends without the others, as every process does that JAX's service
    loses.
    """

    @classmethod
    def join(
        cls,
        coordinator_address: str | None,
        num_processes: int | None,
        process_id: int | None,
        *,
        multi_host: bool,
        timeout_seconds: int,
    ) -> Self:
        """Joins the processes of a run, which are described by the three values or, without them, by the environment.

        The environment variables are those of SLURM, Open MPI and GKE's TPU pods. If they describe a single process,
        and the values are None, the process is alone. A process uses the GPUs that `local_gpus` returns.

        Args:
          coordinator_address: host:port of process 0.
          num_processes: the number of processes.
          process_id: the index of this process, from 0.
          multi_host: join even if the environment describes a single process. The environment of a Cloud TPU VM does
            not show that the VM is one of several.
          timeout_seconds: after this time without the other processes, the process ends with one line on standard error
            and status 1.

        Raises ConfigError if only some values are given, or if the processes cannot connect.
        """
        given = {
            "--coordinator_address": coordinator_address,
            "--num_processes": num_processes,
            "--process_id": process_id,
        }
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given) and not (multi_host or describes_several_processes(os.environ)):
            return cls()
        if 0 < len(missing) < len(given):
            raise ConfigError(f"{missing[0]} is missing: several processes need {', '.join(given)}")
        _join(coordinator_address, num_processes, process_id, timeout_seconds)
        return cls()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        if error is None and jax.distributed.is_initialized():
            jax.distributed.shutdown()

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the JSON values of all processes, in order. All processes make the same calls in the same order.

        They are exchanged through the key-value store of JAX's coordination service, and not by a collective: processes
        with different meshes could not run one, and a collective does not wait as long as a token store may take.
        """
        if not jax.distributed.is_initialized():
            return [value]
        return _gather(f"cloze/values/{next(_exchanges)}", value)

    @contextlib.contextmanager
    def check_equal(self) -> Iterator[dict[str, Any]]:
        """Yields a dict for the block to fill: name -> JSON value that must be equal in all processes of the run.

        A process that reads another corpus, or runs another config or other code, would otherwise train without an
        error on rows that belong to no run, or wait forever for a collective that the others do not call. At its end
        every process receives the others' dicts and errors. All processes must enter the same blocks in the same order,
        and a block must not communicate. A run of one process compares nothing.

        Raises ConfigError in every process, with the same line, which names a process and its host, if values differ,
        or if the block has raised an error in some process. A process whose block has raised another error raises it
        again, and if the block has raised the same ConfigError in all processes, they raise it unchanged.
        """
        values: dict[str, Any] = {}
        error: Exception | None = None
        try:
            yield values
        except Exception as raised:
            error = raised
        if jax.distributed.is_initialized():
            self._compare(values, error)
        if error is not None:
            raise error

    def exchanges(self, most: int) -> contextlib.AbstractContextManager[Exchanges]:
        """Returns a context with at most `most` exchanges, the only ones that a block of `check_equal` may have.

        For a token store in a shared folder, which process 0 makes and the others find. A process may leave the context
        by an error: the others do not wait for it. All processes must enter the same contexts in the same order.
        """
        return _exchanges_in_block(most) if jax.distributed.is_initialized() else contextlib.nullcontext(ALONE)

    def _compare(self, values: Mapping[str, Any], error: Exception | None) -> None:
        """Raises ConfigError if values differ, or another process alone has an error; arguments as in `check_equal`."""
        line = None if error is None else " ".join(str(error).split())
        if error is not None and not isinstance(error, ConfigError):
            line = f"{type(error).__name__}: {line}"
        reports = self.all_gather({"host": socket.gethostname(), "error": line, "values": values})
        is_same_error = all(report["error"] == line for report in reports)
        if error is not None and (is_same_error or not isinstance(error, ConfigError)):
            return  # it is raised as it is
        if message := describe_difference(reports):
            raise ConfigError(message) from error


def _gather(name: str, value: Any) -> list[Any]:
    client, indices = key_value_store(), range(jax.process_count())
    client.key_value_set(f"{name}/{jax.process_index()}", json.dumps(value))
    return [json.loads(client.blocking_key_value_get(f"{name}/{k}", _EXCHANGE_MILLISECONDS)) for k in indices]


@contextlib.contextmanager
def _exchanges_in_block(most: int) -> Iterator[Exchanges]:
    client, index = key_value_store(), jax.process_index()
    block = f"cloze/blocks/{next(_exchanges)}"
    names = iter([f"{block}/{number}" for number in range(most)])

    def in_turn(function: Callable[[], None]) -> None:
        name = next(names)
        if index:
            _wait_for(client, f"{name}/0", f"process {index} waits for process 0, which makes the token store")
        try:
            function()
        finally:
            client.key_value_set(f"{name}/{index}", "null")

    try:
        yield Exchanges(in_turn, lambda value: _gather(next(names), value))
    finally:
        for name in names:  # that this process has not come to
            client.key_value_set(f"{name}/{index}", "null")


def _wait_for(client: Any, name: str, message: str) -> None:
    """Waits until `name` is in the key-value store; prints `message` to standard error after ten seconds."""
    try:
        client.blocking_key_value_get(name, 10_000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        print(message, file=sys.stderr, flush=True)
        client.blocking_key_value_get(name, _EXCHANGE_MILLISECONDS)


def _join(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None, timeout_seconds: int
) -> None:
    """Connects this process with the others through JAX. Arguments and errors as of `Cluster.join`."""
    late = (
        f"{'a process' if process_id is None else f'process {process_id}'} has waited {timeout_seconds} s "
        "(--join_timeout) for the other processes of this run: check that all of them were started, each with an "
        f"index of its own, and can reach the coordinator {coordinator_address or 'that the environment names'}"
    )
    # JAX's service for preemption would replace the handler of SIGTERM, which then has no effect until training
    # begins.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with _ends_after(timeout_seconds, late):
            jax.distributed.initialize(
                coordinator_address,
                num_processes,
                process_id,
                local_device_ids=None if "JAX_LOCAL_DEVICE_IDS" in os.environ else local_gpus(os.environ),
                # JAX ends the process with a stack of C++ frames after this time.
                initialization_timeout=timeout_seconds + 60,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the processes of this run cannot connect: {reason}") from error


def describe_difference(reports: Sequence[Mapping[str, Any]]) -> str:
    """Returns a line that names the first process with an error or with other values than process 0; "" if all agree.

    reports: of each process, in order: "host": its name; "error": one line, or None; "values": name -> JSON value.
    """
    names = [f"process {index} ({report['host']})" for index, report in enumerate(reports)]
    for name, report in zip(names, reports, strict=True):
        if report["error"] is not None:
            return f"{name}: {report['error']}"
    expected = reports[0]["values"]
    for name, report in zip(names, reports, strict=True):
        values = report["values"]
        differing = [
            field
            for field in {**expected, **values}
            if (field in values, values.get(field)) != (field in expected, expected.get(field))
        ]
        if differing:
            field, more = differing[0], f", and {len(differing) - 1} more differ" if len(differing) > 1 else ""
            here, there = (json.dumps(given[field]) if field in given else "none" for given in (values, expected))
            return (
                f"{name} has {field}={here}, and {names[0]} has {field}={there}{more}: give every process of a run "
                "the same config, corpus, versions and workdir"
            )
    return ""


def key_value_store() -> Any:
    """Returns the client of JAX's coordination service, which processes have that have joined."""
    return distributed.global_state.client


def describes_several_processes(environment: Mapping[str, str]) -> bool:
    """Returns whether a cluster's environment variables describe several processes, as `jax.distributed` reads them."""
    sizes = [environment.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    several_hosts = "," in environment.get("TPU_WORKER_HOSTNAMES", "")
    return several_hosts or any(size.isdecimal() and int(size) > 1 for size in sizes)


def unjoined_warnings(environment: Mapping[str, str]) -> list[str]:
    """Returns a warning if this process is alone, but a variable that JAX reads is one of a process among several.

    TPU slices with one host each, TPU processes with addresses of their own, the indexed jobs of Kubernetes, and the
    address of a coordinator: JAX joins these (with the package `kubernetes`), and `Cluster.join` only where it is asked
    to, because such variables are set for single processes too.
    """
    found = [name for name, several in _OF_SEVERAL.items() if re.fullmatch(several, environment.get(name, ""))]
    return [_unjoined(name, environment[name]) for name in found[:1] if jax.process_count() == 1]


def _unjoined(name: str, value: str) -> str:
    return (
        f"{name}={value} is of one process among several, but this run has one process: add --multi_host, or "
        "--coordinator_address, --num_processes and --process_id, if it is a part of a larger run"
    )


def local_gpus(environment: Mapping[str, str]) -> Sequence[int]:
    """Returns the indices of the visible GPUs that this process uses; () for all of them.

    A process that is alone on its node uses all GPUs. Without this rule JAX would give each task of SLURM and Open MPI
    one GPU. Tasks that share a node divide the GPUs that they all see in equal parts, in the order of the tasks. A task
    that sees fewer GPUs than the scheduler gives to its node has GPUs of its own, and uses all of these.

    environment: variables of SLURM or Open MPI. Others describe no tasks, so all GPUs are used.

    Raises ConfigError if there are more visible GPUs than tasks, but no multiple of the tasks.
    """
    tasks, task = _tasks_of_node(environment)
    gpus = visible_gpus(environment)
    if tasks == 1 or gpus < max(tasks, _allocated_gpus(environment, tasks)):
        return ()
    if gpus % tasks:
        raise ConfigError(
            f"{tasks} tasks of this node share {gpus} GPUs, which cannot be divided equally: start one task per node, "
            "or as many as there are GPUs"
        )
    share = gpus // tasks
    return range(task * share, (task + 1) * share)


def _allocated_gpus(environment: Mapping[str, str], tasks: int) -> int:
    """Returns the number of GPUs that SLURM gives to the tasks of this node together; 0 if it does not say."""
    per_task = re.findall(r"(\d+)(?:,|$)", environment.get("SLURM_GPUS_PER_TASK", ""))  # such as "2" or "a100:2"
    return max(int(environment.get("SLURM_GPUS_ON_NODE") or 0), tasks * sum(map(int, per_task)))


def _tasks_of_node(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns the number of tasks on this node and the index of this one; (1, 0) outside SLURM and Open MPI."""
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
        return int(environment["OMPI_COMM_WORLD_LOCAL_SIZE"]), int(environment["OMPI_COMM_WORLD_LOCAL_RANK"])
    layout = environment.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as "8(x3),4": of each node
    counts = [
        int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", layout) for _ in range(int(times or 1))
    ]
    node = int(environment.get("SLURM_NODEID", 0))
    return (counts[node], int(environment.get("SLURM_LOCALID", 0))) if node < len(counts) else (1, 0)


@contextlib.contextmanager
def _ends_after(seconds: float, message: str) -> Iterator[None]:
    """Ends the process with `message` and status 1 if the block takes longer. For C++ that no exception interrupts."""

    def end() -> None:
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
