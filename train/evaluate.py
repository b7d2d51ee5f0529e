"""Evaluates a checkpoint of a run on held-out text: python -m train.evaluate --workdir=DIR [--step=N]

Prints one JSON line: loss, perplexity and accuracy, the loss of each denoiser, and bits per byte where defined.
"""

import json
import math

import jax
from absl import flags

from models.transformer import Params
from train.command import parse_flags, run_command
from train.metrics import summarize
from train.restore import load_experiment, load_params, reading_mesh
from train.run import Run, make_run

_FLAGS = flags.FlagValues()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to evaluate. Default: the newest.", flag_values=_FLAGS)


def evaluate(run: Run, params: Params) -> dict[str, float]:
    """Held-out loss, perplexity, accuracy, the loss of each denoiser, and bits per byte where they are defined.

    Every call reads the same documents, windows and corruption. Sums over all batches are divided once.
    """
    total = None
    for batch in run.heldout_batches():
        sums = run.eval_step(params, batch)
        total = sums if total is None else jax.tree.map(lambda a, b: a + b, total, sums)
    total = jax.device_get(total)
    metrics = summarize(total, run.experiment.denoiser_names)
    if total.get("bytes_sum", 0) > 0:
        metrics["bits_per_byte"] = float(total["loss_sum"]) / math.log(2) / float(total["bytes_sum"])
    return metrics


def main() -> None:
    """Evaluates a checkpoint of a run and prints the metrics as one JSON line."""
    parse_flags(_FLAGS, __doc__)
    experiment = load_experiment(_WORKDIR.value)
    mesh = reading_mesh(experiment, batch_size=experiment.train.batch_size)
    params, step = load_params(experiment, _WORKDIR.value, _STEP.value, mesh=mesh)
    print(json.dumps({"step": step, "split": "eval"} | evaluate(make_run(experiment, mesh=mesh), params)))


if __name__ == "__main__":
    run_command(main)
