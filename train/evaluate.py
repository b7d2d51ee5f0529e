"""Held-out evaluation on fixed corruption: in the loop, and of a run's checkpoint as `python -m train.evaluate`."""

import argparse
import json
import math

import jax

from models.transformer import Params
from train.command import run_command
from train.metrics import summarize
from train.restore import load_experiment, load_params
from train.run import Run, make_run


def evaluate(run: Run, params: Params) -> dict[str, float]:
    """Held-out loss, perplexity, accuracy, the loss of each denoiser, and bits per byte of a causal language model.

    The same documents, windows and corruption at every call; sums over all batches, divided once.
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
    """Evaluates a checkpoint of a run and prints the numbers as one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m train.evaluate", description=main.__doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument("--step", type=int, help="checkpoint to evaluate; the newest where left out")
    args = parser.parse_args()
    experiment = load_experiment(args.workdir)
    params, step = load_params(experiment, args.workdir, args.step)
    print(json.dumps({"step": step, "split": "eval"} | evaluate(make_run(experiment), params)))


if __name__ == "__main__":
    run_command(main)
