"""Checks that a mesh can divide the rows of an experiment, before anything is compiled."""

import math

from jax.sharding import AbstractMesh, Mesh

from contract.errors import ConfigError
from experiment.config import TrainConfig
from experiment.experiment import Experiment


def check_mesh(experiment: Experiment, mesh: Mesh | AbstractMesh) -> None:
    """Raises ConfigError where `mesh` cannot divide the rows of a batch, or the positions of a row."""
    _check_microbatch(experiment.train, mesh)
    if mesh.shape["context"] > 1:
        _check_context(experiment, mesh)


def _check_microbatch(config: TrainConfig, mesh: Mesh | AbstractMesh) -> None:
    """Raises ConfigError where the rows of a batch do not divide by devices times microbatches."""
    parts, steps = mesh.shape["data"] * mesh.shape["fsdp"], config.grad_accum_steps or 1  # 0: chosen before training
    if config.batch_size % (parts * steps):
        fitting = math.gcd(config.batch_size // parts, steps) if not config.batch_size % parts else 0
        raise ConfigError(
            f"train.batch_size={config.batch_size} must be a multiple of {parts * steps}: "
            f"{parts} devices share its rows (mesh.data * mesh.fsdp), each in train.grad_accum_steps="
            f"{steps} parts{f'; train.grad_accum_steps={fitting} divides them' if fitting else ''}"
        )


def _check_context(experiment: Experiment, mesh: Mesh | AbstractMesh) -> None:
    """Raises ConfigError where devices cannot share the positions of a row."""
    parts, fsdp, tensor = (mesh.shape[axis] for axis in ("context", "fsdp", "tensor"))
    data, name = experiment.data, experiment.config["objective"]["name"]
    lengths = {"data.inputs_length": data.inputs_length}
    if experiment.model.architecture == "encoder_decoder":
        lengths["data.targets_length"] = data.targets_length
    for field, length in lengths.items():
        if length % parts:
            raise ConfigError(f"{field}={length} must be a multiple of mesh.context={parts}, whose devices share rows")
    if not experiment.learner.rows_are_divisible:
        raise ConfigError(f"mesh.context={parts} must be 1 for objective.name={name!r}, whose loss needs whole rows")
    if fsdp > 1 and tensor > 1:  # see run.split_rows.split_axes
        raise ConfigError(
            f"mesh.context={parts} must be 1 with mesh.fsdp={fsdp} and mesh.tensor={tensor}: above 1, it can be "
            "combined with one of them"
        )
