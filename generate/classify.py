"""The classes of texts, by a run of configs/classification.py."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from contract.batch import Batch
from experiment.experiment import Experiment
from generate.sampling import padded_batch
from learners.classification import ClassificationLearner
from models.parameters import Params
from run import sharding
from run.texts import batch_of, text_windows


@dataclasses.dataclass(frozen=True)
class Classified:
    """A text and its class.

    Attributes:
      prompt: the text.
      label: the name of the likeliest class.
      probabilities: of each class, by its name.
    """

    prompt: str
    label: str
    probabilities: dict[str, float]


def classifies(experiment: Experiment) -> bool:
    """Returns whether the run's model predicts the class of a text."""
    return isinstance(experiment.learner, ClassificationLearner)


def classifier_rows(experiment: Experiment, texts: Sequence[str], names: Sequence[str] | None = None) -> Batch:
    """Returns the batch of `texts`, a row for each, as in training but without labels.

    names: of the texts, in messages. Raises ConfigError for an empty text and for one that is longer than a row.
    """
    return batch_of(experiment, text_windows(experiment, texts, needs_labels=False, names=names).windows)


def classify(
    experiment: Experiment, params: Params, mesh: Mesh, texts: Sequence[str], batch: Batch, batch_size: int = 16
) -> Iterator[Classified]:
    """Yields the class of each text.

    Args:
      experiment: of a run of configs/classification.py.
      params: the learner's, on the devices of `mesh`.
      texts: whose rows `batch` has, in the same order.
      batch_size: how many rows the model reads together; the probabilities do not depend on it, except for rounding.
    """
    names = experiment.denoisers[0].objective.classes
    # As in run.restore.language_model: this attention runs on parameters with any sharding.
    model = dataclasses.replace(experiment.learner.model, attention="xla")
    learner = dataclasses.replace(experiment.learner, model=model)
    for begin in range(0, len(texts), batch_size):
        part, count = padded_batch({name: rows[begin : begin + batch_size] for name, rows in batch.items()}, mesh)
        part = jax.device_put(part, sharding.batch_sharding(mesh))
        probabilities = np.asarray(_probabilities(learner, params, part), np.float64)[:count]
        for text, of_text in zip(texts[begin:], probabilities, strict=False):
            yield Classified(text, names[of_text.argmax()], dict(zip(names, of_text.tolist(), strict=True)))


@functools.partial(jax.jit, static_argnames=("learner",))
def _probabilities(learner: ClassificationLearner, params: Params, batch: Batch) -> jax.Array:
    """Returns the probabilities of the classes of each row, float32 [B, C]."""
    return jax.nn.softmax(learner.logits(params, batch).astype("float32"), axis=-1)
