"""Checks of the positions of a model against the rows and the objectives of a run."""

from collections.abc import Sequence

from contract.errors import ConfigError
from experiment.config import DataConfig
from models.config import ModelConfig
from objectives import Denoiser


def check_max_length(model: ModelConfig, data: DataConfig) -> None:
    """Raises ConfigError for rows that are longer than the table of learned positions.

    With target_positions the last token of a full row may be read too, and takes one more position.
    """
    for field in ("inputs_length", "targets_length") if model.architecture == "encoder_decoder" else ("inputs_length",):
        length = getattr(data, field)
        if length + model.target_positions > model.max_length:
            one_less = " - 1 with model.target_positions=True" if model.target_positions else ""
            raise ConfigError(
                f"data.{field}={length} must be at most model.max_length={model.max_length}{one_less}, the number of "
                "learned positions"
            )


def check_target_positions(denoisers: Sequence[Denoiser], model: ModelConfig, data: DataConfig) -> None:
    """Raises ConfigError for texts in another order where the model does not know which token is the next.

    Raises it too where the inputs of such a text see each other, because prompts are read causally.
    """
    if model.target_positions and model.architecture != "decoder_only":
        raise ConfigError(
            f"model.target_positions=True does not go with model.architecture={model.architecture!r}: use "
            "'decoder_only', or set it to False"
        )
    for denoiser in denoisers:
        name = f"{denoiser.field} ({type(denoiser.objective).__name__})"
        if denoiser.objective.has_places and not model.target_positions:
            raise ConfigError(
                f"{name} reads texts in another order: set model.target_positions=True, with model.positions='learned' "
                "or 'rope'"
            )
        if denoiser.objective.has_places and denoiser.objective.has_inputs and data.bidirectional_inputs:
            raise ConfigError(f"{name} reads its inputs in their order: set data.bidirectional_inputs=False")
