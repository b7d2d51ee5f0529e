"""The loss of each of given texts under a run's own objective.

evaluation/scorer.py scores chosen tokens in the same way for every objective.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from contract.batch import Batch
from contract.errors import ConfigError
from experiment.experiment import Experiment
from generate.sampling import padded_batch
from models.parameters import Params
from run import sharding
from run.compiled_run import on_mesh
from run.step import make_eval_step
from run.texts import Text, text_windows

_ROWS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class TextLoss:
    """The loss of one text under the run's objective.

    Attributes:
      nats: summed over the scored tokens.
      tokens: scored; rows where the learner scores rows.
      bytes: of the text, in UTF-8. nats / bytes compares runs only where the objective scores every token.
      denoiser: the name of the denoiser that hid a part of the text.
    """

    nats: float
    tokens: float
    bytes: int
    denoiser: str

    @property
    def loss(self) -> float:
        """Nats per scored token; NaN without scored tokens."""
        return self.nats / self.tokens if self.tokens else float("nan")


def text_losses(
    experiment: Experiment,
    params: Params,
    mesh: Mesh,
    texts: Sequence[Text],
    *,
    denoiser: str | None = None,
    seed: int = 0,
) -> list[TextLoss]:
    """Returns the loss of each of `texts`, of any length: the sums of train.evaluate over the text's windows.

    A text that is longer than a window is cut into windows, of which none sees the text before it. Arguments and errors
    as for `text_windows`; ConfigError also for an objective whose loss of a text depends on the other texts.
    """
    if not experiment.learner.rows_are_independent:
        raise ConfigError(
            f"objective.name={experiment.objective_name!r} compares each text with the other texts of a batch, so a "
            "text alone has no loss: read the held-out metrics of the run instead (train.evaluate)"
        )
    windows, owners, denoiser_ids = text_windows(experiment, texts, denoiser=denoiser, seed=seed, cut=True)
    nats, tokens = row_losses(experiment, params, mesh, experiment.heldout_collate(windows, len(owners)))
    nats, tokens = (np.bincount(owners, values, len(texts)) for values in (nats, tokens))
    return [
        TextLoss(float(nats[k]), float(tokens[k]), _num_bytes(experiment, text), experiment.tasks[denoiser_id].name)
        for k, (text, denoiser_id) in enumerate(zip(texts, denoiser_ids, strict=True))
    ]


def row_losses(experiment: Experiment, params: Params, mesh: Mesh, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nats and the number of scored tokens of each row of a batch, float64 [B] each.

    Without dropout, label smoothing and z-loss, as in train.evaluate. params: the learner's.
    """
    rows, sums = len(next(iter(batch.values()))), []
    for begin in range(0, rows, _ROWS_AT_ONCE):
        part = {name: array[begin : begin + _ROWS_AT_ONCE] for name, array in batch.items()}
        part, count = padded_batch(part, mesh)
        source = part["example_source"]
        part["example_source"] = np.broadcast_to(np.arange(len(source), dtype=np.int32)[:, None], source.shape).copy()
        found = jax.device_get(
            _eval_step(experiment, mesh, len(source))(params, jax.device_put(part, sharding.batch_sharding(mesh)))
        )
        sums.append([np.asarray(found[f"{name}_sum_by_group"], np.float64)[:count] for name in ("loss", "weight")])
    return tuple(np.concatenate(values) for values in zip(*sums, strict=True))


@functools.lru_cache(maxsize=32)  # an Experiment is compared by identity
def _eval_step(experiment: Experiment, mesh: Mesh, rows: int):
    """Returns the compiled evaluation step of batches of `rows` rows, each a group of its own."""
    learner = experiment.learner
    setup = dataclasses.replace(learner.setup, num_groups=rows)
    step = make_eval_step(dataclasses.replace(learner, setup=setup), bytes_of_token=None, unk=experiment.vocab.unk)
    return jax.jit(on_mesh(step, sharding.batch_sharding(mesh)))


def _num_bytes(experiment: Experiment, text: Text) -> int:
    if isinstance(text, np.ndarray):
        return experiment.tokenizer.num_bytes(text)
    return len("".join(text).encode("utf-8"))
