"""Fine-tuning a Transformer to predict the class of a row's text."""

import dataclasses

import jax
from jax import Array

from learners.learner import Batch, Learner, Sums, mean
from models.flops import hidden_flops, pooled_flops, stack_flops
from models.heads import Classifier, mean_state, state_at
from models.layers import split_key
from models.parameters import Params, bind_module, init_module
from models.transformer import init_params
from objectives.classification import Classification
from objectives.losses.cross_entropy import target_side
from objectives.losses.row_cross_entropy import class_cross_entropy, f1_counts, scored_rows


@dataclasses.dataclass(frozen=True)
class ClassificationLearner(Learner):
    """See Learner. The loss is the cross-entropy of the row's class, in nats per row; the accuracy is over rows.

    Ratio: macro_f1, the mean F1, over rows, of the classes that occur as a label or as a prediction.

    Parameters: `transformer`, and `classifier`, which reads the Transformer's state at the row's only position with a
    loss weight: [CLS] in an encoder, the last token of the text in a decoder, the decoder's start token in an
    encoder-decoder; or, with objective.pooling="mean", the mean of the row's states. The parameters contain the
    Transformer's token head, which is not trained.
    """

    objective: Classification

    def init_params(self, key: Array) -> Params:
        transformer_key, classifier_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "classifier": init_module(Classifier, self.model, self.objective.num_classes, key=classifier_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"rows": scored_rows(batch).weights_B.sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        logits_BxC = self.logits(params, batch, dropout_key=self.dropout_key(key, train))
        rows = scored_rows(batch)
        sums = class_cross_entropy(logits_BxC, batch["sentence_labels"], rows, num_groups=self.setup.num_groups)
        ratios = {"macro_f1": f1_counts(logits_BxC, batch["sentence_labels"], rows)}
        return mean(sums.loss_sum, weights["rows"]), sums.reported() | {"ratios": ratios}

    def logits(self, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns the logits of the classes of each row, [B, C]."""
        transformer_key, classifier_key = split_key(dropout_key, 2)
        classifier = bind_module(Classifier, self.model, self.objective.num_classes, params=params["classifier"])
        return classifier(self._state(params, batch, transformer_key), dropout_key=classifier_key)

    def _state(self, params: Params, batch: Batch, dropout_key: Array | None) -> Array:
        """Returns the state of each row that the classifier reads, [B, D]."""
        transformer = self.bind_transformer(params)
        if self.objective.pooling == "mean":
            stack = "encoder" if self.model.has_encoder else "decoder"
            states = transformer.encode if self.model.has_encoder else transformer.hidden
            states_BxLxD = states(batch, dropout_key=dropout_key)
            return mean_state(states_BxLxD, batch[f"{stack}_segment_ids"]).astype(states_BxLxD.dtype)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=dropout_key)
        return state_at(hidden_BxLxD, batch[f"{target_side(batch)}_loss_weights"].argmax(axis=1))

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        if self.objective.pooling == "mean" and self.model.has_encoder:  # no decoder runs
            hidden = stack_flops(self.model, inputs_length)
        else:
            hidden = hidden_flops(self.model, inputs_length, targets_length)
        return hidden + pooled_flops(self.model, self.objective.num_classes)

    def language_model(self, params: Params) -> None:
        """Returns None: fine-tuning does not train the token head."""
