"""Trains: python -m train.main --config=configs/ul2.py[:preset] [--workdir=DIR] [--config.a.b=value ...]

The same command continues a run that was stopped.
"""

import pathlib
import sys

import jax
import numpy as np
from absl import flags

from cluster.cluster import Cluster
from cluster.devices import use_compilation_cache
from command.flags import (
    TRAINING_MEMORY,
    config_fields,
    config_name,
    config_overrides,
    define_config,
    parse_flags,
    run_command,
)
from experiment.experiment import make_experiment
from huggingface.origin import describe_taken, names_origin, with_origin_fields
from train.loop import train_and_evaluate
from workdir.run_config import PER_PROCESS, flatten

_FLAGS = flags.FlagValues()
define_config(_FLAGS, same_model=True)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run. Default: runs/<config>[-preset][-<same_model>].", _FLAGS
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "host:port of process 0, for a run of several processes.", _FLAGS
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes of the run.", flag_values=_FLAGS)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Index of this process, from 0.", flag_values=_FLAGS)
_MULTI_HOST = flags.DEFINE_bool(
    "multi_host", False, "Join the processes of the cluster that JAX detects, such as a TPU VM slice.", _FLAGS
)
_JOIN_TIMEOUT = flags.DEFINE_integer(
    "join_timeout", 120, "Seconds to wait for the other processes of the run.", flag_values=_FLAGS
)
_STOPPED_STATUS = flags.DEFINE_integer(
    "stopped_status",
    0,
    "Exit status of a run that a signal stopped before its last step, such as 75 where only failed jobs are restarted.",
    lower_bound=0,
    upper_bound=255,
    flag_values=_FLAGS,
)


def main() -> None:
    """Reads the command line, joins the other processes of the run if there are any, and trains."""
    parse_flags(_FLAGS, __doc__)
    use_compilation_cache()
    given, workdir = config_fields(_FLAGS), _WORKDIR.value or _default_workdir()
    cluster = Cluster.join(
        _COORDINATOR.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        multi_host=_MULTI_HOST.value,
        timeout_seconds=_JOIN_TIMEOUT.value,
    )
    with cluster:
        with cluster.check_equal() as same_everywhere:
            starts = names_origin(given)
            config = with_origin_fields(given, config_overrides(_FLAGS), workdir) if starts else given
            experiment = make_experiment(config)
            fields = flatten(experiment.config)
            same_everywhere |= {name: value for name, value in fields.items() if name not in PER_PROCESS}
            same_everywhere |= {"jax": jax.__version__, "numpy": np.__version__}
        for line in describe_taken(given, config) if starts and jax.process_index() == 0 else []:
            print(line, flush=True)
        is_complete = train_and_evaluate(experiment, workdir)
    if not is_complete:
        sys.exit(_STOPPED_STATUS.value)


def _default_workdir() -> str:
    names = [name.partition(":") for name in (config_name(_FLAGS), _FLAGS["same_model"].value or "")]
    parts = [part for path, _, preset in names for part in (pathlib.Path(path).stem, preset) if part]
    return str(pathlib.Path("runs", "-".join(parts)))


if __name__ == "__main__":
    run_command(main, memory_remedy=TRAINING_MEMORY)
