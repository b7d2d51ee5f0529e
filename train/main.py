"""python -m train.main --config=configs/ul2.py[:preset] [--workdir=DIR] [--config.a.b=value ...]"""

import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from train.command import parse_config_flags, run_command
from train.distributed import ends_with_the_others, initialize
from train.experiment import make_experiment
from train.loop import train_and_evaluate

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment: a file of configs/, with :preset or without.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; runs/<config>[-preset] where left out.")
_COORDINATOR = flags.DEFINE_string("coordinator_address", None, "host:port of process 0, for several processes.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes the run has.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
_MULTI_HOST = flags.DEFINE_bool("multi_host", False, "Join the processes that the cluster knows of (TPU VM slices).")


def main() -> None:
    """Reads the command line, joins the other processes if there are any, and trains."""
    config = parse_config_flags(sys.argv, _CONFIG)
    initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value, multi_host=_MULTI_HOST.value)
    with ends_with_the_others():
        train_and_evaluate(make_experiment(config), _WORKDIR.value or _default_workdir())


def _default_workdir() -> str:
    path, _, preset = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    return str(pathlib.Path("runs", "-".join(filter(None, [pathlib.Path(path).stem, preset]))))


if __name__ == "__main__":
    run_command(main)
