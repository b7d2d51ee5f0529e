"""SimCSE: an encoder that reads every text twice, under two draws of dropout."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, pooled_flops
from models.pooler import bind_pooler, init_pooler
from models.transformer import Params, bind, init_params
from objectives.losses.chunked_cross_entropy import batch_cross_entropy_of_hidden
from objectives.losses.contrastive import alignment, info_nce, uniformity
from objectives.simcse import SimCSE
from train.config import ExperimentConfig, LossConfig
from train.learners.learner import Batch, Sums


@dataclasses.dataclass(frozen=True)
class ContrastiveLearner:
    """See train.learner.Learner. Alone, loss and accuracy are the contrast's: nats per text, and how often a text's own
    second reading is the nearest of the batch. Beside MLM they are MLM's, and the contrast's are the ratios
    contrastive_loss and contrastive_accuracy. Further ratios: alignment, squared distance of the two readings;
    uniformity, of the first readings of a batch, the mean over batches (Wang & Isola 2020).

    Negatives are the texts of the whole batch, over all devices. In evaluation too the readings go through dropout, by
    a draw that is the same every time: without it a text's two readings would be one.

    Parameters: `transformer`, and `pooler` on its state at [CLS], which is for training only (SimCSE's mlp_only_train).
    What tells tokens in the Transformer learns beside MLM only.
    """

    model: ModelConfig
    loss_config: LossConfig
    objective: SimCSE
    num_denoisers: int

    @classmethod
    def make(
        cls, objective: SimCSE, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "ContrastiveLearner":
        """As LEARNERS has it. Raises ConfigError where there is nothing to tell readings or texts apart by."""
        if model.dropout_rate == 0:
            raise ConfigError(
                "config.model.dropout_rate=0.0 must be above 0 for objective.name='simcse': dropout alone makes the "
                "two readings of a text differ; SimCSE uses 0.1"
            )
        if config.train.batch_size < 2:
            raise ConfigError(
                f"train.batch_size={config.train.batch_size} must be 2 or more for objective.name='simcse': the other "
                "texts of a batch are the negatives"
            )
        if config.train.grad_accum_steps > 1:
            raise ConfigError(
                f"train.grad_accum_steps={config.train.grad_accum_steps} must be 1 for objective.name='simcse': "
                "texts of another part of the batch would be no negatives, and the loss another one"
            )
        if config.mesh.backend == "pmap":
            raise ConfigError(
                "config.mesh.backend='pmap' must be 'jit' for objective.name='simcse': under jax.pmap a device knows "
                "no other's texts, which would be no negatives"
            )
        return cls(model, config.loss, objective, num_denoisers)

    def init_params(self, key: Array) -> Params:
        transformer_key, pooler_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "pooler": init_pooler(self.model, pooler_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        texts = jnp.asarray(len(batch["encoder_input_tokens"]), jnp.float32)
        return {"tokens": batch["encoder_loss_weights"].sum(), "texts": texts}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        readings_key, mlm_key = jax.random.split(key)
        first_BxD, second_BxD = self._readings(params, batch, readings_key)
        contrast = info_nce(first_BxD, second_BxD, temperature=self.objective.temperature)
        objective = contrast.loss_sum / weights["texts"]
        ratios = {
            "alignment": (alignment(first_BxD, second_BxD), contrast.weight_sum),
            "uniformity": (uniformity(first_BxD), jnp.ones(())),
        }
        if not self.objective.mlm_weight:
            return objective, contrast.by_denoiser() | {"ratios": ratios}
        transformer = bind(self.model, params["transformer"])
        sums = batch_cross_entropy_of_hidden(
            transformer.logits,
            transformer.hidden(batch, dropout_key=mlm_key if train else None),
            batch,
            num_denoisers=self.num_denoisers,
            z_loss=self.loss_config.z_loss,
            label_smoothing=self.loss_config.label_smoothing,
            chunk_size=self.loss_config.chunk_size,
        )._asdict()
        objective += self.objective.mlm_weight * sums.pop("objective_sum") / jnp.maximum(weights["tokens"], 1.0)
        ratios["contrastive_loss"] = contrast.loss_sum, contrast.weight_sum
        ratios["contrastive_accuracy"] = contrast.correct_sum, contrast.weight_sum
        return objective, sums | {"ratios": ratios}

    def _readings(self, params: Params, batch: Batch, key: Array) -> Array:
        """[2, B, D]: both readings of each text, whose tokens are all in the batch's targets."""
        transformer, pooler = bind(self.model, params["transformer"]), bind_pooler(self.model, params["pooler"])
        text = {**batch, "encoder_input_tokens": batch["encoder_target_tokens"]}

        def read(key: Array) -> Array:
            return pooler(transformer.hidden(text, dropout_key=key)[:, 0])

        return jax.lax.map(read, jax.random.split(key))

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Two readings, and a third that predicts tokens beside MLM."""
        hidden = hidden_flops(self.model, inputs_length, targets_length)
        readings = 2 * (hidden + pooled_flops(self.model, classes=0))
        return readings + (hidden + logits_flops(self.model, inputs_length)) * bool(self.objective.mlm_weight)

    def transformer(self, params: Params) -> Params:
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params] | None:
        """None where no token is predicted."""
        return (self.model, params["transformer"]) if self.objective.mlm_weight else None
