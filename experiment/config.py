"""Turns a config into frozen dataclasses, and checks the names, types and ranges of its fields.

The annotation of a number field declares its range (contract/ranges.py).
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from contract.errors import ConfigError
from contract.ranges import check_ranges
from data.sources.config import OF_EACH_CORPUS, CorpusConfig, SourceConfig
from data.windows.documents import RateKind
from data.windows.leak_guard import NearDuplicates
from data.windows.split import HeldoutText, Split
from learners.learner import DistillationConfig, LossConfig

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """Fields of `config.data`: the corpus, its windows and batches. configs/base.py documents every field."""

    inputs_length: Annotated[int, "[1, 2**18]"]
    targets_length: Annotated[int, "[1, 2**18]"]
    documents: Literal["join", "pack", "split", "whole"]
    on_unusable: Literal["error", "skip"]
    examples_per_row: Annotated[int, "[1, 4096]"]
    packing: Literal["equal", "planned"]
    bidirectional_inputs: bool
    attention_annealing_steps: Annotated[int, "[0, 2**31)"]
    heldout_fraction: Annotated[float, "[0, 1)"]
    split_seed: Annotated[int, "[-2**63, 2**63)"]
    split_by: Literal["auto", "file", "document", "label"]
    heldout: HeldoutText
    near_duplicates: NearDuplicates
    read_by_range: bool
    reader_threads: Annotated[int, "[0, 1024]"]
    prefetch_batches: Annotated[int, "[0, 2**16]"]
    sources: dict[str, SourceConfig]
    mix_by: Literal["example", "token"]
    rates: RateKind
    rates_maximum: Annotated[int, "[0, 2**63)"]
    rates_temperature: Annotated[float, "[0.001, 1e9]"]

    def __post_init__(self):
        # The order of the corpora determines the batches, and must not depend on how the config was written.
        object.__setattr__(self, "sources", dict(sorted(self.sources.items())))

    def of_corpora(self) -> "dict[str, DataConfig]":
        """Returns the fields of each corpus as those of a run of that corpus alone, by name; "" for the only corpus."""
        return {
            name: dataclasses.replace(self, sources={}, **{field: getattr(source, field) for field in OF_EACH_CORPUS})
            for name, source in self.sources.items()
        } or {"": self}

    @property
    def split(self) -> Split:
        """How the corpus is split."""
        return Split(self.heldout_fraction, self.split_seed, self.split_by, self.heldout)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Fields of `config.optimizer`."""

    name: Literal["adamw", "rms_scaled_adamw", "adafactor", "lion", "muon", "lamb", "stable_adamw"]
    schedule: Literal["cosine", "linear", "inverse_sqrt", "rsqrt", "constant", "wsd"]
    cycles: str
    learning_rate: Annotated[float, "(0, inf)"]
    warmup_steps: Annotated[int, "[0, 2**31)"]
    final_learning_rate_fraction: Annotated[float, "[0, 1]"]
    decay_fraction: Annotated[float, "(0, 1]"]
    b1: Annotated[float, "[0, 1)"]
    b2: Annotated[float, "[0, 1)"]
    eps: Annotated[float, "(0, inf)"]
    weight_decay: Annotated[float, "[0, inf)"]
    no_decay: tuple[str, ...]
    clip_norm: Annotated[float, "[0, inf)"]


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Fields of `config.train`."""

    init_from: str
    init_from_vocabulary: Literal["equal", "by_token"]
    init_from_overlap: Literal["error", "allow"]
    steps: Annotated[int, "[0, 2**31)"]  # 0 until train.epochs is resolved (run/corpus.py)
    epochs: Annotated[float, "[0, inf)"]
    batch_size: Annotated[int, "[1, 2**24]"]
    grad_accum_steps: Annotated[int, "[0, 2**24]"]  # 0 until it is chosen (run/memory.py)
    ema_decay: Annotated[float, "[0, 1)"]
    log_every: Annotated[int, "[1, inf)"]
    eval_every: Annotated[int, "[1, inf)"]
    eval_windows: Annotated[int, "[0, 2**31)"]
    checkpoint_every: Annotated[int, "[1, inf)"]
    checkpoint_minutes: Annotated[float, "[0, inf)"]
    keep_checkpoints: Annotated[int, "[1, inf)"]
    max_nonfinite_updates: Annotated[int, "[1, inf)"]
    profile_steps: Annotated[int, "[0, 2**31)"]
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
    data: Annotated[int, "[-1, -1] or [1, 2**20]"]
    fsdp: Annotated[int, "[-1, -1] or [1, 2**20]"]
    tensor: Annotated[int, "[-1, -1] or [1, 2**20]"]


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """A whole config. The dicts `objective` and `model` become an Objective and a ModelConfig (experiment.py)."""

    seed: Annotated[int, "[-2**63, 2**63)"]
    precision: Literal["float32", "bfloat16", "float16"]
    data: DataConfig
    objective: dict[str, Any]
    model: dict[str, Any]
    loss: LossConfig
    distillation: DistillationConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


def from_mapping(cls: type[T], values: Mapping[str, Any], field: str) -> T:
    """Returns dataclass `cls` made from `values`, the fields of the config section `field` ("" for the whole config).

    Raises ConfigError as `checked_fields` does.
    """
    return cls(**checked_fields(cls, values, field))


def checked_fields(cls: type, values: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Returns `values`, the fields of the config section `field`, as the arguments that make dataclass `cls`.

    Raises ConfigError for a missing or unknown field, with the nearest name, for a value of the wrong type, and for a
    number out of its range. An int is accepted for a float; nothing else is converted.
    """
    hints = typing.get_type_hints(cls)
    names = [declared.name for declared in dataclasses.fields(cls)]
    prefix = f"{field}." if field else ""
    for name in values:
        if name not in names:
            _check_key(name, field)
            near = difflib.get_close_matches(name, names, n=1)
            others = f"choose one of {', '.join(names)}" if names else "remove it"
            hint = f"did you mean {prefix}{near[0]}?" if near else others
            raise ConfigError(f"unknown config field {prefix}{name}: {hint}")
    missing = [name for name in names if name not in values]
    if missing:
        raise ConfigError(f"config field {prefix}{missing[0]} is missing")
    fields = {name: _checked(values[name], hints[name], prefix + name) for name in names}
    check_ranges(cls, fields, field)
    return fields


