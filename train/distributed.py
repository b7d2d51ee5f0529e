"""Several processes that train as one."""

import jax

from objectives.errors import ConfigError


def initialize(coordinator_address: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the processes of a run where the command line describes one: all three values, or none.

    Raises ConfigError where only some are given or they contradict each other.
    """
    given = {
        "--coordinator_address": coordinator_address,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if missing:
        raise ConfigError(f"{missing[0]} is missing: several processes need {', '.join(given)}")
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"--process_id={process_id} must lie in 0..{num_processes - 1} with {num_processes=}")
    jax.distributed.initialize(coordinator_address, num_processes, process_id)
