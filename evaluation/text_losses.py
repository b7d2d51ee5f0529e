"""Losses of given texts under the run's own objective, and logits of given batches. Rows are padded to a few counts."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from contract.batch import Batch
from contract.errors import ConfigError
from evaluation.text_batches import Text, batch_of, text_windows
from experiment.experiment import Experiment
from generate.answers import padded_rows
from models.config import ModelConfig
from models.parameters import Params
from models.placement import activation_constraint
from models.transformer import apply
from run import sharding
from run.compiled_run import on_mesh
from run.per_device import constrain_rows
from run.step import make_eval_step

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
    nats, tokens = row_losses(experiment, params, mesh, batch_of(experiment, windows))
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
        part, count = _padded(part, mesh)
        source = part["example_source"]
        part["example_source"] = np.broadcast_to(np.arange(len(source), dtype=np.int32)[:, None], source.shape).copy()
        found = jax.device_get(_eval_step(experiment, mesh, len(source))(params, _on_devices(part, mesh)))
        sums.append([np.asarray(found[f"{name}_sum_by_group"], np.float64)[:count] for name in ("loss", "weight")])
    return tuple(np.concatenate(values) for values in zip(*sums, strict=True))


def batch_logits(experiment: Experiment, params: Params, mesh: Mesh, batch: Mapping[str, Any]) -> jax.Array:
    """Returns logits, float32 [B, L, V], at the positions of the decoder, or of the encoder if there is no decoder.

    Args:
      experiment, params: of the language model (run.restore.language_model).
      mesh: over whose devices rows are split.
      batch: at least the fields that the model reads: the tokens, segment ids and positions of each stack, and
        decoder_bidirectional_mask for a prefix LM. V is the number of rows of the output table.

    Raises ConfigError for a field that is missing.
    """
    # A batch made by hand may have several segments in a row, whatever the rows of the run have.
    model = dataclasses.replace(experiment.model, one_segment=False)
    stacks = [stack for stack, exists in (("encoder", model.has_encoder), ("decoder", model.has_decoder)) if exists]
    needed = [f"{stack}_{name}" for stack in stacks for name in ("input_tokens", "segment_ids", "positions")]
    if model.architecture == "decoder_only" and model.has_prefix:
        needed.append("decoder_bidirectional_mask")
    missing = [name for name in needed if name not in batch]
    if missing:
        raise ConfigError(f"the batch has no field {missing[0]!r}, which this {model.architecture} model reads: add it")
    optional = [name for name in ("encoder_token_types", "encoder_attention_order") if name in batch]
    padded, rows = _padded({name: np.asarray(batch[name]) for name in (*needed, *optional)}, mesh)
    over_rows = sharding.batch_sharding(mesh)
    with activation_constraint(functools.partial(constrain_rows, sharding=over_rows)):
        return _logits(model, params, _on_devices(padded, mesh))[:rows]


@functools.partial(jax.jit, static_argnames="config")
def _logits(config: ModelConfig, params: Params, batch: Batch) -> jax.Array:
    return apply(config, params, batch)


@functools.lru_cache(maxsize=32)  # an Experiment is compared by identity
def _eval_step(experiment: Experiment, mesh: Mesh, rows: int):
    """Returns the compiled evaluation step of batches of `rows` rows, each a group of its own."""
    learner = experiment.learner
    setup = dataclasses.replace(learner.setup, num_groups=rows)
    step = make_eval_step(dataclasses.replace(learner, setup=setup), bytes_of_token=None, unk=experiment.vocab.unk)
    return jax.jit(on_mesh(step, sharding.batch_sharding(mesh)))


def _padded(batch: Batch, mesh: Mesh) -> tuple[Batch, int]:
    """Returns `batch` with rows of padding at its end, for the devices and for few programs, and its own rows."""
    rows, parts = len(next(iter(batch.values()))), mesh.shape["data"] * mesh.shape["fsdp"]
    more = -(-padded_rows(rows) // parts) * parts - rows
    return {name: np.pad(array, [(0, more), *[(0, 0)] * (array.ndim - 1)]) for name, array in batch.items()}, rows


def _on_devices(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    return jax.device_put(batch, sharding.batch_sharding(mesh))


def _num_bytes(experiment: Experiment, text: Text) -> int:
    if isinstance(text, np.ndarray):
        return experiment.tokenizer.num_bytes(text)
    return len("".join(text).encode("utf-8"))
