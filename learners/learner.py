"""The base class of learners, and the default: one Transformer that predicts the scored tokens of a batch.

A learner defines the parameters that are trained and the loss of a batch.

An objective names its learner: the class attribute `learner` of an entry of objectives.OBJECTIVES is a key of
learners.LEARNERS. The default is "token_prediction": CLM, MLM, denoisers, mixtures.

To add a learner: subclass Learner in a file of this package, define its abstract methods, add the class to LEARNERS,
and set `learner` in the objective. Parameters are always {"transformer": ...}, of the experiment's model, plus an entry
for each further module, such as a classifier. So `train.init_from` can take the Transformer of any run.

Sums are what a learner reports of a batch. They are added over microbatches, batches and devices before the division
(run.metrics.summarize):

  loss_sum, weight_sum, correct_sum: float32 []. The reported loss is loss_sum / weight_sum, in nats per scored token or
    row; the reported accuracy is correct_sum / weight_sum.
  loss_sum_by_group, weight_sum_by_group, correct_sum_by_group: float32 [num_groups], the same sums for each group of
    examples. The batch's field `example_source` is the group of each position: the denoiser in training, the example in
    evaluation.
  ratios (optional): name -> (sum, weight), both float32 [] or both [n]. Reported as sum / weight; for vectors, as the
    mean of the ratios whose weight is not 0.

The docstring of a learner says over which tokens or rows its loss, its accuracy and each ratio are a mean. A ratio has
the same name in two learners only if both take it over the same kind of tokens or rows.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jax import Array

from contract.batch import ANNEALING_FIELDS
from contract.errors import ConfigError
from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, scored_length
from models.parameters import Params
from models.placement import placed, placement
from models.transformer import Batch, Transformer, bind, init_params, logits_parameters
from objectives.losses.chunked_cross_entropy import chunked_cross_entropy, chunked_sums
from objectives.losses.cross_entropy import (
    LossOptions,
    LossSums,
    ScoredTokens,
    at_positions,
    cross_entropy,
    denominators,
    scored_at,
    scored_positions,
    scored_tokens,
    with_denominators,
)
from objectives.losses.distillation import Divergence, divergences
from objectives.mixture import Mixture
from objectives.objective import Objective

Sums = dict[str, Any]  # see above


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Fields of `config.loss`."""

    z_loss: Annotated[float, "[0, inf)"]
    label_smoothing: Annotated[float, "[0, 1)"]
    chunk_size: Annotated[int, "[0, 2**24]"]


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """Fields of `config.distillation`."""

    teacher: str
    weight: Annotated[float, "[0, 1]"]
    divergence: Divergence
    temperature: Annotated[float, "(0, inf)"]
    top_k: Annotated[int, "[0, 2**24]"]


@dataclasses.dataclass(frozen=True)
class LearnerSetup:
    """What a learner needs of an experiment in addition to the objective and the model."""

    loss: LossConfig
    distillation: DistillationConfig
    num_groups: int  # groups of examples with separate sums: in training, rows of the objective's table
    inputs_length: int  # of a row
    most_scored: int  # positions of a row with a loss weight, at most (objectives/rows/window_specs.py)
    examples_per_row: int
    batch_size: int  # rows
    grad_accum_steps: int
    backend: Literal["jit", "pmap"]
    teacher: ModelConfig | None = None  # of the parameters `frozen_shapes`; None: the loss has no teacher


