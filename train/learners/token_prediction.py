"""One Transformer that predicts the scored tokens of a batch: CLM, MLM, every denoiser and mixture."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, scored_length
from models.transformer import Params, bind, init_params
from objectives.losses.chunked_cross_entropy import batch_cross_entropy_of_hidden
from objectives.losses.cross_entropy import target_side
from train.config import ExperimentConfig, LossConfig
from train.learners.learner import Batch, Sums


@dataclasses.dataclass(frozen=True)
class TokenPrediction:
    """See train.learner.Learner. The parameters are the Transformer's own."""

    model: ModelConfig
    loss_config: LossConfig
    num_denoisers: int

    @classmethod
    def make(
        cls, objective: Any, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "TokenPrediction":
        """As LEARNERS has it; every objective will do."""
        del objective
        return cls(model, config.loss, num_denoisers)

    def init_params(self, key: Array) -> Params:
        return init_params(self.model, key)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"tokens": batch[f"{target_side(batch)}_loss_weights"].sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        transformer = bind(self.model, params)
        sums = batch_cross_entropy_of_hidden(
            transformer.logits,
            transformer.hidden(batch, dropout_key=key if train and self.model.dropout_rate else None),
            batch,
            num_denoisers=self.num_denoisers,
            z_loss=self.loss_config.z_loss,
            label_smoothing=self.loss_config.label_smoothing,
            chunk_size=self.loss_config.chunk_size,
        )._asdict()
        return sums.pop("objective_sum") / jnp.maximum(weights["tokens"], 1.0), sums

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        scored = scored_length(self.model, inputs_length, targets_length)
        return hidden_flops(self.model, inputs_length, targets_length) + logits_flops(self.model, scored)

    def transformer(self, params: Params) -> Params:
        return params

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return transformer

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        return self.model, params
