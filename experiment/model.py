"""Makes the ModelConfig of a config: the fields of `config.model`, and those that follow from the rest."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from contract.errors import ConfigError
from experiment.config import DataConfig, ExperimentConfig, checked_fields
from models.config import ModelConfig
from objectives import Denoiser

# Vocabulary sizes are rounded up to a multiple of this number, so that mesh axes divide them. T5 does the same (32,100
# ids, 32,128 rows).
VOCAB_MULTIPLE = 128


def model_fields(sections: ExperimentConfig, denoisers: Sequence[Denoiser]) -> dict[str, Any]:
    """Returns the fields of the model, with vocab_size and max_length as in the config, where they may be 0.

    Raises ConfigError as `checked_fields` does, and for a field that is derived from other fields.
    """
    # Derived from other fields, never set in a config.
    derived = {
        "dtype": sections.precision,
        "has_prefix": sections.data.bidirectional_inputs
        and any(denoiser.objective.has_inputs for denoiser in denoisers),
        "one_segment": sections.data.examples_per_row == 1
        and all((denoiser.documents or sections.data.documents) in ("join", "split") for denoiser in denoisers),
        "predicts_tokens": True,
    }
    fixed = sorted(derived.keys() & sections.model.keys())
    if fixed:
        raise ConfigError(
            f"config field model.{fixed[0]} cannot be set: it is derived from the objective, precision or "
            "data.bidirectional_inputs"
        )
    return checked_fields(ModelConfig, {**sections.model, **derived}, "model")


def make_model_config(
    fields: Mapping[str, Any], data: DataConfig, num_ids: int, denoisers: Sequence[Denoiser]
) -> ModelConfig:
    """Returns the model.

    Args:
      fields: from `model_fields`.
      data: its lengths bound the positions.
      num_ids: the number of the tokenizer's ids.
      denoisers: their sentence types are the model's, at least.

    Raises ConfigError for fields that cannot work together.
    """
    derived = {
        "vocab_size": fields["vocab_size"] or -(-num_ids // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        "max_length": fields["max_length"] or max(data.inputs_length, data.targets_length),
    }
    try:
        model = ModelConfig(**fields | derived)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if model.vocab_size < num_ids:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} must be at least {num_ids}, the number of the tokenizer's ids, or 0"
        )
    for field in ("inputs_length", "targets_length") if model.architecture == "encoder_decoder" else ("inputs_length",):
        length = getattr(data, field)
        if model.positions == "learned" and length > model.max_length:
            raise ConfigError(
                f"data.{field}={length} must be at most model.max_length={model.max_length}, the number of learned "
                "positions"
            )
    types = max(denoiser.objective.num_token_types for denoiser in denoisers)
    if model.architecture == "encoder_only" and types > model.num_token_types:
        return dataclasses.replace(model, num_token_types=types)
    return model
