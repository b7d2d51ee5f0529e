"""Plans a run: python -m train.plan --config=configs/ul2.py:20b --topology=v5p:4x4x4 [--vocab_size=32128] ...

Prints the memory and the time of a run on a machine, which need not be available, whether the run fits and, if not,
which fields make the run fit. For a TPU topology the TPU compiler compiles the train step, which also shows the step's
collectives (pip install -e '.[tpu]'; no TPU is needed). v5e:4x4:2 is two slices of 4x4 chips. For gpu:N, h100:N, cpu:N
and other chips, memory is added up from shapes, which is less exact. On a GPU programs can use JAX's memory pool: 75%
of the memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set, here as on the machine. model.remat="auto" and
train.grad_accum_steps=0 are resolved as at the start of a run on that machine. --json=FILE writes what is printed as a
JSON object: before the search for the fields that make the run fit, which may take long, and again after it.
"""

import json
import sys
from typing import Any

import jax
from absl import flags

from command.flags import (
    config_fields,
    config_name,
    define_config,
    parse_flags,
    run_command,
)
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from files.atomic import check_output, is_replaced, writing
from plan.estimate import Estimate, estimate
from plan.memory_choice import resolve_memory
from plan.remedy import find_remedy
from plan.report import report_fields, report_lines
from plan.topology import Topology, parse_topology

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
_TOPOLOGY = flags.DEFINE_string("topology", None, "Machine: v5e:4x4, v5p:4x4x4, h100:8, gpu:8, cpu:2, ...", _FLAGS)
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size",
    None,
    "Number of ids, if the tokenizer's file is not available.",
    lower_bound=1,
    upper_bound=2**30,
    flag_values=_FLAGS,
)

_JSON = flags.DEFINE_string("json", None, "A file for everything that the command prints, as a JSON object.", _FLAGS)


def main() -> None:
    """Prints the estimate. If the run does not fit, also prints the remedy and exits with status 1."""
    parse_flags(_FLAGS, __doc__)
    config = config_fields(_FLAGS)
    jax.config.update("jax_platforms", "cpu")  # nothing runs on this machine's accelerator
    if _TOPOLOGY.value is None:
        raise ConfigError("--topology is missing: for example --topology=v5e:4x4 or --topology=h100:8")
    if _JSON.value is not None:
        check_output(_JSON.value, "--json")
    topology = parse_topology(_TOPOLOGY.value)

    def estimate_of(fields: dict, topology: Topology) -> Estimate:
        return estimate(make_experiment(fields, vocab_size=_VOCAB_SIZE.value), topology)

    experiment = resolve_memory(make_experiment(config, vocab_size=_VOCAB_SIZE.value), topology)
    config, result = experiment.config, estimate(experiment, topology)
    for line in report_lines(config_name(_FLAGS), result):
        print(line, flush=True)
    epochs = config["train"]["epochs"]
    fields = report_fields(config_name(_FLAGS), result) | {"epochs": epochs or None, "fits_with": None}
    if epochs:
        print(f"  length of the run  train.epochs={epochs:g}: steps are known once train.main has read the corpus")
    if result.fits is False:
        if _JSON.value is not None and is_replaced(_JSON.value):  # a pipe gets one object
            _write(fields, _JSON.value)
        fields["fits_with"] = find_remedy(config, topology, estimate_of)
        print(f"  {'fits with':<18} {fields['fits_with']}", flush=True)
    if _JSON.value is not None:
        _write(fields, _JSON.value)
    if result.fits is False:
        sys.exit(1)


def _write(fields: dict[str, Any], path: str) -> None:
    with writing(path, "--json") as file:
        file.write(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    run_command(main)
