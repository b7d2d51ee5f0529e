"""ELECTRA's generator and discriminator, trained together in one step."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from learners.learner import Batch, Learner, Sums, mean
from models.config import ModelConfig
from models.flops import dense_flops, hidden_flops, logits_flops
from models.heads import DiscriminatorHead
from models.parameters import Params, bind_module, init_module
from models.transformer import bind, init_params
from objectives.electra import ELECTRA
from objectives.losses.cross_entropy import (
    ScoredTokens,
    at_positions,
    cross_entropy,
    scored_at,
    scored_positions,
    scored_tokens,
)
from objectives.losses.replaced_tokens import (
    ReplacedTokenSums,
    Texts,
    replace_tokens,
    replaced_token_loss,
    sample_tokens,
    sampling_keys,
)

_TEXT_FIELDS = ("target_tokens", "input_tokens", "segment_ids", "positions")  # of Texts, in its order
_TABLES = ("token_embedder", "position_embedder", "token_type_embedder")
# The modules that both models share, as in the reference, which shares the variable scope "electra/embeddings". Each
# model has its own encoder, and its own projection between the embeddings and the encoder.
SHARED = (*_TABLES, "embedding_norm")


@dataclasses.dataclass(frozen=True)
class ElectraLearner(Learner):
    """See Learner. The minimized loss is the weighted sum of the generator's and the discriminator's losses.

    The reported loss and accuracy are the generator's, over the selected tokens. Ratios, over all
    positions that are not padding: discriminator_loss, in nats per position, discriminator_accuracy, and
    replaced_fraction, the share of replaced tokens, so that 1 - replaced_fraction is the accuracy of predicting
    "original" everywhere. discriminator_precision is over the positions that are predicted to be replaced,
    discriminator_recall over those that are replaced.

    The generator's samples depend on the key of the step and on the example itself (`sampling_keys`). So evaluation,
    whose key is always the same, draws independent samples for different examples, and the same samples for an example
    in batches of any size, on any number of devices.

    Parameters: `transformer`, the discriminator's Transformer, shared embeddings included; `discriminator_head`;
    `generator`, the rest of the generator's Transformer. With embedding_sharing="gdes" or "none" the generator has
    embeddings of its own; with "gdes" the tables of `transformer` are the differences from the generator's.

    model: has the discriminator's sizes, and an output head that the discriminator lacks.
    """

    objective: ELECTRA

    def check(self) -> None:
        if self.setup.loss.chunk_size:
            raise ConfigError(
                f"loss.chunk_size={self.setup.loss.chunk_size} must be 0 for objective.name='electra', which samples "
                "from the generator's logits of the whole vocabulary"
            )
        _ = self.generator  # raises ConfigError for sizes that are not whole

    @property
    def generator(self) -> ModelConfig:
        """The model of the generator."""
        return generator_config(self.model, self.objective.generator_size, self.objective.generator_layers)

    @property
    def discriminator(self) -> ModelConfig:
        """The model of the discriminator, without an output head."""
        return dataclasses.replace(self.model, predicts_tokens=False)

    def init_params(self, key: Array) -> Params:
        generator_key, discriminator_key, head_key = jax.random.split(key, 3)
        generator = init_params(self.generator, generator_key)
        if self.objective.embedding_sharing != "none":
            generator = {name: leaves for name, leaves in generator.items() if name not in SHARED}
        transformer = init_params(self.discriminator, discriminator_key)
        head = init_module(DiscriminatorHead, self.discriminator, key=head_key)
        params = {"transformer": transformer, "discriminator_head": head, "generator": generator}
        return self.replace_transformer(params, transformer)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {
            "generator": batch["encoder_loss_weights"].sum(),
            "discriminator": (batch["encoder_segment_ids"] > 0).sum(dtype=jnp.float32),
        }

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        generator_key, sampling_key, discriminator_key = jax.random.split(key, 3)
        logits_BxKxV, scored, positions_BxK = self._generate(params, batch, self.dropout_key(generator_key, train))
        tokens = cross_entropy(logits_BxKxV, scored, self.loss_options)
        texts = Texts(*(batch[f"encoder_{name}"] for name in _TEXT_FIELDS))
        keys_BxK = sampling_keys(sampling_key, texts, positions_BxK)
        samples_BxK = sample_tokens(logits_BxKxV, keys_BxK, self.objective.temperature)
        inputs_BxL, replaced_BxL = replace_tokens(
            batch["encoder_target_tokens"], samples_BxK, positions_BxK, scored.weights_BxL > 0
        )
        detection = self._discriminate(
            params,
            {**batch, "encoder_input_tokens": inputs_BxL},
            replaced_BxL,
            self.dropout_key(discriminator_key, train),
        )
        loss = self.objective.generator_weight * mean(tokens.minimized_sum, weights["generator"])
        loss += self.auxiliary_weight(batch) * mean(detection.loss_sum, weights["discriminator"])
        return loss, tokens.reported() | {"ratios": _ratios(detection)}

    def _generate(self, params: Params, batch: Batch, dropout_key: Array | None) -> tuple[Array, ScoredTokens, Array]:
        """Returns the generator's logits at the scored positions, what is predicted there, and the scored positions.

        float32 [B, K, V], [B, K] each, and int32 [B, K]. K is about L / 7, and the output table is the widest matrix
        of the two models: logits at all positions would cost seven times more.
        """
        scored = scored_tokens(batch)
        positions_BxK = scored_positions(scored.weights_BxL, self.setup.most_scored)
        generator = bind(*self.language_model(params))
        hidden_BxLxD = generator.hidden(batch, dropout_key=dropout_key)
        logits_BxKxV = generator.logits(at_positions(hidden_BxLxD, positions_BxK))
        return logits_BxKxV, scored_at(scored, positions_BxK), positions_BxK

    def _discriminate(
        self, params: Params, batch: Batch, replaced_BxL: Array, dropout_key: Array | None
    ) -> ReplacedTokenSums:
        discriminator = bind(self.discriminator, self.discriminator_params(params))
        hidden_BxLxD = discriminator.hidden(batch, dropout_key=dropout_key)
        head = bind_module(DiscriminatorHead, self.discriminator, params=params["discriminator_head"])
        weights_BxL = (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
        return replaced_token_loss(head(hidden_BxLxD), replaced_BxL, weights_BxL)

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Counts the generator with logits at the selected positions only, and the discriminator at all positions."""
        generator = hidden_flops(self.generator, inputs_length, targets_length)
        generator += logits_flops(self.generator, self.setup.most_scored)
        head = dense_flops(inputs_length, self.model.d_model, self.model.d_model + 1)
        return generator + hidden_flops(self.model, inputs_length, targets_length) + head

    @property
    def transformer_entries(self) -> tuple[str, ...]:
        return ("transformer", "generator") if self.objective.embedding_sharing == "gdes" else ("transformer",)

    def discriminator_params(self, params: Params) -> Params:
        """Returns the parameters of the discriminator's Transformer, which pass no gradient to the generator's."""
        transformer = params["transformer"]
        if self.objective.embedding_sharing != "gdes":
            return transformer
        tables = {name: params["generator"][name] for name in _TABLES if name in transformer}
        merged = jax.tree.map(
            lambda table, difference: jax.lax.stop_gradient(table) + difference,
            tables,
            {name: transformer[name] for name in tables},
        )
        return transformer | merged

    def transformer(self, params: Params) -> Params:
        """Returns the discriminator's Transformer and a newly initialized output head, which is the same in every call.

        The discriminator has no output head, but `model`, from which fine-tuning starts, may have one.
        """
        return init_params(self.model, jax.random.key(0)) | self.discriminator_params(params)

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        """With embedding_sharing="gdes" the generator gets its embeddings too, and the differences are 0."""
        own = {name: transformer[name] for name in params["transformer"]}
        if self.objective.embedding_sharing != "gdes":
            return params | {"transformer": own}
        # Copies: a train step donates its state, in which no two leaves may be one array.
        embeddings = {name: jax.tree.map(jnp.copy, leaves) for name, leaves in own.items() if name in SHARED}
        differences = {name: jax.tree.map(jnp.zeros_like, own[name]) for name in _TABLES if name in own}
        return params | {"transformer": own | differences, "generator": params["generator"] | embeddings}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        """Returns the generator."""
        shared = {name: leaves for name, leaves in params["transformer"].items() if name in SHARED}
        return self.generator, shared | params["generator"]  # its own embeddings replace the discriminator's


