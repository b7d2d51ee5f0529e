"""Checks of single fields of a config, before anything is made from them."""

from typing import Any

from contract.errors import ConfigError
from data.sources import check_source
from train.config import ExperimentConfig
from train.optimizer import make_optimizer


def check_sections(sections: ExperimentConfig) -> None:
    """Raises ConfigError for values of single sections that cannot work."""
    data, train, loss, mesh = sections.data, sections.train, sections.loss, sections.mesh
    check_source(data.source)
    _check_positive(data, "data", "inputs_length", "targets_length", "examples_per_row", "num_sentinels")
    _check_positive(train, "train", "batch_size", "grad_accum_steps", "log_every", "eval_every")
    _check_positive(train, "train", "checkpoint_every", "max_nonfinite_updates")
    if not 0 <= train.ema_decay < 1:
        raise ConfigError(f"train.ema_decay={train.ema_decay} must be 0 (parameters are not averaged) or more, below 1")
    if len(set(train.trackers)) < len(train.trackers):
        raise ConfigError(f"train.trackers={train.trackers} must name each tracker once")
    if not train.tracker_project:
        raise ConfigError("train.tracker_project='' must be a name, such as 'cloze'")
    if train.eval_windows < 0:
        raise ConfigError(f"train.eval_windows={train.eval_windows} must be 0 (all held-out windows) or more")
    if train.batch_size % train.grad_accum_steps:
        raise ConfigError(
            f"train.batch_size={train.batch_size} must be a multiple of train.grad_accum_steps={train.grad_accum_steps}"
        )
    if not 0 <= loss.label_smoothing < 1 or not 0 <= loss.z_loss < float("inf"):
        raise ConfigError(
            f"loss.label_smoothing={loss.label_smoothing} must be in [0, 1) and "
            f"loss.z_loss={loss.z_loss} must be 0 (off) or more, and finite"
        )
    if loss.chunk_size < 0:
        raise ConfigError(f"loss.chunk_size={loss.chunk_size} must be 0 (all logits at once) or more")
    if mesh.backend == "pmap" and (mesh.fsdp, mesh.tensor) != (1, 1):
        raise ConfigError(
            f"mesh.backend='pmap' copies the state to every device: set mesh.fsdp={mesh.fsdp} and mesh.tensor="
            f"{mesh.tensor} to 1, or mesh.backend='jit'"
        )
    make_optimizer(sections.optimizer, train.assumed_steps)  # raises for fields that cannot work


def _check_positive(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        if getattr(section, field) < 1:
            raise ConfigError(f"{name}.{field}={getattr(section, field)} must be 1 or more")
