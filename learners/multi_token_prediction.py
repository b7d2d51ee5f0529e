"""A decoder that predicts several tokens ahead, through heads that inference does not use."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from learners.learner import Batch, CausalLearner, Sums, logits_function
from models.flops import dense_flops, hidden_flops, layer_flops, logits_flops
from models.multi_token import IndependentHeads, bind_heads, init_heads
from models.parameters import Params
from models.placement import placement
from models.transformer import init_params
from objectives.losses.chunked_cross_entropy import chunked_cross_entropy
from objectives.losses.cross_entropy import LossSums, ScoredTokens
from objectives.losses.future_tokens import shifted
from objectives.multi_token_prediction import FutureTokenFields


class FutureTokens(NamedTuple):
    """Decoder fields of a batch, shifted left by 0, ..., n - 1 positions within each segment: [n, B, T] each.

    Entries are 0 where the shifted position is after the segment's end. Shift 0 is the batch's own field.
    """

    input_tokens: Array  # int32
    positions: Array  # int32
    target_tokens: Array  # int32: for shift i, the token i + 1 after the position's input token
    loss_weights: Array  # float32: the loss weight of that token as a next token


@dataclasses.dataclass(frozen=True)
class MultiTokenPredictionLearner(CausalLearner):
    """See Learner. The reported loss and accuracy are of the next token, over all scored tokens, as in CLM and SFT.

    Ratios: loss/future_<i> and accuracy/future_<i> of the i-th token ahead, i = 2, ..., n, over the positions that have
    such a token in their segment, and one that is scored as a next token.

    Parameters: `transformer`, which predicts the next token, and `heads`, which predict the further tokens
    (models/multi_token.py).

    As in Gloeckle et al., the logits of one head are computed, scored and differentiated before those of the next head.
    So the logits take the memory of one head, [B, T, V], or of [B, chunk_size, V] with `loss.chunk_size`.
    """

    objective: FutureTokenFields

    def check(self) -> None:
        super().check()
        length = self.setup.inputs_length // self.setup.examples_per_row
        if self.objective.num_future_tokens > length:
            raise ConfigError(
                f"objective.num_future_tokens={self.objective.num_future_tokens} must be at most {length}, the length "
                "of an example (data.inputs_length / data.examples_per_row): the head furthest ahead would have no "
                "targets"
            )

    @property
    def num_heads(self) -> int:
        """The number of heads in addition to the Transformer."""
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
        hidden_NxBxTxD = self.hidden(params, batch, dropout_key=self.dropout_key(key, train))
        N, _, T, _ = hidden_NxBxTxD.shape
        future = future_tokens(batch, N)
        # The heads' positions are concatenated to rows of N * T, so that T positions are one head. Each pair of a head
        # and a group is a group of the loss. The loss weights contain each head's factor, so that one division, by the
        # next token's denominator, is right for all heads.
        total_N = jnp.maximum(jnp.stack([weights[f"future_{i}"] for i in range(1, N + 1)]), 1.0)
        weight_N = jnp.asarray(self.objective.loss_weights)
        weight_N = weight_N.at[1:].multiply(self.auxiliary_weight(batch) / self.objective.loss_weight)
        factor_N = weight_N * total_N[0] / total_N
        num_groups = self.setup.num_groups
        group_ids_NxBxT = jnp.arange(N)[:, None, None] * num_groups + batch["example_source"]
        sums = chunked_cross_entropy(
            *logits_function(self.model, params["transformer"]),
            _concatenate_heads(hidden_NxBxTxD),
            ScoredTokens(
                _concatenate_heads(future.target_tokens),
                _concatenate_heads(future.loss_weights * factor_N[:, None, None]),
                _concatenate_heads(group_ids_NxBxT),
            ),
            self.loss_options._replace(num_groups=N * num_groups),
            chunk_size=min(self.setup.loss.chunk_size or T, T),
            per_device=placement().per_device,
        )
        return sums.minimized_sum / total_N[0], _sums(sums, factor_N)

    def hidden(self, params: Params, batch: Batch, *, dropout_key: Array | None = None) -> Array:
        """Returns the states, [n, B, T, D] in the compute dtype, from which `Transformer.logits` predicts tokens."""
        transformer = self.bind_transformer(params)
        heads = bind_heads(self.model, self.objective.heads, self.num_heads, params["heads"])
        if isinstance(heads, IndependentHeads):
            return heads(transformer, batch, dropout_key=dropout_key)
        further = jax.tree.map(lambda x: x[1:], future_tokens(batch, self.objective.num_future_tokens))
        return heads(transformer, batch, further.input_tokens, further.positions, dropout_key=dropout_key)

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Counts all heads at all positions, even those at the end of a row, which have no targets further ahead."""
        model, length = self.model, inputs_length
        head = layer_flops(model, length)
        if self.objective.heads == "sequential":  # each head also projects the embedding of one more token
            head += dense_flops(length, 2 * model.d_model, model.d_model)
            if model.embedding_width != model.d_model:
                head += dense_flops(length, model.embedding_width, model.d_model)
        outputs = (1 + self.num_heads) * logits_flops(model, length)
        return hidden_flops(model, length, targets_length) + self.num_heads * head + outputs


def future_tokens(batch: Mapping[str, Array], num_future_tokens: int) -> FutureTokens:
    """Returns the fields of a batch (contract/batch.py) with which n = `num_future_tokens` tokens are predicted."""
    segment_ids, steps = batch["decoder_segment_ids"], range(num_future_tokens)
    names = ("decoder_input_tokens", "decoder_positions", "decoder_target_tokens", "decoder_loss_weights")
    return FutureTokens(*(jnp.stack([shifted(batch[name], segment_ids, by) for by in steps]) for name in names))


def _concatenate_heads(x_NxBxT: Array) -> Array:
    """Reshapes [N, B, T, ...] to [B, N * T, ...]."""
    N, B, T, *rest = x_NxBxT.shape
    return x_NxBxT.swapaxes(0, 1).reshape(B, N * T, *rest)


def _sums(sums: LossSums, factor_N: Array) -> Sums:
    """Returns the Sums to report, from sums by head and group whose loss weights were multiplied by `factor_N`."""
    by_head_and_group = {
        name: getattr(sums, f"{name}_by_group").reshape(len(factor_N), -1) / factor_N[:, None]
        for name in ("loss_sum", "weight_sum", "correct_sum")
    }
    by_head = {name: sum_NxG.sum(axis=1) for name, sum_NxG in by_head_and_group.items()}
    ratios: dict[str, tuple[Array, Array]] = {}
    for i in range(1, len(factor_N)):
        loss, weight, correct = (sum_N[i] for sum_N in by_head.values())
        ratios |= {f"loss/future_{i + 1}": (loss, weight), f"accuracy/future_{i + 1}": (correct, weight)}
    of_next_token = {name: sum_N[0] for name, sum_N in by_head.items()}
    by_group = {f"{name}_by_group": sum_NxG[0] for name, sum_NxG in by_head_and_group.items()}
    return of_next_token | by_group | {"ratios": ratios}
