"""An experiment: a config made whole. What does not go together is refused here, before anything slow."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from contract.errors import ConfigError
from data.tokenizer import Tokenizer, make_tokenizer
from models.config import ModelConfig
from objectives import CLM, OBJECTIVES, Mixture, denoisers_of
from objectives.mixture import TableRow
from objectives.objective import Denoiser
from objectives.rows.collate import Collator, make_collator
from objectives.rows.lengths import RowShape
from train.config import DataConfig, ExperimentConfig, MeshConfig, OptimizerConfig, TrainConfig, from_mapping
from train.learners import LEARNERS, make_learner
from train.learners.learner import Learner, train_step_flops
from train.optimizer import make_optimizer

VOCAB_MULTIPLE = 128  # tables are padded to it, as T5's (32,100 ids, 32,128 rows): even tiles, and axes that divide


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A resolved config: what each package needs of it, as that package's own types."""

    config: dict[str, Any]  # as given, nested plain dicts
    seed: int
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    model: ModelConfig
    learner: Learner
    tokenizer: Tokenizer
    collator: Collator
    warnings: tuple[str, ...]

    @property
    def denoiser_names(self) -> tuple[str, ...]:
        """Names of the denoisers, in the order of `example_source`."""
        return tuple(spec.name for spec in self.collator.specs)

    @property
    def objective_name(self) -> str:
        return self.config["objective"]["name"]

    @property
    def train_step_flops(self) -> float:
        """Model FLOPs of one step on all devices, as models/flops.py counts them."""
        data, rows = self.data, self.train.batch_size
        return train_step_flops(
            self.learner, rows=rows, inputs_length=data.inputs_length, targets_length=data.targets_length
        )


def make_experiment(config: Mapping[str, Any], *, vocab_size: int | None = None) -> Experiment:
    """Checks a config of configs/base.py's fields. Raises ConfigError, one line, for whatever could not work.

    vocab_size: ids of a tokenizer that is not here, to plan with (train.plan); None: the tokenizer's.
    """
    sections = from_mapping(ExperimentConfig, config, "")
    data = sections.data
    _check_positive(data, "data", "inputs_length", "targets_length", "examples_per_row", "num_sentinels")
    _check_positive(sections.train, "train", "steps", "batch_size", "grad_accum_steps", "log_every", "eval_every")
    _check_positive(sections.train, "train", "eval_batches", "checkpoint_every", "max_nonfinite_updates")
    if sections.train.batch_size % sections.train.grad_accum_steps:
        raise ConfigError(
            f"train.batch_size={sections.train.batch_size} must be a multiple of "
            f"train.grad_accum_steps={sections.train.grad_accum_steps}"
        )
    if not 0 <= sections.loss.label_smoothing < 1 or not 0 <= sections.loss.z_loss < float("inf"):
        raise ConfigError(
            f"loss.label_smoothing={sections.loss.label_smoothing} must lie in [0, 1) and "
            f"loss.z_loss={sections.loss.z_loss} must not be negative"
        )
    if sections.loss.chunk_size < 0:
        raise ConfigError(f"loss.chunk_size={sections.loss.chunk_size} must not be negative; 0 is not in chunks")
    mesh = sections.mesh
    if mesh.backend == "pmap" and (mesh.fsdp, mesh.tensor) != (1, 1):
        raise ConfigError(
            f"mesh.backend='pmap' copies the state to every device: set mesh.fsdp={mesh.fsdp} and mesh.tensor="
            f"{mesh.tensor} to 1, or mesh.backend='jit'"
        )
    make_optimizer(sections.optimizer, sections.train.steps)  # raises for fields that it cannot work with

    tokenizer = make_tokenizer(data)
    objective = make_objective(sections.objective)
    denoisers = denoisers_of(objective, sections.objective["name"])
    model = _model_config(sections, vocab_size or tokenizer.vocab.size, denoisers)
    collator, warnings = make_collator(
        denoisers,
        RowShape(model.architecture, data.inputs_length, data.targets_length, data.examples_per_row),
        tokenizer.vocab,
        documents=data.documents,
        on_unusable=data.on_unusable,
        bidirectional_inputs=data.bidirectional_inputs,
        packing=data.packing,
        mix_by=objective.mix_by if isinstance(objective, Mixture) else "example",
        ramp=_ramp(objective, sections) if isinstance(objective, Mixture) else None,
    )
    return Experiment(
        config=_plain(config),
        seed=sections.seed,
        data=data,
        optimizer=sections.optimizer,
        train=sections.train,
        mesh=sections.mesh,
        model=model,
        learner=make_learner(objective, model, sections, len(collator.denoisers)),
        tokenizer=tokenizer,
        collator=collator,
        warnings=tuple(warnings),
    )


