"""Several processes that train as one: how they find each other, and how they end when one of them is lost."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

import jax

from contract.errors import ConfigError

# A process that has not been heard of for so long counts as lost. Most losses are seen at once, by a closed connection;
# this is for those that are not, and then JAX's coordination service ends the other processes.
HEARTBEAT_TIMEOUT_SECONDS = 60
# What the errors of collectives and of the coordination service say where it is another process that is gone.
_LOST = ("gloo", "nccl", "heartbeat", "coordination", "connection", "peer", "unavailable", "deadline_exceeded")


def initialize(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None, *, multi_host: bool
) -> None:
    """Joins the processes of a run: those that the command line describes by all three values, or those that SLURM,
    Open MPI or GKE's TPU pods describe in the environment. Else does nothing.

    multi_host: ask the cluster in any case. A Cloud TPU VM does not tell in its environment that it is one of several.

    Raises ConfigError where only some values are given, where they contradict each other, and where the processes do
    not find each other.
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
        raise ConfigError(f"--process_id={process_id} must lie in 0..{num_processes - 1} with {num_processes=}")
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the processes of this run do not find each other: {reason}") from error


def describes_several_processes(environment: Mapping[str, str]) -> bool:
    """Whether a cluster's variables say that this process is one of several: then `jax.distributed` reads them too."""
    sizes = [environment.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    return any(size.isdecimal() and int(size) > 1 for size in sizes) or "," in environment.get(
        "TPU_WORKER_HOSTNAMES", ""
    )


@contextlib.contextmanager
def ends_with_the_others() -> Iterator[None]:
    """Turns the loss of another process into one line on stderr and status 1, at once.

    The ordinary way out would wait for the lost process to say goodbye. What the loop has saved is whole.
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
