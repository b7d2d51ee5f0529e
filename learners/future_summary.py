"""A decoder that predicts the next token, and with a further head a summary of the tokens ahead."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from learners.learner import Batch, CausalLearner, Sums, mean
from models import initializers
from models.flops import dense_flops, hidden_flops, logits_flops
from models.layers import logits_product
from models.parameters import Params
from models.transformer import init_params
from objectives.future_summary import SummaryFields
from objectives.losses.future_tokens import (
    ORDER_WINDOW,
    Ahead,
    future_bag_losses,
    in_chunks,
    token_order_losses,
    tokens_ahead,
)


@dataclasses.dataclass(frozen=True)
class FutureSummaryLearner(CausalLearner):
    """See Learner. The reported loss and accuracy are of the next token, over all scored tokens, as in CLM and SFT.

    Ratio: order_loss or bag_loss, the loss of the head, over the scored positions that have such a future in
    their segment.

    Parameters: `transformer`, and `summary_head`, a linear map of its last states to the vocabulary.

    With `loss.chunk_size` the head's logits are computed for so many positions at a time, and once more in the backward
    pass.
    """

    has_token_loss = True
    objective: SummaryFields

    def init_params(self, key: Array) -> Params:
        transformer_key, head_key = jax.random.split(key)
        shape = self.model.d_model, self.model.vocab_size
        kernel = initializers.output_table(self.model)(head_key, shape, jnp.float32)
        return {
            "transformer": init_params(self.model, transformer_key),
            "summary_head": {"logits_dense": {"kernel": kernel}},
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        summary_BxL = self._summary_weights(batch, self._ahead(batch))
        return {"tokens": batch["decoder_loss_weights"].sum(), "summary": summary_BxL.sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        transformer = self.bind_transformer(params)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=self.dropout_key(key, train))
        tokens, ahead = self.token_loss(params, hidden_BxLxD, batch), self._ahead(batch)
        weights_BxL = self._summary_weights(batch, ahead)
        kernel_DxV = params["summary_head"]["logits_dense"]["kernel"]
        summary_sum = (self._summary_losses(kernel_DxV, hidden_BxLxD, ahead) * weights_BxL).sum()
        loss = mean(tokens.minimized_sum, weights["tokens"])
        loss += self.auxiliary_weight(batch) * mean(summary_sum, weights["summary"])
        ratios = {f"{self.objective.summary}_loss": (summary_sum, weights_BxL.sum())}
        return loss, tokens.reported() | {"ratios": ratios | tokens.ratios}

    def _ahead(self, batch: Batch) -> Ahead:
        """Returns the tokens ahead that the head is trained on."""
        first, last = (1, ORDER_WINDOW) if self.objective.summary == "order" else (2, self.objective.horizon)
        last = min(last, batch["decoder_target_tokens"].shape[1])
        return tokens_ahead(batch["decoder_target_tokens"], batch["decoder_segment_ids"], first=first, last=last)

    def _summary_weights(self, batch: Batch, ahead: Ahead) -> Array:
        """Returns the loss weights of the head, float32 [B, L]: 0 where there is no token ahead."""
        return batch["decoder_loss_weights"] * ahead.is_new_BxLxW[..., 0]

    def _summary_losses(self, kernel_DxV: Array, hidden_BxLxD: Array, ahead: Ahead) -> Array:
        """Returns the losses of the head, float32 [B, L], with the logits of loss.chunk_size positions at a time."""
        losses_of = token_order_losses if self.objective.summary == "order" else future_bag_losses

        def losses(hidden_BxCxD: Array, ahead: Ahead) -> Array:
            B, C, D = hidden_BxCxD.shape
            logits_NxV = logits_product(hidden_BxCxD.reshape(-1, D).astype(self.model.dtype), kernel_DxV)
            return losses_of(logits_NxV.reshape(B, C, -1), ahead)

        return in_chunks(losses, (hidden_BxLxD, ahead), self.setup.loss.chunk_size)

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        model = self.model
        head = dense_flops(inputs_length, model.d_model, model.vocab_size)
        return hidden_flops(model, inputs_length, targets_length) + logits_flops(model, inputs_length) + head