def make_objective(fields: Mapping[str, Any], where: str = "objective") -> Any:
    """The objective that `config.objective` describes: an entry of OBJECTIVES built from the other fields."""
    fields = dict(fields)
    name = fields.pop("name", None)
    if name not in OBJECTIVES:
        raise ConfigError(f"config.{where}.name={name!r} must be one of {', '.join(map(repr, OBJECTIVES))}")
    if OBJECTIVES[name] is Mixture:
        return _mixture(fields, where)
    return from_mapping(OBJECTIVES[name], fields, where)


@dataclasses.dataclass(frozen=True)
class _Mixing:
    mix_by: Literal["example", "token"]
    schedule: Literal["constant", "linear"]


@dataclasses.dataclass(frozen=True)
class _LinearMixing(_Mixing):
    begin_step: int
    end_step: int


@dataclasses.dataclass(frozen=True)
class _Share:
    weight: float
    mode: str


@dataclasses.dataclass(frozen=True)
class _LinearShare(_Share):
    final_weight: float


def _mixture(fields: Mapping[str, Any], where: str) -> Mixture:
    fields, is_linear = dict(fields), fields.get("schedule") == "linear"
    table = fields.pop("denoisers", None)
    if not isinstance(table, Mapping):
        raise ConfigError(f"config.{where}.denoisers must be a table of denoisers, as in configs/ul2.py")
    mixing = from_mapping(_LinearMixing if is_linear else _Mixing, fields, where)
    rows = {name: _table_row(row, f"{where}.denoisers.{name}", is_linear) for name, row in table.items()}
    steps = (mixing.begin_step, mixing.end_step) if is_linear else ()
    return Mixture(rows, mixing.mix_by, *steps)


def _table_row(values: Mapping[str, Any], where: str, is_linear: bool) -> TableRow:
    if not isinstance(values, Mapping):
        raise ConfigError(f"config.{where}={values!r} must be a group of fields, as in configs/ul2.py")
    if "final_weight" in values and not is_linear:
        raise ConfigError(f"config.{where}.final_weight goes with objective.schedule='linear': remove it, or set that")
    objective = OBJECTIVES.get(values.get("name"))
    if objective is Mixture or objective in LEARNERS:
        why = "is a mixture itself" if objective is Mixture else "trains more than the prediction of tokens"
        raise ConfigError(f"config.{where}.name={values['name']!r} {why}: it cannot be a row of a mixture")
    kind = _LinearShare if is_linear else _Share
    names = {field.name for field in dataclasses.fields(kind)}
    share = from_mapping(kind, {key: value for key, value in values.items() if key in names}, where)
    objective = make_objective({key: value for key, value in values.items() if key not in names}, where)
    return TableRow(objective, share.mode, share.weight, share.final_weight if is_linear else share.weight)


def _ramp(mixture: Mixture, sections: ExperimentConfig) -> tuple[int, int] | None:
    """The examples between which the shares change."""
    if all(row.weight == row.final_weight for row in mixture.denoisers.values()):
        return None
    if mixture.end_step > sections.train.steps:
        raise ConfigError(
            f"objective.end_step={mixture.end_step} must be train.steps={sections.train.steps} or less, "
            "or the run would end before the weights are the final ones"
        )
    examples_per_step = sections.train.batch_size * sections.data.examples_per_row
    return mixture.begin_step * examples_per_step, mixture.end_step * examples_per_step


def _model_config(sections: ExperimentConfig, vocab_size: int, denoisers: Sequence[Denoiser]) -> ModelConfig:
    # Filled in here, never in a config: they follow from other fields.
    derived = {
        "vocab_size": -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        "max_length": max(sections.data.inputs_length, sections.data.targets_length),
        "dtype": sections.precision,
        # CLM's whole text is target; whoever else is read causally says so.
        "has_prefix": sections.data.bidirectional_inputs
        and not all(isinstance(denoiser.objective, CLM) for denoiser in denoisers),
        "predicts_tokens": True,
    }
    fixed = sorted(derived.keys() & sections.model.keys())
    if fixed:
        raise ConfigError(f"unknown config field model.{fixed[0]}: it follows from the tokenizer, lengths or precision")
    try:
        model = from_mapping(ModelConfig, {**sections.model, **derived}, "model")
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.{error}") from error
    types = max(denoiser.objective.num_token_types for denoiser in denoisers)
    if model.architecture == "encoder_only" and types > model.num_token_types:
        return dataclasses.replace(model, num_token_types=types)
    return model


def _check_positive(section: Any, where: str, *names: str) -> None:
    for name in names:
        if getattr(section, name) < 1:
            raise ConfigError(f"config.{where}.{name}={getattr(section, name)} must be 1 or more")


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