@dataclasses.dataclass(frozen=True)
class Learner(abc.ABC):
    """What is trained on a batch: parameters, a loss, and FLOPs. All methods are pure functions."""

    objective: Objective | Mixture
    model: ModelConfig
    setup: LearnerSetup
    # Whether the loss of the tokens that the objective scores is `token_loss`, in which a teacher can take part. Each
    # class declares it for itself: one that inherits from it may have another loss.
    has_token_loss: ClassVar[bool] = False
    # Which rows of token prediction it trains in a mixture with rows whose objective names it: "none", "all", or those
    # without inputs that are read from left to right, "causal": heads that read the tokens ahead would show them to a
    # prefix (`CausalLearner`).
    rows_of_others: ClassVar[Literal["none", "causal", "all"]] = "none"

    @classmethod
    def make(cls, objective: Objective | Mixture, model: ModelConfig, setup: LearnerSetup) -> Self:
        """Returns the learner. Raises ConfigError for fields that cannot work together."""
        learner = cls(objective, model, setup)
        learner.check()
        if setup.distillation.teacher and not vars(cls).get("has_token_loss"):
            raise ConfigError(_no_token_loss(learner))
        return learner

    def check(self) -> None:  # noqa: B027  optional
        """Raises ConfigError for fields that cannot work together."""

    @abc.abstractmethod
    def init_params(self, key: Array) -> Params:
        """Returns float32 parameters drawn from `key`: {"transformer": ...} and further entries."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the denominator of each term of the loss, float32 [], from the batch's fields alone.

        The step computes them for the whole batch and then calls `loss` for each microbatch. So the gradients of
        microbatches add up to the gradient of the whole batch; a mean of microbatch means would be a different loss.
        """

    @abc.abstractmethod
    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        """Returns the loss to minimize, float32 [], and the Sums to report.

        batch: the batch that `weights` was computed from, or one of its microbatches. key: for dropout and other
        randomness. train: False for evaluation, without dropout.
        """

    @abc.abstractmethod
    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Returns the FLOPs of the forward passes over one row of these lengths, counted as in models/flops.py."""

    @property
    def transformer_entries(self) -> tuple[str, ...]:
        """The entries of the parameters that `transformer` reads."""
        return ("transformer",)

    def transformer(self, params: Params) -> Params:
        """Returns the pre-trained Transformer in `params`, of `model`: the start of a fine-tuning run."""
        return params["transformer"]

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        """Returns `params` with its Transformer replaced by `transformer`, a tree like `self.transformer(params)`."""
        return params | {"transformer": transformer}

    def language_model(self, params: Params) -> tuple[ModelConfig, Params] | None:
        """Returns the model that predicts tokens and its parameters, for train.generate; None if there is none."""
        return self.model, params["transformer"]

    @property
    def frozen_shapes(self) -> Params:
        """The shapes of further parameters of the training loss that are not trained: those of `teacher`, if any."""
        teacher = self.setup.teacher
        return {} if teacher is None else {"teacher": jax.eval_shape(lambda: init_params(teacher, jax.random.key(0)))}

    @property
    def rows_are_independent(self) -> bool:
        """Whether the reported loss of a row is a function of this row alone, so that a text has a loss of its own."""
        return True

    def bind_transformer(self, params: Params) -> Transformer:
        """Returns the Transformer with the parameters `params["transformer"]`."""
        return bind(self.model, params["transformer"])

    def auxiliary_weight(self, batch: Batch) -> Array | float:
        """Returns the weight of the auxiliary loss in the batch's step: the objective's `auxiliary_weight_field`."""
        weight = getattr(self.objective, self.objective.auxiliary_weight_field)
        return batch["auxiliary_loss_weight"][0] if "auxiliary_loss_weight" in batch else weight

    def dropout_key(self, key: Array, train: bool) -> Array | None:
        """Returns `key`, or None, which disables dropout: in evaluation and in models without dropout."""
        return key if train and self.model.dropout_rate else None

    @property
    def loss_options(self) -> LossOptions:
        """The options of the token loss."""
        loss = self.setup.loss
        return LossOptions(self.setup.num_groups, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing)

    def num_logits(self, length: int) -> int:
        """Returns at how many positions of a row of `length` positions `token_loss` computes logits.

        These are all positions, unless at most half of them are scored.
        """
        return self.setup.most_scored if 2 * self.setup.most_scored <= length else length

    def token_loss(self, params: Params, hidden_BxLxD: Array, batch: Batch) -> LossSums:
        """Returns the cross-entropy of the batch's scored tokens, in chunks if loss.chunk_size is not 0.

        With the parameters of a teacher, `params["teacher"]`, the minimized sum is (1 - weight) times this one plus
        weight times that of the ratio `distillation_loss`: the divergence from the teacher at the scored tokens, with
        the same loss weights and denominators, times temperature^2, which keeps the size of gradients (Hinton et al.
        2015, section 2). The teacher reads the same batch, without dropout.
        """
        if "teacher" in params:
            return self._distilled_token_loss(params, hidden_BxLxD, batch)
        return with_denominators(self._token_loss(params, hidden_BxLxD, batch), batch)

    def _scored(self, batch: Batch, *states: Array) -> tuple[ScoredTokens, list[Array]]:
        """Returns the scored tokens and `states`, [B, L, D] each, at the positions that have logits (`num_logits`)."""
        scored, length = scored_tokens(batch), states[0].shape[1]
        if self.num_logits(length) == length:
            return scored, [*states]
        positions_BxK = scored_positions(scored.weights_BxL, self.num_logits(length))
        return scored_at(scored, positions_BxK), [at_positions(x, positions_BxK) for x in states]

    def _token_loss(self, params: Params, hidden_BxLxD: Array, batch: Batch) -> LossSums:
        scored, [hidden_BxLxD] = self._scored(batch, hidden_BxLxD)
        if not self.setup.loss.chunk_size:
            logits_BxLxV = self.bind_transformer(params).logits(hidden_BxLxD)
            return cross_entropy(logits_BxLxV, scored, self.loss_options)
        return self._chunked_token_loss(params, hidden_BxLxD, scored)

    def _chunked_token_loss(self, params: Params, hidden_BxLxD: Array, scored: ScoredTokens) -> LossSums:
        return chunked_cross_entropy(
            *logits_function(self.model, params["transformer"]),
            hidden_BxLxD,
            scored,
            self.loss_options,
            chunk_size=self.setup.loss.chunk_size,
            per_device=placement().per_device,
        )

    def _distilled_token_loss(self, params: Params, hidden_BxLxD: Array, batch: Batch) -> LossSums:
        teacher, distillation = self.setup.teacher, self.setup.distillation
        assert teacher is not None, "params has a teacher"
        # Only the student's attention is annealed: the teacher reads as it was trained to.
        open_batch = {name: field for name, field in batch.items() if name not in ANNEALING_FIELDS}
        teacher_BxLxD = bind(teacher, params["teacher"]).hidden(open_batch)
        scored, [hidden_BxLxD, teacher_BxLxD] = self._scored(batch, hidden_BxLxD, teacher_BxLxD)
        logits_of, parameters = logits_function(self.model, params["transformer"])
        teacher_logits_of, frozen = logits_function(teacher, params["teacher"])
        ids = min(self.model.vocab_size, teacher.vocab_size)  # of both tables; tokenizers have no more

        def sums_of(parameters: Params, frozen: Params, hidden_BxCxD: Array, rows: Any) -> LossSums:
            scored, teacher_BxCxD = rows
            logits_BxCxV = logits_of(parameters, hidden_BxCxD)
            hard = cross_entropy(logits_BxCxV, scored, self.loss_options)
            divergences_BxC = divergences(
                logits_BxCxV[..., :ids],
                teacher_logits_of(frozen, teacher_BxCxD)[..., :ids],
                divergence=distillation.divergence,
                temperature=distillation.temperature,
                top_k=distillation.top_k,
            )
            soft = distillation.temperature**2 * (divergences_BxC * scored.weights_BxL).sum()
            mixed = (1 - distillation.weight) * hard.minimized_sum + distillation.weight * soft
            return hard._replace(minimized_sum=mixed, ratios={"distillation_loss": (soft, hard.weight_sum)})

        # Even without chunks by each device for its own rows: a top-k of sharded rows would gather them.
        chunk_size = self.setup.loss.chunk_size or hidden_BxLxD.shape[1]
        options = {"chunk_size": chunk_size, "per_device": placement().per_device}
        sums = chunked_sums(sums_of, parameters, frozen, hidden_BxLxD, (scored, teacher_BxLxD), **options)
        sums = with_denominators(sums, batch)
        return sums._replace(ratios={name: (total, sums.weight_sum) for name, (total, _) in sums.ratios.items()})


@dataclasses.dataclass(frozen=True)
class TokenPredictionLearner(Learner):
    """See Learner. The reported loss and accuracy are over the tokens with a loss weight: those the objective scores.

    Where the batch has denominators (contract/batch.py), both are over the tokens with a denominator instead.

    Parameters: `transformer` alone.
    """

    has_token_loss = True
    rows_of_others = "all"

    def init_params(self, key: Array) -> Params:
        return {"transformer": init_params(self.model, key)}

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"tokens": denominators(batch).sum()}

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


@dataclasses.dataclass(frozen=True)
class CausalLearner(Learner):
    """See Learner. Heads predict tokens or states ahead from the tokens before them, so that all rows are causal."""

    rows_of_others = "causal"

    def check(self) -> None:
        if self.model.has_prefix:
            raise ConfigError(
                f"data.bidirectional_inputs=True does not go with {type(self.objective).__name__}, whose heads would "
                "show the tokens ahead to the prompt: set it to False"
            )


def logits_function(model: ModelConfig, transformer: Params) -> tuple[Callable[[Params, Array], Array], Params]:
    """Returns `Transformer.logits` as (parameters, hidden) -> logits, and its parameters, for `per_device`."""

    def logits(parameters: Params, hidden: Array) -> Array:
        with placed(constrain=lambda x: x):  # each device has its own rows
            return bind(model, transformer | parameters).logits(hidden)

    return logits, {name: transformer[name] for name in logits_parameters(model)}


def _no_token_loss(learner: Learner) -> str:
    """Returns the message for a teacher of a learner without `has_token_loss`."""
    name = f"{type(learner.objective).__name__} ({type(learner).__name__})"
    return (
        f"distillation.teacher={learner.setup.distillation.teacher!r} does not go with {name}, whose loss of tokens is "
        "not Learner.token_loss, or which scores no tokens: set it to '', or train another objective"
    )


def mean(total: Array, weight: Array) -> Array:
    """Returns total / weight, where weights below 1 count as 1: the loss of a batch without scored tokens is 0."""
    return total / jnp.maximum(weight, 1.0)
