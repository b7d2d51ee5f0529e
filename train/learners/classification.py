"""Fine-tuning to tell the class of a row's text, from an encoder or a decoder."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from models.config import ModelConfig
from models.flops import hidden_flops, pooled_flops
from models.pooler import bind_classifier, init_classifier, state_at
from models.transformer import Params, bind, init_params
from objectives.classification import Classification
from objectives.losses.cross_entropy import target_side
from objectives.losses.row_cross_entropy import class_cross_entropy, f1_counts
from train.config import ExperimentConfig
from train.learners.learner import Batch, Sums


@dataclasses.dataclass(frozen=True)
class ClassificationLearner:
    """See train.learner.Learner. Loss and accuracy are the class's, nats per row; the ratio macro_f1 is the mean of the
    F1 of the classes that are a label or a prediction (objectives/losses/row_cross_entropy.py).

    Parameters: `transformer`, and `classifier` on its state where the batch's one loss weight of the row is: at [CLS]
    in an encoder, where the whole text has been read in a decoder. What tells tokens in the Transformer is kept and not
    trained.
    """

    model: ModelConfig
    num_classes: int

    @classmethod
    def make(
        cls, objective: Classification, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "ClassificationLearner":
        """As LEARNERS has it."""
        del config, num_denoisers
        return cls(model, objective.num_classes)

    def init_params(self, key: Array) -> Params:
        transformer_key, classifier_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "classifier": init_classifier(self.model, self.num_classes, classifier_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"rows": jnp.asarray(len(batch["sentence_labels"]), jnp.float32)}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        keys = jax.random.split(key) if train and self.model.dropout_rate else (None, None)
        hidden_BxLxD = bind(self.model, params["transformer"]).hidden(batch, dropout_key=keys[0])
        marked_B = batch[f"{target_side(batch)}_loss_weights"].argmax(axis=1)
        classifier = bind_classifier(self.model, self.num_classes, params["classifier"])
        logits_BxC = classifier(state_at(hidden_BxLxD, marked_B), dropout_key=keys[1])
        sums = class_cross_entropy(logits_BxC, batch["sentence_labels"])
        ratios = {"macro_f1": f1_counts(logits_BxC, batch["sentence_labels"])}
        return sums.loss_sum / weights["rows"], sums.by_denoiser() | {"ratios": ratios}

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        return hidden_flops(self.model, inputs_length, targets_length) + pooled_flops(self.model, self.num_classes)

    def transformer(self, params: Params) -> Params:
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> None:
        """None: whatever it can tell of tokens is from before."""