def generator_config(model: ModelConfig, size: float, layers: float = 1.0) -> ModelConfig:
    """Returns `model` with its width, heads and d_ff multiplied by `size`, its depth by `layers`, and the same tables.

    A third may be written as 0.33333, as in the reference. Raises ConfigError for sizes that are not whole, and for
    another depth with CompleteP, whose factors of a step are those of the discriminator's depth.
    """
    scaled = _scaled(model, ("d_model", "num_heads", "num_kv_heads", "d_ff"), size, "generator_size")
    scaled |= _scaled(model, ("num_layers",), layers, "generator_layers")
    if model.parameterization == "complete_p" and scaled["num_layers"] != model.num_layers:
        raise ConfigError(
            f"objective.generator_layers={layers} must be 1.0 with model.parameterization='complete_p', which has one "
            "depth for all parameters"
        )
    try:
        return dataclasses.replace(model, **scaled, embedding_size=model.embedding_width)
    except ValueError as error:
        raise ConfigError(f"objective.generator_size={size}: for the generator, {error}") from error


def _scaled(model: ModelConfig, names: tuple[str, ...], factor: float, field: str) -> dict[str, int]:
    """Returns the sizes `names` of `model` times `factor`, of config.objective's `field`."""
    sizes = {name: getattr(model, name) for name in names}
    for name, full in sizes.items():
        if round(factor * full) < 1 or not math.isclose(factor * full, round(factor * full), rel_tol=1e-4):
            parts = math.gcd(*sizes.values())
            raise ConfigError(
                f"objective.{field}={factor} of model.{name}={full} is {factor * full:g}, which is not a whole number: "
                f"{max(round(factor * parts), 1) / parts:g} would give one"
            )
    return {name: round(factor * full) for name, full in sizes.items()}


def _ratios(sums: ReplacedTokenSums) -> dict[str, tuple[Array, Array]]:
    return {
        "discriminator_loss": (sums.loss_sum, sums.weight_sum),
        "discriminator_accuracy": (sums.correct_sum, sums.weight_sum),
        "discriminator_precision": (sums.true_positive_sum, sums.predicted_sum),
        "discriminator_recall": (sums.true_positive_sum, sums.replaced_sum),
        "replaced_fraction": (sums.replaced_sum, sums.weight_sum),
    }
