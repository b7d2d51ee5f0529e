"""Evaluates a checkpoint of a run on held-out text: python -m train.evaluate --workdir=DIR [--step=N]

Prints one JSON line: loss, perplexity, accuracy and the standard error of the loss over documents; loss, accuracy and
the numbers of documents and scored tokens of each denoiser; bits per byte where defined; and heldout_digest, which is
equal for runs that hold out the same text. train.eval_windows windows are scored; with --all, all held-out windows.

With --config=configs/OTHER.py [--config.a.b=value ...] the same model is scored under another config: its objective,
layout, lengths and corpus, wherever the architecture and the vocabulary allow it. The model, the precision and the
split are the run's. The line then names the config and the overrides.
"""

import json
import sys

from absl import flags

from data.split import heldout_digest
from train.command import config_fields, config_name, config_overrides, define_config, parse_flags, run_command
from train.experiment import Experiment
from train.heldout import evaluate, score_all
from train.overlap import describe_trained_on
from train.restore import load_experiment, load_params, reading_mesh
from train.run import make_run
from train.scoring import scoring_experiment, scoring_params

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to evaluate. Default: the newest.", flag_values=_FLAGS)
_ALL = flags.DEFINE_bool("all", False, "Score all held-out windows.", _FLAGS)


def main() -> None:
    """Evaluates a checkpoint of a run, under the run's config or another one, and prints one JSON line."""
    parse_flags(_FLAGS, __doc__)
    trained = load_experiment(_WORKDIR.value)
    experiment = trained if _FLAGS["config"].value is None else _other_experiment(trained)
    mesh = reading_mesh(trained, batch_size=experiment.train.batch_size)
    params, step = load_params(trained, _WORKDIR.value, _STEP.value, mesh=mesh)
    if _ALL.value:
        experiment = score_all(experiment)
    run = make_run(experiment, mesh=mesh)
    line = {"step": step, "split": "eval"}
    if _FLAGS["config"].value is not None:
        params = scoring_params(trained, experiment, params)
        line |= {"config": config_name(_FLAGS), "overrides": config_overrides(_FLAGS)}
        for note in describe_trained_on(trained, run):
            print(f"note: {note}", file=sys.stderr, flush=True)
    digest = heldout_digest(run.heldout_documents, experiment.data.split)
    print(json.dumps(line | evaluate(run, params) | {"heldout_digest": digest}))


def _other_experiment(trained: Experiment) -> Experiment:
    """The experiment of --config, for the model of the run."""
    return scoring_experiment(
        trained, config_fields(_FLAGS), name=config_name(_FLAGS), overrides=config_overrides(_FLAGS)
    )


if __name__ == "__main__":
    run_command(main)
