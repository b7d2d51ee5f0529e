"""SimCSE: an encoder that encodes every text twice, with two different dropout masks."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from contract.errors import ConfigError
from learners.learner import Batch, Learner, Sums, mean
from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, pooled_flops
from models.heads import Pooler
from models.parameters import Params, bind_module, init_module
from models.transformer import init_params
from objectives.losses.contrastive import alignment, info_nce, uniformity
from objectives.losses.row_cross_entropy import scored_rows
from objectives.simcse import SimCSE


@dataclasses.dataclass(frozen=True)
class ContrastiveLearner(Learner):
    """See Learner. The minimized loss is the contrastive loss, in nats per text, plus mlm_weight times the MLM loss.

    Ratios, over texts: contrastive_loss, and contrastive_accuracy, the share of texts whose own second encoding is the
    nearest in the batch. The reported loss and accuracy are these two without MLM, and those of MLM, over the selected
    tokens, with MLM. Further ratios (Wang & Isola 2020): alignment, the squared distance of a text's two encodings,
    over texts, and uniformity, of a batch's first encodings, as a mean over batches.

    The negatives of a text are the other texts of the batch, on all devices, so held-out metrics depend on
    train.batch_size, unlike those of all other learners. Evaluation uses dropout too, with the same masks every time:
    without dropout the two encodings of a text would be equal.

    Parameters: `transformer`, and `pooler`, which reads the Transformer's state at [CLS] and is for training only
    (SimCSE's mlp_only_train). Without MLM the Transformer's token head is not trained.
    """

    objective: SimCSE

    def check(self) -> None:
        setup = self.setup
        if self.model.dropout_rate == 0:
            raise ConfigError(
                "model.dropout_rate=0.0 must be above 0 for objective.name='simcse': dropout is the only difference "
                "between the two encodings of a text; SimCSE uses 0.1"
            )
        if setup.batch_size < 2:
            raise ConfigError(
                f"train.batch_size={setup.batch_size} must be 2 or more for objective.name='simcse': the negatives are "
                "the other texts of the batch"
            )
        # 0: not yet resolved
        for field, value, allowed in (
            ("train.grad_accum_steps", setup.grad_accum_steps, (1, 0)),
            ("mesh.backend", setup.backend, ("jit",)),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{field}={value!r} must be {allowed[0]!r} for objective.name='simcse': texts of other "
                    "microbatches or devices would not be negatives"
                )

    def init_params(self, key: Array) -> Params:
        transformer_key, pooler_key = jax.random.split(key)
        return {
            "transformer": init_params(self.model, transformer_key),
            "pooler": init_module(Pooler, self.model, key=pooler_key),
        }

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"tokens": batch["encoder_loss_weights"].sum(), "texts": scored_rows(batch).weights_B.sum()}

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        encodings_key, mlm_key = jax.random.split(key)
        first_BxD, second_BxD = self._encodings(params, batch, encodings_key)
        rows = scored_rows(batch)
        contrastive = info_nce(
            first_BxD, second_BxD, temperature=self.objective.temperature, rows=rows, num_groups=self.setup.num_groups
        )
        has_pairs = rows.weights_B.sum() > 1
        loss = contrastive.loss_sum / weights["texts"]
        ratios = {
            "alignment": (alignment(first_BxD, second_BxD, rows.weights_B), contrastive.weight_sum),
            "uniformity": (jnp.where(has_pairs, uniformity(first_BxD, rows.weights_B), 0.0), has_pairs * 1.0),
            "contrastive_loss": (contrastive.loss_sum, contrastive.weight_sum),
            "contrastive_accuracy": (contrastive.correct_sum, contrastive.weight_sum),
        }
        if not self.objective.mlm_weight:
            return loss, contrastive.reported() | {"ratios": ratios}
        transformer = self.bind_transformer(params)
        hidden_BxLxD = transformer.hidden(batch, dropout_key=self.dropout_key(mlm_key, train))
        tokens = self.token_loss(params, hidden_BxLxD, batch)
        loss += mean(self.objective.mlm_weight * tokens.minimized_sum, weights["tokens"])
        return loss, tokens.reported() | {"ratios": ratios}

    def _encodings(self, params: Params, batch: Batch, key: Array) -> Array:
        """Returns both encodings of each text, [2, B, D]. The batch's targets are the whole, unmasked text."""
        transformer = self.bind_transformer(params)
        pooler = bind_module(Pooler, self.model, params=params["pooler"])
        text = {**batch, "encoder_input_tokens": batch["encoder_target_tokens"]}

        def encode(key: Array) -> Array:
            return pooler(transformer.hidden(text, dropout_key=key)[:, 0])

        return jax.lax.map(encode, jax.random.split(key))

    @property
    def rows_are_independent(self) -> bool:
        """False: the negatives of a text are the other rows."""
        return False

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Returns the FLOPs of two encodings and, with MLM, of a third forward pass, which predicts tokens."""
        hidden = hidden_flops(self.model, inputs_length, targets_length)
        encodings = 2 * (hidden + pooled_flops(self.model, classes=0))
        logits = logits_flops(self.model, self.num_logits(inputs_length))
        return encodings + (hidden + logits) * bool(self.objective.mlm_weight)

    def language_model(self, params: Params) -> tuple[ModelConfig, Params] | None:
        """Returns None without MLM: the contrastive loss does not train the token head."""
        return super().language_model(params) if self.objective.mlm_weight else None
