"""ELECTRA's generator and discriminator, trained together in one step."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from models.config import ModelConfig
from models.discriminator import discriminator_logits, init_head
from models.flops import dense_flops, hidden_flops, logits_flops
from models.transformer import Params, bind, init_params
from objectives.electra import ELECTRA
from objectives.losses.cross_entropy import batch_cross_entropy
from objectives.losses.replaced_tokens import (
    ReplacedTokenSums,
    replace_tokens,
    replaced_token_loss,
    sample_tokens,
    scored_positions,
)
from train.config import ExperimentConfig, LossConfig
from train.learners.learner import Batch, Sums

# What both read a text through, as in the reference, which shares all of the scope "electra/embeddings". The encoders,
# and the projections between these and the encoders, are each model's own.
_SHARED = ("token_embedder", "position_embedder", "token_type_embedder", "embedding_norm")


@dataclasses.dataclass(frozen=True)
class ElectraLearner:
    """See train.learner.Learner. The loss reported is the generator's; the discriminator's numbers are ratios:

    discriminator_loss (nats per token), discriminator_accuracy, and for the tokens that are not the original
    discriminator_precision and discriminator_recall; replaced_fraction is the share of those among all tokens, so
    1 - replaced_fraction is the accuracy of finding nothing.

    Parameters: `embeddings`, which both models share; `generator` and `discriminator`, the rest of a Transformer each;
    `discriminator_head`.
    """

    objective: ELECTRA
    generator: ModelConfig
    model: ModelConfig  # with the discriminator's sizes; it has a prediction head, which the discriminator has not
    loss_config: LossConfig  # of the generator's predictions
    num_denoisers: int
    examples_per_row: int

    @classmethod
    def make(
        cls, objective: ELECTRA, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "ElectraLearner":
        """As LEARNERS has it. Raises ConfigError where `generator_size` does not leave whole sizes, and for a loss in
        chunks."""
        if config.loss.chunk_size:
            raise ConfigError(
                f"loss.chunk_size={config.loss.chunk_size} must be 0 with ELECTRA, which draws from the generator's "
                "logits; they are of the selected tokens alone"
            )
        generator = generator_config(model, objective.generator_size)
        return cls(objective, generator, model, config.loss, num_denoisers, config.data.examples_per_row)

    @property
    def discriminator(self) -> ModelConfig:
        return dataclasses.replace(self.model, predicts_tokens=False)

    def init_params(self, key: Array) -> Params:
        generator_key, discriminator_key, head_key = jax.random.split(key, 3)
        embeddings, discriminator = _split(init_params(self.discriminator, discriminator_key))
        _, generator = _split(init_params(self.generator, generator_key))
        head = init_head(self.discriminator, head_key)
        return {
            "embeddings": embeddings,
            "generator": generator,
            "discriminator": discriminator,
            "discriminator_head": head,
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {
            "generator": batch["encoder_loss_weights"].sum(),
            "discriminator": (batch["encoder_segment_ids"] > 0).sum(dtype=jnp.float32),
        }

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        generator_key, sampling_key, discriminator_key = jax.random.split(key, 3)
        has_dropout = train and self.model.dropout_rate > 0
        logits_BxKxV, scored, positions_BxK = self._generate(params, batch, generator_key if has_dropout else None)
        sums = batch_cross_entropy(
            logits_BxKxV,
            scored,
            num_denoisers=self.num_denoisers,
            z_loss=self.loss_config.z_loss,
            label_smoothing=self.loss_config.label_smoothing,
        )._asdict()
        samples_BxK = sample_tokens(logits_BxKxV, sampling_key, self.objective.temperature)
        inputs_BxL, replaced_BxL = replace_tokens(
            batch["encoder_target_tokens"], samples_BxK, positions_BxK, scored["encoder_loss_weights"] > 0
        )
        found = self._discriminate(
            params,
            {**batch, "encoder_input_tokens": inputs_BxL},
            replaced_BxL,
            discriminator_key if has_dropout else None,
        )
        generator_loss = sums.pop("objective_sum") / jnp.maximum(weights["generator"], 1.0)
        discriminator_loss = found.loss_sum / jnp.maximum(weights["discriminator"], 1.0)
        objective = self.objective.generator_weight * generator_loss
        objective += self.objective.discriminator_weight * discriminator_loss
        return objective, sums | {"ratios": _ratios(found)}

    def _generate(self, params: Params, batch: Batch, dropout_key: Array | None) -> tuple[Array, Batch, Array]:
        """The generator's logits float32 [B, K, V] at the scored positions, the batch's fields there, the positions.

        K is about a seventh of L: the generator's table is the widest matrix of the two models.
        """
        weights_BxL = batch["encoder_loss_weights"]
        most = self.objective.most_selected(weights_BxL.shape[1], self.examples_per_row)
        positions_BxK = scored_positions(weights_BxL, most)
        generator = bind(self.generator, params["embeddings"] | params["generator"])
        hidden_BxLxD = generator.hidden(batch, dropout_key=dropout_key)
        logits_BxKxV = generator.logits(jnp.take_along_axis(hidden_BxLxD, positions_BxK[..., None], axis=1))
        fields = ("encoder_target_tokens", "encoder_loss_weights", "example_source")
        scored = {name: jnp.take_along_axis(batch[name], positions_BxK, axis=1) for name in fields}
        return logits_BxKxV, scored, positions_BxK

    def _discriminate(
        self, params: Params, batch: Batch, replaced_BxL: Array, dropout_key: Array | None
    ) -> ReplacedTokenSums:
        discriminator = bind(self.discriminator, params["embeddings"] | params["discriminator"])
        hidden_BxLxD = discriminator.hidden(batch, dropout_key=dropout_key)
        logits_BxL = discriminator_logits(self.discriminator, params["discriminator_head"], hidden_BxLxD)
        weights_BxL = (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
        return replaced_token_loss(logits_BxL, replaced_BxL, weights_BxL)

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """The generator's, with predictions at the selected positions alone, and the discriminator's at all."""
        selected = self.objective.most_selected(inputs_length, self.examples_per_row)
        generator = hidden_flops(self.generator, inputs_length, targets_length) + logits_flops(self.generator, selected)
        head = dense_flops(inputs_length, self.model.d_model, self.model.d_model + 1)
        return generator + hidden_flops(self.model, inputs_length, targets_length) + head

    def transformer(self, params: Params) -> Params:
        """The discriminator's, which is what ELECTRA is for. The output of `model`, which it has none of, is a new one,
        the same every time."""
        return init_params(self.model, jax.random.key(0)) | params["embeddings"] | params["discriminator"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        embeddings, rest = _split(transformer)
        return params | {
            "embeddings": embeddings,
            "discriminator": {name: rest[name] for name in params["discriminator"]},
        }

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        """The generator."""
        return self.generator, params["embeddings"] | params["generator"]


def generator_config(model: ModelConfig, size: float) -> ModelConfig:
    """`model` with `size` of its width, heads and d_ff, and its embedding tables.

    Raises ConfigError where one of them is not whole. A third may be written 0.33333, as in the reference.
    """
    sizes = {name: getattr(model, name) for name in ("d_model", "num_heads", "num_kv_heads", "d_ff")}
    for name, whole in sizes.items():
        if round(size * whole) < 1 or not math.isclose(size * whole, round(size * whole), rel_tol=1e-4):
            parts = math.gcd(*sizes.values())
            raise ConfigError(
                f"objective.generator_size={size} of model.{name}={whole} is {size * whole:g}, which is not a whole "
                f"number: {max(round(size * parts), 1) / parts:g} would give one"
            )
    scaled = {name: round(size * whole) for name, whole in sizes.items()}
    try:
        return dataclasses.replace(model, **scaled, embedding_size=model.embedding_width)
    except ValueError as error:
        raise ConfigError(f"objective.generator_size={size}: for the generator, config.{error}") from error


def _split(transformer: Params) -> tuple[Params, Params]:
    """What generator and discriminator share of a Transformer's parameters, and the rest."""
    shared = {name: leaves for name, leaves in transformer.items() if name in _SHARED}
    return shared, {name: leaves for name, leaves in transformer.items() if name not in _SHARED}


def _ratios(found: ReplacedTokenSums) -> dict[str, tuple[Array, Array]]:
    return {
        "discriminator_loss": (found.loss_sum, found.weight_sum),
        "discriminator_accuracy": (found.correct_sum, found.weight_sum),
        "discriminator_precision": (found.found_replaced_sum, found.found_sum),
        "discriminator_recall": (found.found_replaced_sum, found.replaced_sum),
        "replaced_fraction": (found.replaced_sum, found.weight_sum),
    }
