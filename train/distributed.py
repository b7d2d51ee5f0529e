"""Runs of several processes: how the processes join, and how they end when one of them is lost."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

import jax

from contract.errors import ConfigError

# A process whose heartbeats stop for this long counts as lost, and JAX's coordination service ends the other processes.
# Most losses are noticed earlier, by a closed connection.
HEARTBEAT_TIMEOUT_SECONDS = 60
# Words in the errors of collectives and of the coordination service after the loss of another process.
_LOST = ("gloo", "nccl", "heartbeat", "coordination", "connection", "peer", "unavailable", "deadline_exceeded")


def initialize(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None, *, multi_host: bool
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

    Raises ConfigError if only some values are given, if they contradict each other, or if the processes cannot connect.
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
    elif not 0 <= process_id < num_processes:
        raise ConfigError(f"--process_id={process_id} must be in 0..{num_processes - 1} with {num_processes=}")
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the processes of this run cannot connect: {reason}") from error


def describes_several_processes(environment: Mapping[str, str]) -> bool:
    """Returns whether a cluster's environment variables describe several processes, as `jax.distributed` reads them."""
    sizes = [environment.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    return any(size.isdecimal() and int(size) > 1 for size in sizes) or "," in environment.get(
        "TPU_WORKER_HOSTNAMES", ""
    )


@contextlib.contextmanager
def exit_on_lost_process() -> Iterator[None]:
    """Within this context, the loss of another process ends this one with one line on standard error and status 1.

    The process ends at once: an ordinary exit would wait for the lost process to disconnect. Saved checkpoints are
    complete.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        if jax.process_count() == 1 or not any(word in reason.lower() for word in _LOST):
            raise
        print(
            f"error: process {jax.process_index()} lost another process of this run ({reason[:160]}); "
            "start all of them again with the same command: they continue from the newest checkpoint",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
