"""BERT's two losses: the masked tokens of a row, and the label of its sentence pair."""

import dataclasses

import jax
from jax import Array

from learners.learner import Batch, Learner, Sums, mean
from models.flops import hidden_flops, logits_flops, pooled_flops
from models.heads import Classifier
from models.parameters import Params, bind_module, init_module
from models.transformer import init_params
from objectives.losses.row_cross_entropy import class_cross_entropy, scored_rows
from objectives.sentence_pairs import SentencePairs

_NUM_CLASSES = 2  # labels of a pair


@dataclasses.dataclass(frozen=True)
class SentencePairsLearner(Learner):
    """See Learner. The minimized loss is the MLM loss plus pair_weight times the pair loss, each with its denominator.

    The reported loss and accuracy are those of MLM, over the selected tokens. Ratios: pair_loss, in nats per pair, and
    pair_accuracy, both over the pairs; a row has one, or none (label -1, objectives/sentence_pairs.py).

    Parameters: `transformer`, and `pair_classifier`, which reads the Transformer's state at [CLS].
    """

    has_token_loss = True
    objective: SentencePairs

    def init_params(self, key: Array) -> Params:
        transformer_key, classifier_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "pair_classifier": init_module(Classifier, self.model, _NUM_CLASSES, key=classifier_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"tokens": batch["encoder_loss_weights"].sum(), "pairs": scored_rows(batch).weights_B.sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        transformer = self.bind_transformer(params)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=self.dropout_key(key, train))
        tokens = self.token_loss(params, hidden_BxLxD, batch)
        classifier = bind_module(Classifier, self.model, _NUM_CLASSES, params=params["pair_classifier"])
        pair_logits_BxC = classifier(hidden_BxLxD[:, 0])
        pairs = class_cross_entropy(
            pair_logits_BxC, batch["sentence_labels"], scored_rows(batch), num_groups=self.setup.num_groups
        )
        loss = mean(tokens.minimized_sum, weights["tokens"])
        loss += self.objective.pair_weight * mean(pairs.loss_sum, weights["pairs"])
        ratios = {
            "pair_loss": (pairs.loss_sum, pairs.weight_sum),
            "pair_accuracy": (pairs.correct_sum, pairs.weight_sum),
        }
        return loss, tokens.reported() | {"ratios": ratios | tokens.ratios}

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        hidden = hidden_flops(self.model, inputs_length, targets_length)
        logits = logits_flops(self.model, self.num_logits(inputs_length))
        return hidden + logits + pooled_flops(self.model, _NUM_CLASSES)
