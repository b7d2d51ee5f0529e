"""One Transformer that predicts the scored tokens of a batch: CLM, MLM, denoisers, mixtures."""

import dataclasses

from jax import Array

from learners.learner import Batch, Learner, Sums, mean
from models.flops import hidden_flops, logits_flops, scored_length
from models.parameters import Params
from models.transformer import init_params
from objectives.losses.cross_entropy import target_side


@dataclasses.dataclass(frozen=True)
class TokenPredictionLearner(Learner):
    """See Learner. The reported loss and accuracy are over the tokens with a loss weight: those the objective scores.

    Parameters: `transformer` alone.
    """

    def init_params(self, key: Array) -> Params:
        return {"transformer": init_params(self.model, key)}

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"tokens": batch[f"{target_side(batch)}_loss_weights"].sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        transformer = self.bind_transformer(params)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=self.dropout_key(key, train))
        sums = self.token_loss(params, hidden_BxLxD, batch)
        return mean(sums.minimized_sum, weights["tokens"]), sums.reported()

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        positions = self.num_logits(scored_length(self.model, inputs_length, targets_length))
        return hidden_flops(self.model, inputs_length, targets_length) + logits_flops(self.model, positions)
