"""A decoder that predicts several tokens ahead, through heads that are dropped when it is put to use."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from models.config import ModelConfig
from models.flops import dense_flops, hidden_flops, layer_flops, logits_flops
from models.multi_token import bind_heads, init_heads
from models.transformer import Params, bind, init_params
from objectives.losses.chunked_cross_entropy import chunked_cross_entropy
from objectives.losses.cross_entropy import LossSums
from objectives.losses.future_tokens import future_tokens
from objectives.multi_token_prediction import MultiTokenPrediction
from train.config import ExperimentConfig, LossConfig
from train.learners.learner import Batch, Sums


@dataclasses.dataclass(frozen=True)
class MultiTokenLearner:
    """See train.learner.Learner. The parameters: `transformer`, an ordinary one of `model`, which predicts the next
    token, and `heads`, the further tokens' (models/multi_token.py).

    Loss and accuracy are the next token's, to be compared with CLM's; those of the i-th token ahead are the metrics
    `loss/future_<i>` and `accuracy/future_<i>`.

    Each head's logits are made and scored, and their gradient taken, before the next head's are made, as in Gloeckle et
    al.: [B, T, V] is what one head takes, however many there are, or [B, chunk_size, V] with `loss.chunk_size`.
    """

    model: ModelConfig
    loss_config: LossConfig
    objective: MultiTokenPrediction

    @classmethod
    def make(
        cls, objective: MultiTokenPrediction, model: ModelConfig, config: ExperimentConfig, num_denoisers: int
    ) -> "MultiTokenLearner":
        """As LEARNERS has it. Raises ConfigError for rows that are too short to hold so many tokens."""
        del num_denoisers  # 1: an objective with a learner of its own is no row of a mixture
        room = config.data.inputs_length // config.data.examples_per_row
        if objective.num_future_tokens > room:
            raise ConfigError(
                f"objective.num_future_tokens={objective.num_future_tokens} must be at most {room}, the length of an "
                "example (data.inputs_length / data.examples_per_row): the head furthest ahead would have no targets"
            )
        return cls(model, config.loss, objective)

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
        N, B, T, _ = hidden_NxBxTxD.shape
        future = future_tokens(batch, N)
        # The heads' positions stand one after another in rows of N * T, so a chunk is a head, and the head a position's
        # source. Loss weights take their head's factor, so that one division, by the next token's total, does for all.
        total_N = jnp.maximum(jnp.stack([weights[f"future_{i}"] for i in range(1, N + 1)]), 1.0)
        factor_N = jnp.asarray(self.objective.loss_weights) * total_N[0] / total_N
        sums = chunked_cross_entropy(
            bind(self.model, params["transformer"]).logits,
            _head_after_head(hidden_NxBxTxD),
            _head_after_head(future.target_tokens),
            _head_after_head(future.loss_weights * factor_N[:, None, None]),
            jnp.broadcast_to(jnp.repeat(jnp.arange(N), T), (B, N * T)),
            num_denoisers=N,
            z_loss=self.loss_config.z_loss,
            label_smoothing=self.loss_config.label_smoothing,
            chunk_size=min(self.loss_config.chunk_size or T, T),
        )
        return sums.objective_sum / total_N[0], _sums(sums, factor_N)

    def hidden(self, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """[n, B, T, D] in the compute dtype: what the Transformer's `logits` turns into each future token's."""
        transformer = bind(self.model, params["transformer"])
        heads = bind_heads(self.model, self.objective.heads, self.num_heads, params["heads"])
        if self.objective.heads == "independent":
            return heads(transformer, batch, dropout_key=dropout_key)
        further = jax.tree.map(lambda x: x[1:], future_tokens(batch, self.objective.num_future_tokens))
        return heads(transformer, batch, further.input_tokens, further.positions, dropout_key=dropout_key)

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Every head at every position, as if the last ones had targets too."""
        model, length = self.model, inputs_length
        head = layer_flops(model, length)
        if self.objective.heads == "sequential":  # each reads one more embedding, beside the states before it
            head += dense_flops(length, 2 * model.d_model, model.d_model)
            if model.embedding_width != model.d_model:
                head += dense_flops(length, model.embedding_width, model.d_model)
        outputs = (1 + self.num_heads) * logits_flops(model, length)
        return hidden_flops(model, length, targets_length) + self.num_heads * head + outputs

    def transformer(self, params: Params) -> Params:
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params]:
        return self.model, params["transformer"]


def _head_after_head(x_NxBxT: Array) -> Array:
    """[N, B, T, ...] -> [B, N * T, ...]"""
    N, B, T, *rest = x_NxBxT.shape
    return x_NxBxT.swapaxes(0, 1).reshape(B, N * T, *rest)


def _sums(sums: LossSums, factor_N: Array) -> Sums:
    """What is reported of sums by head, whose loss weights were multiplied by `factor_N`."""
    by_head = {
        name: getattr(sums, f"{name}_by_denoiser") / factor_N for name in ("loss_sum", "weight_sum", "correct_sum")
    }
    ratios = {}
    for i in range(1, len(factor_N)):
        loss, weight, correct = (sum_N[i] for sum_N in by_head.values())
        ratios |= {f"loss/future_{i + 1}": (loss, weight), f"accuracy/future_{i + 1}": (correct, weight)}
    of_next_token = {name: sum_N[0] for name, sum_N in by_head.items()}
    by_denoiser = {f"{name}_by_denoiser": sum_N[:1] for name, sum_N in by_head.items()}
    return of_next_token | by_denoiser | {"ratios": ratios}
