"""Opens a finished or running run for reading: the experiment from config.json, parameters from a checkpoint."""

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
    """Returns the experiment of the run in `workdir`. Raises ConfigError if the folder is not a run's.

    The attention kernel is chosen for this machine, because the run may have been on another one.
    """
    config = read_config(workdir)
    config.pop("corpus", None)
    config["model"]["attention"] = "auto"
    return make_experiment(config)


def load_params(experiment: Experiment, workdir: str, step: int | None = None) -> tuple[Params, int]:
    """Returns the parameters of checkpoint `step` (None: the newest) on this machine's devices, and their step.

    Raises ConfigError if there is no such checkpoint.
    """
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
    state = checkpoints.restore(abstract_state(experiment, sharding.make_mesh(experiment.mesh)), step)
    checkpoints.close()
    return state.params, int(state.step)


def language_model(experiment: Experiment, params: Params) -> tuple[Experiment, Params] | None:
    """Returns the experiment with the learner's language model as `model`, and that model's parameters.

    None if the learner has no language model. The model's attention is XLA's, which runs on parameters with any
    sharding; the other kernels would have to be split over devices first.
    """
    model_and_params = experiment.learner.language_model(params)
    if model_and_params is None:
        return None
    model, model_params = model_and_params
    return dataclasses.replace(experiment, model=dataclasses.replace(model, attention="xla")), model_params


def start_from(run: Run, params: Params, workdir: str) -> Params:
    """Returns `params` with the Transformer of the newest checkpoint in `workdir`, for `train.init_from`.

    Raises ConfigError if the run in `workdir` has another tokenizer, or if its Transformer has other arrays.
    """
    field, experiment = f"train.init_from={workdir}", run.experiment
    other = load_experiment(workdir)
    if other.tokenizer.fingerprint != experiment.tokenizer.fingerprint:
        raise ConfigError(f"{field}: that run has another tokenizer, data.tokenizer={other.data.tokenizer!r}")
    other = dataclasses.replace(other, mesh=experiment.mesh)
    other_transformer = jax.eval_shape(lambda: other.learner.transformer(other.learner.init_params(jax.random.key(0))))
    ours, theirs = array_types(experiment.learner.transformer(params)), array_types(other_transformer)
    differing = [name for name in (*ours, *(theirs.keys() - ours.keys())) if ours.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"{field}: {name} is {theirs.get(name, 'missing')} in that run and {ours.get(name, 'missing')} here, and "
            f"{len(differing) - 1} more arrays differ: copy the fields of model, data.inputs_length, "
            "data.targets_length and data.tokenizer from that run's config.json"
        )
    other_params, _ = load_params(other, workdir)
    return experiment.learner.replace_transformer(params, other.learner.transformer(other_params))
