"""Runs of several processes: how the processes join, and how they end when one of them is lost."""

import contextlib
import glob
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import jax

from cluster.peers import watch_peers
from contract.errors import ConfigError

# A process whose heartbeats stop for this long counts as lost, and JAX's coordination service ends the other processes.
# cluster/peers.py notices most losses at once.
HEARTBEAT_TIMEOUT_SECONDS = 60
_MOST_SECONDS = 7 * 24 * 3600
# For how long a process with an error waits for the same error in the others.
END_SECONDS = 10
_NAMED_SECONDS = 1
_PORT_SECONDS = 3
_claims: dict[str, socket.socket] = {}  # port -> a socket that is open until the process ends
# Words in the errors of collectives and of the coordination service after the loss of another process.
_LOST = ("gloo", "nccl", "heartbeat", "coordination", "connection", "peer", "unavailable", "deadline_exceeded")


def initialize(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    multi_host: bool,
    timeout_seconds: int,
) -> None:
    """Joins the processes of a run, which are described by the three values or, without them, by the environment.

    The environment variables are those of SLURM, Open MPI and GKE's TPU pods. If they describe a single process, and
    the values are None, nothing is done.

    Args:
      coordinator_address: host:port of process 0.
      num_processes: the number of processes.
      process_id: the index of this process, from 0.
      multi_host: join even if the environment describes a single process. The environment of a Cloud TPU VM does not
        show that the VM is one of several.
      timeout_seconds: after this time without the other processes, the process ends with one line on standard error and
        status 1.

    A process uses the GPUs that `local_gpus` returns.

    Raises ConfigError if only some values are given, if they contradict each other, if the port of process 0 is in use,
    or if the processes cannot connect.
    """
    given = {
        "--coordinator_address": coordinator_address,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        if not (multi_host or describes_several_processes(os.environ)):
            return
    elif missing:
        raise ConfigError(f"{missing[0]} is missing: several processes need {', '.join(given)}")
    elif num_processes >= 2**20:
        raise ConfigError(f"--num_processes={num_processes} must be below {2**20}")
    elif not 0 <= process_id < num_processes:
        raise ConfigError(f"--process_id={process_id} must be in 0..{num_processes - 1} with {num_processes=}")
    if coordinator_address is not None and not _is_address(coordinator_address):
        raise ConfigError(
            f"--coordinator_address={coordinator_address} must be host:port of process 0, as in "
            "--coordinator_address=node-a:8476"
        )
    if timeout_seconds < 1:
        raise ConfigError(f"--join_timeout={timeout_seconds} must be 1 second or more")
    if timeout_seconds > _MOST_SECONDS:
        raise ConfigError(f"--join_timeout={timeout_seconds} must be at most {_MOST_SECONDS}, a week")
    me = "a process" if process_id is None else f"process {process_id}"
    coordinator = coordinator_address or "that the environment names"
    late = (
        f"{me} has waited {timeout_seconds} s (--join_timeout) for the other processes of this run: check that all of "
        f"them were started, each with an index of its own, and can reach the coordinator {coordinator}"
    )
    if process_id == 0 and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        _wait_for_port(coordinator_address)
    # JAX's service for preemption would replace the handler of SIGTERM, which then has no effect until training begins.
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
                heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the processes of this run cannot connect: {reason}") from error


def _is_address(text: str) -> bool:
    """Returns whether `text` is host:port."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def _wait_for_port(coordinator_address: str) -> None:
    """Returns when no process of this host has the coordinator's port, as one that was killed may for a moment.

    JAX does not notice: two processes of index 0 share the port, and each of the others connects to one of them. Two
    that start at the same time both find the port free. On Linux, process 0 also claims the port's name until it ends.

    Raises ConfigError if the port is in use after _PORT_SECONDS.
    """
    port = coordinator_address.rpartition(":")[2]
    end = time.monotonic() + _PORT_SECONDS
    while True:
        with socket.socket() as probe:
            # The remains of closed connections do not count as use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                _claim(port)
                probe.bind(("", int(port)))
                return
            except OSError as error:
                if time.monotonic() > end:
                    raise ConfigError(
                        f"process 0 cannot be the coordinator {coordinator_address}: {error.strerror}: another program "
                        "or another process with --process_id=0 has this port; give each process an index of its own"
                    ) from error
        time.sleep(0.2)


def _claim(port: str) -> None:
    """Binds a name of the port, which no other process of the same network can have. Raises OSError if one has it."""
    if port in _claims or not sys.platform.startswith("linux"):
        return
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0cloze/coordinator/{port}")  # no file: a name in the kernel
    except OSError:
        claim.close()
        raise
    _claims[port] = claim


def describes_several_processes(environment: Mapping[str, str]) -> bool:
    """Returns whether a cluster's environment variables describe several processes, as `jax.distributed` reads them."""
    sizes = [environment.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    return any(size.isdecimal() and int(size) > 1 for size in sizes) or "," in environment.get(
        "TPU_WORKER_HOSTNAMES", ""
    )


def local_gpus(environment: Mapping[str, str]) -> Sequence[int]:
    """Returns the indices of the visible GPUs that this process uses; () for all of them.

    A process that is alone on its node uses all GPUs. Without this rule JAX would give each task of SLURM and Open MPI
    one GPU. Tasks that share a node divide the GPUs that they all see in equal parts, in the order of the tasks. A task
    that sees fewer GPUs than the scheduler gives to the tasks of its node (--gpus-per-task) has GPUs of its own, and
    uses all of these.

    environment: variables of SLURM or Open MPI. Others describe no tasks, so all GPUs are used.

    Raises ConfigError if there are more visible GPUs than tasks, but no multiple of the tasks.
    """
    tasks, task = _tasks_of_node(environment)
    gpus = _visible_gpus(environment)
    if tasks == 1 or gpus < max(tasks, _allocated_gpus(environment, tasks)):
        return ()
    if gpus % tasks:
        raise ConfigError(
            f"{tasks} tasks of this node share {gpus} GPUs, which cannot be divided equally: start one task per node, "
            "or as many as there are GPUs"
        )
    share = gpus // tasks
    return range(task * share, (task + 1) * share)


def gpus_of_node(environment: Mapping[str, str], used_by_process: int) -> tuple[int, int]:
    """Returns how many GPUs of this node the run uses, and how many it has: those that it sees, or its scheduler's.

    used_by_process: of each process on the node.
    """
    tasks, _ = _tasks_of_node(environment)
    used = tasks * used_by_process
    return used, max(used, _visible_gpus(environment), _allocated_gpus(environment, tasks))


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


def _visible_gpus(environment: Mapping[str, str]) -> int:
    """Returns the number of NVIDIA GPUs that this process sees, without starting CUDA."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])


@contextlib.contextmanager
def _ends_after(seconds: float, message: str) -> Iterator[None]:
    """Ends the process with `message` and status 1 if the block takes longer. For C++ that no exception interrupts."""
    timer = threading.Timer(seconds, _end, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def ends_with_all_processes(coordinator_address: str | None) -> Iterator[None]:
    """Within this context, which all processes of a run enter, the failure of one process ends all of them.

    After the loss of another process, this one ends at once, with one line on standard error that names the lost
    process, and status 1. After an error in this process alone, the process ends within END_SECONDS with that error,
    because an ordinary exit would wait for the others, which wait for this one; then they lose this process. An error
    that is raised in all processes propagates. Saved checkpoints are complete in each case.

    coordinator_address: host:port of process 0, if it is known.
    """
    if not jax.distributed.is_initialized():
        yield
        return
    first = threading.Lock()  # of the two threads that may end the process: it ends with one line

    def lost(name: str) -> None:
        with first:
            _end(
                f"process {jax.process_index()} lost {name} of this run; start all of them again with the same "
                "command: they continue from the newest checkpoint"
            )

    with watch_peers(coordinator_address and coordinator_address.rpartition(":")[0].strip("[]"), lost):
        try:
            yield
        except BaseException as error:
            if reason := _loss(error):
                time.sleep(_NAMED_SECONDS)  # meanwhile the other thread notices which process it is
                lost(f"another process ({reason[:160]})")
            with first, _ends_after(END_SECONDS, _one_line(error)):
                jax.distributed.shutdown()  # waits for the same error in all others
            raise
        jax.distributed.shutdown()


def _loss(error: BaseException | None) -> str:
    """Returns the reason, one line, if an error or one of its causes is due to the loss of a process; "" otherwise."""
    while error is not None:
        reason = " ".join(str(error).split())
        if isinstance(error, jax.errors.JaxRuntimeError) and any(word in reason.lower() for word in _LOST):
            return reason
        error = error.__cause__
    return ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"


def _end(message: str) -> None:
    """Ends the process with `message` and status 1, without the end of other threads."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
