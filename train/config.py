"""Turns a config into frozen dataclasses, and checks the names and types of its fields before anything slow runs."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from contract.errors import ConfigError
from data.config import CorpusConfig
from data.near_duplicates import NearDuplicates
from data.split import Split
from train.learners.learner import LossConfig

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """Fields of `config.data`: the corpus, its windows and batches. configs/base.py documents every field."""

    inputs_length: int
    targets_length: int
    documents: Literal["join", "pack", "split", "whole"]
    on_unusable: Literal["error", "skip"]
    examples_per_row: int
    packing: Literal["equal", "planned"]
    bidirectional_inputs: bool
    heldout_fraction: float
    split_seed: int
    split_by: Literal["auto", "file", "document", "label"]
    near_duplicates: NearDuplicates
    reader_threads: int
    prefetch_batches: int

    @property
    def split(self) -> Split:
        """How the corpus is split."""
        return Split(self.heldout_fraction, self.split_seed, self.split_by)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Fields of `config.optimizer`."""

    name: Literal["adamw", "rms_scaled_adamw", "adafactor", "lion", "muon"]
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant", "wsd"]
    cycles: str = dataclasses.field(metadata={"as_before": ""})
    learning_rate: float
    warmup_steps: int
    final_learning_rate_fraction: float
    decay_fraction: float
    b1: float
    b2: float
    eps: float
    weight_decay: float
    no_decay: tuple[str, ...]
    clip_norm: float


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Fields of `config.train`."""

    init_from: str
    init_from_vocabulary: Literal["equal", "by_token"]
    init_from_overlap: Literal["error", "allow"]
    steps: int  # 0 until train.epochs is resolved (train/epochs.py)
    epochs: float
    batch_size: int
    grad_accum_steps: int
    ema_decay: float
    log_every: int
    eval_every: int
    eval_windows: int
    checkpoint_every: int
    keep_checkpoints: int
    max_nonfinite_updates: int
    profile_steps: int
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...]
    tracker_project: str

    @property
    def assumed_steps(self) -> int:
        """`steps`; before train.epochs is resolved, more steps than any run has.

        For what depends on the schedule being valid, but not on its length: state shapes and compiled programs.
        """
        return self.steps or 2**31 - 1


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Fields of `config.mesh`."""

    backend: Literal["jit", "pmap"]
    data: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """A whole config. train/experiment.py makes an Objective and a ModelConfig of the dicts `objective` and `model`."""

    seed: int
    precision: Literal["float32", "bfloat16", "float16"]
    data: DataConfig
    objective: dict[str, Any]
    model: dict[str, Any]
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


def from_mapping(cls: type[T], values: Mapping[str, Any], field: str) -> T:
    """Returns dataclass `cls` made from `values`, the fields of the config section `field` ("" for the whole config).

    Raises ConfigError for a missing or unknown field, with the nearest name, and for a value of the wrong type. An int
    is accepted for a float; nothing else is converted.
    """
    hints = typing.get_type_hints(cls)
    names = [declared.name for declared in dataclasses.fields(cls)]
    prefix = f"{field}." if field else ""
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"choose one of {', '.join(names)}"
            raise ConfigError(f"unknown config field {prefix}{name}: {hint}")
    missing = [name for name in names if name not in values]
    if missing:
        raise ConfigError(f"config field {prefix}{missing[0]} is missing")
    return cls(**{name: _checked(values[name], hints[name], prefix + name) for name in names})


def check_length(train: TrainConfig) -> None:
    """Raises ConfigError unless exactly one of train.steps and train.epochs is set."""
    if not 0 <= train.epochs < float("inf"):
        raise ConfigError(f"train.epochs={train.epochs} must be 0 (off) or more, and finite")
    if train.epochs and train.steps:
        raise ConfigError(
            f"train.steps={train.steps} and train.epochs={train.epochs} both set the length of the run: "
            "set one of them to 0"
        )
    if train.steps < 1 and not train.epochs:
        raise ConfigError(f"train.steps={train.steps} must be 1 or more, or 0 with train.epochs above 0")


def _checked(value: Any, hint: Any, field: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{field}={value!r} must be a group of fields")
        return from_mapping(hint, value, field)
    if origin is Literal:
        if value not in args:
            near = difflib.get_close_matches(str(value), args, n=1)
            hint_text = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{field}={value!r} must be one of {', '.join(map(repr, args))}{hint_text}")
        return value
    if origin is tuple:
        if not isinstance(value, tuple | list):
            raise ConfigError(f"{field}={value!r} must be a tuple")
        return tuple(_checked(item, args[0], field) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{field}={value!r} must be a group of fields")
        if args[1] is Any:
            return dict(value.items())
        return {name: _checked(item, args[1], f"{field}.{name}") for name, item in value.items()}
    if origin is types.UnionType:  # of a type and None
        return None if value is None else _checked(value, args[0], field)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{field}={value!r} must be of type {hint.__name__}, not {type(value).__name__}")
    return value
