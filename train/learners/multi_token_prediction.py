"""A decoder that predicts several tokens ahead, through heads that are dropped when it is put to use."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from models.config import ModelConfig
from models.multi_token import bind_heads, init_heads
from models.transformer import Params, bind, init_params
from objectives.chunked_loss import batch_cross_entropy_of_hidden
from objectives.errors import ConfigError
from objectives.losses import LossSums
from objectives.multi_token_prediction import MultiTokenPrediction, future_tokens
from train.config import ExperimentConfig, LossConfig
from train.learner import Batch, Sums


@dataclasses.dataclass(frozen=True)
class MultiTokenLearner:
    """See train.learner.Learner. The parameters: `transformer`, an ordinary one of `model`, which predicts the next
    token, and `heads`, the further tokens' (models/multi_token.py).

    Loss and accuracy are the next token's, to be compared with CLM's; those of the i-th token ahead are the metrics
    `loss/future_<i>` and `accuracy/future_<i>`.

    Logits are made, scored and forgotten one head at a time, and once more in the backward pass: [B, T, V] is what one
    head takes, however many there are. (Gloeckle et al. run each head's backward pass right after its forward pass
    instead; this costs the output table's product once more, and lets heads depend on each other.)
    """

    model: ModelConfig
    loss_config: LossConfig
    objective: MultiTokenPrediction
    num_sources: int

    @classmethod
    def make(
        cls, objective: MultiTokenPrediction, model: ModelConfig, config: ExperimentConfig, num_sources: int
    ) -> "MultiTokenLearner":
        """As LEARNERS has it. Raises ConfigError for rows that are too short to hold so many tokens."""
        room = config.data.inputs_length // config.data.examples_per_row
        if objective.num_future_tokens > room:
            raise ConfigError(
                f"objective.num_future_tokens={objective.num_future_tokens} must be at most {room}, the length of an "
                "example (data.inputs_length / data.examples_per_row): the head furthest ahead would have no targets"
            )
        return cls(model, config.loss, objective, num_sources)

    @property
    def num_heads(self) -> int:
        """Heads beside the Transformer."""
        return self.objective.num_future_tokens - 1

    def init_params(self, key: Array) -> Params:
        transformer_key, heads_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "heads": init_heads(self.model, self.objective.heads, self.num_heads, heads_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        sums_N = future_tokens(batch, self.objective.num_future_tokens).loss_weights.sum(axis=(1, 2))
        return {f"future_{i}": weight for i, weight in enumerate(sums_N, start=1)}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        hidden_NxBxTxD = self.hidden(params, batch, dropout_key=key if train and self.model.dropout_rate else None)
        future = future_tokens(batch, self.objective.num_future_tokens)

        @jax.checkpoint
        def head_loss(hidden_BxTxD: Array, targets_BxT: Array, weights_BxT: Array) -> LossSums:
            scored = {"decoder_target_tokens": targets_BxT, "decoder_loss_weights": weights_BxT}
            return batch_cross_entropy_of_hidden(
                bind(self.model, params["transformer"]).logits,
                hidden_BxTxD,
                {**batch, **scored},
                num_sources=self.num_sources,
                z_loss=self.loss_config.z_loss,
                label_smoothing=self.loss_config.label_smoothing,
                chunk_size=self.loss_config.chunk_size,
            )

        heads = hidden_NxBxTxD, future.target_tokens, future.loss_weights
        sums_N = jax.lax.map(lambda head: head_loss(*head), heads)
        total_N = jnp.stack([weights[f"future_{i + 1}"] for i in range(len(hidden_NxBxTxD))])
        objective_N = jnp.asarray(self.objective.loss_weights) * sums_N.objective_sum / jnp.maximum(total_N, 1.0)
        sums = jax.tree.map(lambda sum_N: sum_N[0], sums_N)._asdict()
        del sums["objective_sum"]
        ratios = {}
        for i in range(1, len(hidden_NxBxTxD)):
            ratios[f"loss/future_{i + 1}"] = sums_N.loss_sum[i], sums_N.weight_sum[i]
            ratios[f"accuracy/future_{i + 1}"] = sums_N.correct_sum[i], sums_N.weight_sum[i]
        return objective_N.sum(), sums | {"ratios": ratios}

    def hidden(self, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """[n, B, T, D] in the compute dtype: what the Transformer's `logits` turns into each future token's."""
        transformer = bind(self.model, params["transformer"])
        heads = bind_heads(self.model, self.objective.heads, self.num_heads, params["heads"])
        if self.objective.heads == "independent":
            return heads(transformer, batch, dropout_key=dropout_key)
        further = jax.tree.map(lambda x: x[1:], future_tokens(batch, self.objective.num_future_tokens))
        return heads(transformer, batch, further.input_tokens, further.positions, dropout_key=dropout_key)

    def transformer(self, params: Params) -> Params:
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        return self.model, params["transformer"]
