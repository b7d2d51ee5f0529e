"""Scores a run's checkpoint under another config: another objective, layout, rows or corpus, for the same model.

The model is the run's. The objective, the learner, the rows and the corpus are the other config's. The fields in
RUN_FIELDS of `data`, and the precision, are the run's unless they are overridden on the command line.
"""

from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from data.tokenizers.tokenizer import make_tokenizer
from experiment.config import DataConfig, from_mapping
from experiment.experiment import Experiment, make_experiment
from experiment.objective import make_objective
from huggingface.vocabulary import VOCABULARY
from learners.classification import ClassificationLearner
from models.config import ModelConfig
from models.parameters import array_difference, array_types
from models.transformer import Params
from objectives.mixture import learned_objective
from run.restore import config_for_reading, language_model

# Of config.data: under another split, text that the run trained on is scored.
RUN_FIELDS = ("heldout_fraction", "split_seed", "split_by", "heldout")
# Overrides that evaluation cannot follow, and why.
_FIXED = {"model": "the model is the run's", "mesh": "evaluation uses the devices of this machine"}


def scoring_experiment(
    run: Experiment, config: Mapping[str, Any], *, name: str, overrides: Mapping[str, Any]
) -> Experiment:
    """Returns the experiment that scores the model of `run` under `config`.

    Args:
      run: from run.restore.load_experiment.
      config: the other config, overrides applied.
      name: of `config`, for messages, such as configs/clm.py.
      overrides: the fields of `config` that were set on the command line, such as {"data.inputs_length": 64}.

    Raises ConfigError if the objective does not support the run's architecture, if the vocabularies differ, if rows are
    longer than a table of learned positions, or if the learner has parameters that the run does not have.
    """
    objective = make_objective(config["objective"])
    if run.model.architecture not in objective.architectures:
        raise ConfigError(
            f"--config={name}: {_objective(config)} needs a model of architecture "
            f"{' or '.join(sorted(objective.architectures))}, and the model of this run ({run.objective_name}) is "
            f"{run.model.architecture}"
        )
    predicts_tokens_alone = learned_objective(objective).learner == "token_prediction"
    model = language_model(run, run.params_shapes)[0].model if predicts_tokens_alone else run.model
    _check_overrides(model, overrides)
    config = config_for_reading(config)
    config["model"] = {field: getattr(model, field) for field in run.config["model"]}
    config["model"]["attention"] = overrides.get("model.attention", "auto")
    config["data"] = config["data"] | {
        field: run.config["data"][field] for field in RUN_FIELDS if f"data.{field}" not in overrides
    }
    if "precision" not in overrides:
        config["precision"] = run.config["precision"]
    data = from_mapping(DataConfig, config["data"], "data")
    _check_vocabulary(run, data, name)
    experiment = make_experiment(config)
    _check_params(run, experiment, name)
    return experiment


def scoring_params(run: Experiment, experiment: Experiment, params: Params) -> Params:
    """Returns the parameters of `experiment`, a `scoring_experiment`, from `params` of the run."""
    if experiment.learner.objective.learner == "token_prediction":
        return {"transformer": language_model(run, params)[1]}
    return {module: params[module] for module in experiment.params_shapes if module in params}


def _check_overrides(model: ModelConfig, overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for overrides without effect, but not for fields of the model that repeat the run's."""
    for field, value in overrides.items():
        section, _, name = field.partition(".")
        if section not in _FIXED or field == "model.attention" or getattr(model, name, None) == value:
            continue
        raise ConfigError(f"--config.{field}={value} has no effect, because {_FIXED[section]}: remove it")


def _check_vocabulary(run: Experiment, data: DataConfig, name: str) -> None:
    """Raises ConfigError unless every token has the same id in both."""
    for field in VOCABULARY:
        ours, theirs = getattr(run.data, field), getattr(data, field)
        is_same = ours == theirs
        if field == "tokenizer":  # by its contents
            is_same = run.tokenizer.fingerprint == make_tokenizer(data).fingerprint
        if not is_same:
            raise ConfigError(
                f"--config={name}: data.{field}={theirs!r} gives another vocabulary than the run's "
                f'data.{field}={ours!r}: add --config.data.{field}="{ours}"'
            )


def _check_params(run: Experiment, experiment: Experiment, name: str) -> None:
    """Raises ConfigError if the learner of `experiment` has other parameters than the run, or other classes."""
    needed, available = experiment.params_shapes, scoring_params(run, experiment, run.params_shapes)
    missing = [module for module in needed if module not in available]
    if missing:
        raise ConfigError(
            f"--config={name}: {_objective(experiment.config)} trains {', '.join(missing)} in addition to the "
            f"Transformer, and this run ({run.objective_name}) has {', '.join(run.params_shapes)} alone"
        )
    if difference := array_difference(array_types(available), array_types(needed)):
        raise ConfigError(f"--config={name}: the run's {difference}, for {_objective(experiment.config)}")
    if isinstance(run.learner, ClassificationLearner) and isinstance(experiment.learner, ClassificationLearner):
        ours, theirs = run.learner.objective.classes, experiment.learner.objective.classes
        if ours != theirs:
            raise ConfigError(f"--config={name}: objective.classes={theirs} must be the run's {ours}, in this order")


def _objective(config: Mapping[str, Any]) -> str:
    return f"objective.name={config['objective']['name']!r}"
