"""A finished or running run, opened to read: its experiment from config.json, its parameters from a checkpoint."""

import dataclasses
import os

import jax

from contract.errors import ConfigError
from models.transformer import Params
from train import sharding
from train.checkpoint import Checkpoints
from train.experiment import Experiment, make_experiment
from train.paths import array_types
from train.run import Run, abstract_state
from train.run_config import read_config


def load_experiment(workdir: str) -> Experiment:
    """The experiment that the run in `workdir` was started with. Raises ConfigError where there is none.

    Not its attention kernel: the run may have been on another machine, and here the one that suits this one is taken.
    """
    config = read_config(workdir)
    config.pop("corpus", None)
    config["model"]["attention"] = "auto"
    return make_experiment(config)


def load_params(experiment: Experiment, workdir: str, step: int | None = None) -> tuple[Params, int]:
    """The parameters of checkpoint `step`, the newest where None, on this machine's devices; and their step.

    Raises ConfigError where there is no such checkpoint.
    """
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    state = checkpoints.restore(abstract_state(experiment, sharding.make_mesh(experiment.mesh)), step)
    checkpoints.close()
    return state.params, int(state.step)


def language_model(experiment: Experiment, params: Params) -> tuple[Experiment, Params] | None:
    """The experiment with, as its `model`, the one that predicts tokens, and that one's parameters.

    Its attention is XLA's, which runs on parameters wherever they are: nobody splits a kernel over devices for it.
    """
    model_and_params = experiment.learner.language_model(params)
    if model_and_params is None:
        return None
    model, params = model_and_params
    return dataclasses.replace(experiment, model=dataclasses.replace(model, attention="xla")), params


def start_from(run: Run, params: Params, workdir: str) -> Params:
    """`params` with the Transformer of the newest checkpoint in `workdir`, another run's: `train.init_from`.

    Raises ConfigError where that run reads other tokens, or where its Transformer has other arrays.
    """
    where, experiment = f"train.init_from={workdir}", run.experiment
    other = load_experiment(workdir)
    if other.tokenizer.fingerprint != experiment.tokenizer.fingerprint:
        raise ConfigError(f"{where}: that run has data.tokenizer={other.data.tokenizer!r}, which reads other tokens")
    other = dataclasses.replace(other, mesh=experiment.mesh)
    transformer = experiment.learner.transformer(params)
    theirs = jax.eval_shape(lambda: other.learner.transformer(other.learner.init_params(jax.random.key(0))))
    ours, theirs = array_types(transformer), array_types(theirs)
    differing = [name for name in (*ours, *(theirs.keys() - ours.keys())) if ours.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"{where}: {name} is {theirs.get(name, 'not there')} in that run and {ours.get(name, 'not there')} here, "
            f"and {len(differing) - 1} more differ: make config.model and the data's lengths and tokens those of its "
            "config.json"
        )
    other_params, _ = load_params(other, workdir)
    return experiment.learner.replace_transformer(params, other.learner.transformer(other_params))
