"""A decoder that predicts the next token, and whose states an MLP maps to the next states."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from contract.errors import ConfigError
from learners.learner import Batch, CausalLearner, Sums, mean
from models import initializers
from models.config import ModelConfig
from models.flops import dense_flops, hidden_flops, logits_flops
from models.layers import Linear, Norm, gelu, rematerialized
from models.parameters import Params, bind_module, init_module
from models.transformer import bind, init_params
from objectives.losses.future_tokens import in_chunks, shifted
from objectives.next_latent import NextLatentFields


class LatentDynamics(nnx.Module):
    """The residual MLP of three layers of NextLat's appendix: state and next token's embedding -> next state."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        D, init = config.d_model, initializers.matrix(config)
        self.norm = Norm(config, features=2 * D, rngs=rngs)
        self.dense_0 = Linear(config, 2 * D, D, init, rngs=rngs)
        self.dense_1 = Linear(config, D, D, init, rngs=rngs)
        self.dense_2 = Linear(config, D, D, init, rngs=rngs)

    def __call__(self, state_BxLxD: Array, embedded_BxLxD: Array) -> Array:
        """Returns the predicted next states, [B, L, D] in the dtype of the states."""
        x_BxLxE = self.norm(jnp.concatenate([embedded_BxLxD, state_BxLxD], axis=-1))
        x = gelu(self.dense_0(x_BxLxE.reshape(-1, x_BxLxE.shape[-1])))
        return state_BxLxD + self.dense_2(gelu(self.dense_1(x))).reshape(state_BxLxD.shape)


@dataclasses.dataclass(frozen=True)
class NextLatentLearner(CausalLearner):
    """See Learner. The reported loss and accuracy are of the next token, over all scored tokens, as in CLM and SFT.

    Ratios: latent_loss, the smooth L1 loss of the predicted states, over all positions whose segment has a state so far
    ahead, and kl_loss, the divergence in nats, over those whose true state predicts a scored token; both the mean over
    the steps.

    Parameters: `transformer`, and `latent_dynamics`, the MLP.

    With `loss.chunk_size` the divergence's logits are computed for so many positions at a time, and once more in the
    backward pass.
    """

    has_token_loss = True
    objective: NextLatentFields

    def check(self) -> None:
        super().check()
        length = self.setup.inputs_length // self.setup.examples_per_row
        if self.objective.horizon >= length:
            raise ConfigError(
                f"objective.horizon={self.objective.horizon} must be below {length}, the length of an example "
                "(data.inputs_length / data.examples_per_row): no state is so far ahead of another one"
            )

    def init_params(self, key: Array) -> Params:
        transformer_key, dynamics_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "latent_dynamics": init_module(LatentDynamics, self.model, key=dynamics_key),
        }

    @property
    def _terms(self) -> dict[str, float]:
        """The weight of each auxiliary loss that is computed."""
        weights = {"latent": self.objective.latent_weight, "kl": self.objective.kl_weight}
        return {name: weight for name, weight in weights.items() if weight}

    def weights(self, batch: Batch) -> dict[str, Array]:
        totals = {"tokens": batch["decoder_loss_weights"].sum()}
        for step in range(1, self.objective.horizon + 1):
            ahead = _weights_ahead(batch, step)
            totals |= {f"{name}_{step}": ahead[name].sum() for name in self._terms}
        return totals

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        hidden_BxLxD = self.bind_transformer(params).hidden(batch, dropout_key=self.dropout_key(key, train))
        tokens, steps = self.token_loss(params, hidden_BxLxD, batch), range(1, self.objective.horizon + 1)
        loss, ratios = mean(tokens.minimized_sum, weights["tokens"]), {}
        if self._terms:
            for name, (sum_N, weight_N) in self._auxiliary(params, hidden_BxLxD, batch).items():
                total_N = jnp.stack([weights[f"{name}_{step}"] for step in steps])
                loss += self._terms[name] * mean(sum_N, total_N).mean()
                ratios[f"{name}_loss"] = sum_N, weight_N
        return loss, tokens.reported() | {"ratios": ratios | tokens.ratios}

    def _auxiliary(self, params: Params, hidden_BxLxD: Array, batch: Batch) -> dict[str, tuple[Array, Array]]:
        """Returns, for each auxiliary loss, its sum and weight at each step, float32 [horizon]."""
        transformer = self.bind_transformer(params)
        dynamics = bind_module(LatentDynamics, self.model, params=params["latent_dynamics"])
        constant = bind(self.model, jax.lax.stop_gradient(params["transformer"]))
        targets_BxLxD, segments = jax.lax.stop_gradient(hidden_BxLxD), batch["decoder_segment_ids"]

        def divergences(predicted_BxCxD: Array, target_BxCxD: Array) -> Array:
            predicted, target = (jax.nn.log_softmax(constant.logits(x)) for x in (predicted_BxCxD, target_BxCxD))
            return (jnp.exp(target) * (target - predicted)).sum(axis=-1)

        def step(state_BxLxD, ahead):
            read = (shifted(batch[f"decoder_{name}"], segments, ahead) for name in ("input_tokens", "positions"))
            state_BxLxD = dynamics(state_BxLxD, transformer.embed(*read, stack="decoder"))
            target_BxLxD, weights = shifted(targets_BxLxD, segments, ahead), _weights_ahead(batch, ahead)
            losses = {}
            if "latent" in self._terms:
                losses["latent"] = _smooth_l1(state_BxLxD, target_BxLxD)
            if "kl" in self._terms:
                losses["kl"] = in_chunks(divergences, (state_BxLxD, target_BxLxD), self.setup.loss.chunk_size)
            sums = {name: ((loss * weights[name]).sum(), weights[name].sum()) for name, loss in losses.items()}
            return state_BxLxD, sums

        steps = jnp.arange(1, self.objective.horizon + 1)
        return jax.lax.scan(rematerialized(self.model, step), hidden_BxLxD, steps)[1]

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        model, length, step = self.model, inputs_length, 0
        if self._terms:
            step = dense_flops(length, 4 * model.d_model, model.d_model)
            if model.embedding_width != model.d_model:
                step += dense_flops(length, model.embedding_width, model.d_model)
        # Three products with the table, one of them in the backward pass, as table and target are constants there.
        if "kl" in self._terms:
            step += logits_flops(model, length)
        own = hidden_flops(model, length, targets_length) + logits_flops(model, length)
        return own + self.objective.horizon * step


def _weights_ahead(batch: Batch, step: Array | int) -> dict[str, Array]:
    """Returns the weights of both losses `step` states ahead, float32 [B, L]; 0 where the segment has ended."""
    segments = batch["decoder_segment_ids"]
    return {
        "latent": (shifted(segments, segments, step) > 0).astype(jnp.float32),
        "kl": shifted(batch["decoder_loss_weights"], segments, step),
    }


def _smooth_l1(x_BxLxD: Array, target_BxLxD: Array) -> Array:
    """Returns the mean over D of the smooth L1 loss, float32 [B, L]: x^2 / 2 up to 1, |x| - 1/2 beyond."""
    error = jnp.abs(x_BxLxD.astype(jnp.float32) - target_BxLxD.astype(jnp.float32))
    return jnp.where(error < 1, error**2 / 2, error - 0.5).mean(axis=-1)