def check_length(train: TrainConfig) -> None:
    """Raises ConfigError unless exactly one of train.steps and train.epochs is set."""
    if train.epochs and train.steps:
        raise ConfigError(
            f"train.steps={train.steps} and train.epochs={train.epochs} both set the length of the run: "
            "set one of them to 0"
        )
    if train.steps < 1 and not train.epochs:
        raise ConfigError(f"train.steps={train.steps} must be 1 or more, or 0 with train.epochs above 0")


def _check_key(name: Any, field: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"{field or 'the group'} has the key {name!r}: keys must be text")


def _checked(value: Any, hint: Any, field: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{field}={value!r} must be a group of fields")
        return from_mapping(hint, value, field)
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in args):  # True == 1
            names = [choice for choice in args if isinstance(choice, str)]
            near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
            hint_text = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{field}={value!r} must be one of {', '.join(map(repr, args))}{hint_text}")
        return value
    if origin in (tuple, Sequence):
        if not isinstance(value, tuple | list):
            raise ConfigError(f"{field}={value!r} must be a tuple")
        return tuple(_checked(item, args[0], field) for item in value)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{field}={value!r} must be a group of fields")
        for name in value:
            _check_key(name, field)
        if args[1] is Any:
            return dict(value.items())
        return {name: _checked(item, args[1], f"{field}.{name}") for name, item in value.items()}
    if origin is types.UnionType:  # of a type and None
        return None if value is None else _checked(value, args[0], field)
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if hint is not Any and type(value) is not hint:
        raise ConfigError(f"{field}={value!r} must be of type {hint.__name__}, not {type(value).__name__}")
    return value
