"""What a learner is: the parameters that an objective trains, and the loss that a batch gives them."""

from collections.abc import Mapping
from typing import Any, Protocol

from jax import Array

from models.config import ModelConfig
from models.transformer import Params

Batch = Mapping[str, Array]
Sums = dict[str, Any]


class Learner(Protocol):
    """A frozen dataclass: what it needs of the config, and pure functions. Most objectives need no other than
    `train.learners.token_prediction.TokenPrediction`; LEARNERS in train/learners says which do.

    Sums are added up over microbatches, batches and devices, and divided last (train/metrics.py, `summarize`):

      loss_sum, weight_sum, correct_sum: float32 [], of what the run reports as its loss, nats per scored token or row;
      loss_sum_by_denoiser, weight_sum_by_denoiser, correct_sum_by_denoiser: float32 [sources];
      ratios: name -> (sum, weight), both [] or both [n]; reported as sum / weight, of a vector the mean over the
        entries whose weight is not 0.
    """

    def init_params(self, key: Array) -> Params:
        """float32 parameters drawn from `key`, a nested dict."""

    def weights(self, batch: Batch) -> dict[str, Array]:
        """The denominator of each term of the loss, float32 []: functions of the batch's fields alone.

        The step takes them from the whole batch before it cuts it up, so `loss` divides by them and the gradients of
        microbatches just add up. A mean of means would be another loss.
        """

    def loss(
        self, params: Params, batch: Batch, weights: dict[str, Array], *, key: Array, train: bool
    ) -> tuple[Array, Sums]:
        """What is minimised, float32 [], and the sums to report. `batch` may be a part of that of `weights`.

        key: for dropout, and whatever else is drawn. train: False for evaluation, without dropout.
        """

    def forward_flops(self, inputs_length: int, targets_length: int) -> int:
        """Operations of the forward passes over one row of such lengths, as models/flops.py counts them."""

    def transformer(self, params: Params) -> Params:
        """The pre-trained Transformer in `params`, of the experiment's `model`: what fine-tuning starts from."""

    def replace_transformer(self, params: Params, transformer: Params) -> Params:
        """`params` with `transformer` in the place of what `transformer(params)` gives."""

    def language_model(self, params: Params) -> tuple[ModelConfig, Params] | None:
        """The model that predicts tokens, for train.generate; None where there is none."""


def train_step_flops(learner: Learner, *, rows: int, inputs_length: int, targets_length: int) -> float:
    """Floating-point operations of one update from `rows` rows: their forward and backward passes."""
    return 3.0 * rows * learner.forward_flops(inputs_length, targets_length)
