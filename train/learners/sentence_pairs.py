"""BERT's two losses: the masked tokens of a row, and what its pair of sentences is."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, pooled_flops
from models.pooler import bind_classifier, init_classifier
from models.transformer import Params, bind, init_params
from objectives.losses.chunked_cross_entropy import batch_cross_entropy_of_hidden
from objectives.losses.row_cross_entropy import class_cross_entropy
from objectives.sentence_pairs import SentencePairs
from train.config import ExperimentConfig, LossConfig
from train.learners.learner import Batch, Sums

_CLASSES = 2  # of a pair


@dataclasses.dataclass(frozen=True)
class SentencePairsLearner:
    """See train.learner.Learner. The loss reported is MLM's; the pair's is the ratio pair_loss, nats per pair, beside
    pair_accuracy. What is minimised is the sum of both, each divided by a denominator of its own.

    Parameters: `transformer`, and `pair_classifier` on its state at [CLS].
    """

    model: ModelConfig
    loss_config: LossConfig
    objective: SentencePairs
    num_denoisers: int

    @classmethod
    def make(
        cls, objective: SentencePairs, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "SentencePairsLearner":
        """As LEARNERS has it."""
        return cls(model, config.loss, objective, num_denoisers)

    def init_params(self, key: Array) -> Params:
        transformer_key, classifier_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "pair_classifier": init_classifier(self.model, _CLASSES, classifier_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        pairs = jnp.asarray(len(batch["sentence_labels"]), jnp.float32)
        return {"tokens": batch["encoder_loss_weights"].sum(), "pairs": pairs}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        transformer = bind(self.model, params["transformer"])
        hidden_BxLxD = transformer.hidden(batch, dropout_key=key if train and self.model.dropout_rate else None)
        sums = batch_cross_entropy_of_hidden(
            transformer.logits,
            hidden_BxLxD,
            batch,
            num_denoisers=self.num_denoisers,
            z_loss=self.loss_config.z_loss,
            label_smoothing=self.loss_config.label_smoothing,
            chunk_size=self.loss_config.chunk_size,
        )._asdict()
        classifier = bind_classifier(self.model, _CLASSES, params["pair_classifier"])
        pairs = class_cross_entropy(classifier(hidden_BxLxD[:, 0]), batch["sentence_labels"])
        objective = sums.pop("objective_sum") / jnp.maximum(weights["tokens"], 1.0)
        objective += self.objective.pair_weight * pairs.loss_sum / weights["pairs"]
        ratios = {
            "pair_loss": (pairs.loss_sum, pairs.weight_sum),
            "pair_accuracy": (pairs.correct_sum, pairs.weight_sum),
        }
        return objective, sums | {"ratios": ratios}

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        hidden = hidden_flops(self.model, inputs_length, targets_length)
        return hidden + logits_flops(self.model, inputs_length) + pooled_flops(self.model, _CLASSES)

    def transformer(self, params: Params) -> Params:
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        return self.model, params["transformer"]
