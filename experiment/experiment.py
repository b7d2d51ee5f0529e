"""Makes an experiment: the objects of every package that a config describes, checked before anything slow runs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import GENERAL_NAMES, Vocab, sentinel_name
from contract.windows import BatchSpec, Windows, WindowSpec
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from data.windows.batches import Batches, batches
from data.windows.documents import Documents, MixedDocuments
from data.windows.heldout_batches import Heldout
from experiment.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    check_length,
    checked_fields,
    from_mapping,
)
from experiment.objective import make_scheduled
from experiment.optimizer import make_optimizer
from experiment.positions import check_max_length, check_target_positions
from experiment.tasks import check_sources, make_batch_specs, make_tasks
from files.paths import check_path
from learners import make_learner
from learners.learner import Learner, LearnerSetup
from models.config import ModelConfig
from models.transformer import Params
from objectives import Denoiser, denoisers_of
from objectives.objective import RowShape
from objectives.rows.collate import Collator
from objectives.rows.window_specs import most_scored

# Vocabulary sizes are rounded up to a multiple of this number, so that mesh axes divide them. T5 does the same (32,100
# ids, 32,128 rows).
VOCAB_MULTIPLE = 128


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A checked config and the objects that it describes. Made by `make_experiment`."""

    config: dict[str, Any]  # as given: nested plain dicts
    seed: int
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    model: ModelConfig
    learner: Learner
    denoisers: tuple[Denoiser, ...]  # the objective's table; one row unless it is a mixture
    tokenizer: Tokenizer
    collate: Collator  # windows -> batch
    heldout_spec: BatchSpec  # the windows of evaluations, which do not depend on data.packing
    warnings: tuple[str, ...]
    new_store_dir: str  # where a token store is built that is not in data.cache_dir
    teacher: str = ""  # which one takes part in the loss (huggingface/teacher.py), for people
    teacher_flops: int = 0  # of a step, of all devices
    chosen: str = ""  # how model.remat and train.grad_accum_steps were chosen; "" before, and if the config sets them

    @property
    def objective_name(self) -> str:
        """`config.objective.name`."""
        return self.config["objective"]["name"]

    @property
    def has_memory_choice(self) -> bool:
        """Whether the config leaves model.remat or train.grad_accum_steps to the start (run/memory.py)."""
        return self.model.remat == "auto" or not self.train.grad_accum_steps

    @property
    def denoiser_names(self) -> tuple[str, ...]:
        """The denoisers' names."""
        return tuple(denoiser.name for denoiser in self.denoisers)

    @property
    def tasks(self) -> tuple[Denoiser, ...]:
        """Each denoiser on each corpus that it reads (experiment/tasks.py), in the order of `example_source`.

        They are the denoisers in a run of one corpus.
        """
        return self.collate.denoisers

    @property
    def tasks_of_denoisers(self) -> dict[str, tuple[int, ...]]:
        """The task indices of each denoiser, by its name."""
        fields = [task.field for task in self.tasks]
        return {row.name: tuple(k for k, field in enumerate(fields) if field == row.field) for row in self.denoisers}

    @property
    def tasks_of_corpora(self) -> dict[str, tuple[int, ...]]:
        """The task indices of each corpus, by its name in data.sources; empty in a run of one corpus."""
        of_tasks = [task.corpus for task in self.tasks]
        return {
            name: tuple(k for k, of_task in enumerate(of_tasks) if of_task == corpus)
            for corpus, name in enumerate(self.data.sources)
        }

    @property
    def metric_groups(self) -> dict[str, tuple[int, ...]]:
        """The task indices of each group of metrics, by its name: the denoisers, then the corpora."""
        return self.tasks_of_denoisers | self.tasks_of_corpora

    @property
    def printed_groups(self) -> tuple[str, ...]:
        """The names of `metric_groups` without a single denoiser of several corpora, whose metrics are the run's."""
        if self.tasks_of_corpora and len(self.tasks_of_denoisers) == 1:
            return tuple(self.tasks_of_corpora)
        return tuple(self.metric_groups)

    @property
    def batch_spec(self) -> BatchSpec:
        """The windows that the rows of a batch are made from."""
        return self.collate.batch_spec

    @property
    def window_specs(self) -> tuple[WindowSpec, ...]:
        """The windows of each task."""
        return self.batch_spec.windows

    @property
    def row_shape(self) -> RowShape:
        """The positions of a row."""
        return self.collate.row_shape

    @property
    def vocab(self) -> Vocab:
        """The tokenizer's special ids."""
        return self.tokenizer.vocab

    @functools.cached_property
    def heldout_collate(self) -> Collator:
        """`collate` with the denoisers of evaluations, and with attention to later tokens open."""
        denoisers = tuple(task.heldout() for task in self.tasks)
        return dataclasses.replace(self.collate, denoisers=denoisers, annealing_steps=0)

    @functools.cached_property
    def params_shapes(self) -> Params:
        """The parameters' shapes and dtypes, as jax.ShapeDtypeStruct."""
        return jax.eval_shape(lambda: self.learner.init_params(jax.random.key(0)))

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params_shapes))

    @property
    def byte_metric(self) -> str:
        """The name of the bits of loss per byte (Objective.byte_metric); "" if the denoisers do not share one.

        Denoisers of several objectives share none: a mean of CLM's bits and of diffusion's bound is neither.
        """
        found = {(type(denoiser.objective), denoiser.objective.byte_metric) for denoiser in self.denoisers}
        return found.pop()[1] if len(found) == 1 else ""

    @property
    def train_step_flops(self) -> float:
        """Model FLOPs of a step's forward and backward passes on all devices, as models/flops.py counts them.

        A teacher has a forward pass alone.
        """
        of_row = self.learner.forward_flops(self.data.inputs_length, self.data.targets_length)
        return 3.0 * self.train.batch_size * of_row + self.teacher_flops

    def window_length(self, task: int) -> str:
        """Returns the number of raw tokens in a task's windows as text: "567", or a range such as "541-617"."""
        plan = self.batch_spec.plan
        lengths = [self.window_specs[task].raw_length] if plan is None else plan.lengths_of(task)
        return "-".join(map(str, dict.fromkeys([min(lengths), max(lengths)])))

    def batches(
        self,
        documents: Documents | MixedDocuments,
        *,
        local_rows: Sequence[int] | None = None,
        batch_size: int | None = None,
        transform: Callable | None = None,
    ) -> Batches:
        """Returns the training batches of `documents`, indexed by batch number (data.windows.batches.batches).

        Args:
          documents: the training documents.
          local_rows: this process's rows of the global batch; None: all rows.
          batch_size: rows of the global batch; None: train.batch_size. The sequence of rows does not depend on it.
          transform: (windows, number of rows) -> what is returned in place of a batch; None: `collate`.

        Raises ConfigError if `documents` do not fill a window.
        """
        batch_size = batch_size or self.train.batch_size
        return batches(
            documents,
            self.batch_spec,
            transform or self.collate,
            batch_size=batch_size,
            local_rows=range(batch_size) if local_rows is None else local_rows,
            seed=self.seed,
            evenly_over=self.train.batch_size * self.batch_spec.examples_per_row,
        )

    def heldout(self, documents: Documents | MixedDocuments, *, local_rows: Sequence[int] | None = None) -> Heldout:
        """Returns the held-out batches of every evaluation, in which the field `example_source` is the example's group.

        Args:
          documents: the held-out documents.
          local_rows: as for `batches`.

        Raises ConfigError if `documents` do not fill a window.
        """

        def transform(windows: Windows, num_rows: int, groups: np.ndarray) -> Batch:
            collate = self.heldout_collate
            return collate.place(collate.examples(windows), windows._replace(denoiser_ids=groups), num_rows)

        return Heldout(
            documents,
            self.heldout_spec,
            transform,
            batch_size=self.train.batch_size,
            local_rows=range(self.train.batch_size) if local_rows is None else local_rows,
            seed=self.data.split_seed,
            num_windows=self.train.eval_windows,
        )


def make_experiment(
    config: ConfigDict | Mapping[str, Any], *, vocab_size: int | None = None, steps: int | None = None
) -> Experiment:
    """Checks a config with the fields of configs/base.py and returns its experiment.

    vocab_size: the number of ids, for plans and benchmarks without the tokenizer's file; None: that of data.tokenizer.
    steps: train.steps, for a config that sets train.epochs (run/corpus.py); None: train.steps is 0 if it does.

    Raises ConfigError, one line, for a config that cannot work.
    """
    if isinstance(config, ConfigDict):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        name = getattr(config, "__name__", type(config).__name__)
        hint = f": call it, as in {name}()" if callable(config) else ""
        raise ConfigError(
            f"a config must be a ConfigDict or a mapping with the fields of configs/base.py, not {name}{hint}"
        )
    sections = from_mapping(ExperimentConfig, config, "")
    check_length(sections.train)
    if steps is not None:
        config = {**config, "train": {**config["train"], "steps": steps}}
        sections = dataclasses.replace(sections, train=from_mapping(TrainConfig, config["train"], "train"))
    _check_sections(sections)
    data = sections.data
    objective, schedule = make_scheduled(sections.objective, steps=sections.train.steps)
    denoisers = denoisers_of(objective, sections.objective["name"], schedule)
    tasks = make_tasks(denoisers, data)
    fields_of_model = model_fields(sections, tasks)
    tokenizer = make_tokenizer(data)  # the first slow step: it may read a large file
    model = make_model_config(fields_of_model, data, vocab_size or tokenizer.vocab.size, denoisers)
    make_optimizer(sections.optimizer, sections.train.assumed_steps, model)  # raises for fields that cannot work
    if not data.append_special_tokens:
        _check_special_tokens(denoisers, sections, tokenizer.vocab)
    annealing_warnings = _check_annealing(sections, model) if data.attention_annealing_steps else []
    if any(denoiser.objective.has_blocks or denoiser.objective.has_positions for denoiser in denoisers):
        check_places(denoisers, model, data)
    row_shape = RowShape(model.architecture, data.inputs_length, data.targets_length, data.examples_per_row)
    batch_spec, heldout_spec, warnings = make_batch_specs(tasks, sections, objective, row_shape, tokenizer.vocab)
    if model.target_positions or any(denoiser.objective.has_places for denoiser in denoisers):
        check_target_positions(denoisers, model, data)
    vocab, annealing_steps = tokenizer.vocab, data.attention_annealing_steps
    collate = Collator(tasks, batch_spec, row_shape, vocab, data.bidirectional_inputs, annealing_steps, sections.seed)
    scored = max(most_scored(tasks, spec, row_shape) for spec in (batch_spec, heldout_spec))
    return Experiment(
        config=_plain(config),
        seed=sections.seed,
        data=data,
        optimizer=sections.optimizer,
        train=sections.train,
        mesh=sections.mesh,
        model=model,
        learner=make_learner(objective, model, _learner_setup(sections, len(tasks), scored)),
        denoisers=denoisers,
        tokenizer=tokenizer,
        collate=collate,
        heldout_spec=heldout_spec,
        warnings=(*warnings, *annealing_warnings),
        new_store_dir=data.cache_dir,
    )


def _check_sections(sections: ExperimentConfig) -> None:
    """Raises ConfigError for values of single sections that cannot work."""
    data, train, mesh = sections.data, sections.train, sections.mesh
    check_sources(sections)
    check_path(data.cache_dir, f"data.cache_dir={data.cache_dir!r}")
    if len(set(train.trackers)) < len(train.trackers):
        raise ConfigError(f"train.trackers={train.trackers} must name each tracker once")
    if not train.tracker_project:
        raise ConfigError("train.tracker_project='' must be a name, such as 'cloze'")
    if train.grad_accum_steps and train.batch_size % train.grad_accum_steps:
        raise ConfigError(
            f"train.batch_size={train.batch_size} must be a multiple of train.grad_accum_steps={train.grad_accum_steps}"
        )
    if mesh.backend == "pmap" and (mesh.fsdp, mesh.tensor) != (1, 1):
        raise ConfigError(
            f"mesh.backend='pmap' copies the state to every device: set mesh.fsdp={mesh.fsdp} and "
            f"mesh.tensor={mesh.tensor} to 1, or mesh.backend='jit'"
        )


def model_fields(sections: ExperimentConfig, denoisers: Sequence[Denoiser]) -> dict[str, Any]:
    """Returns the fields of the model, with vocab_size and max_length as in the config, where they may be 0.

    Raises ConfigError as `checked_fields` does, and for a field that is derived from other fields.
    """
    # Derived from other fields, never set in a config.
    derived = {
        "dtype": sections.precision,
        "has_prefix": any(
            not denoiser.objective.causal
            and (denoiser.objective.in_place or (sections.data.bidirectional_inputs and denoiser.objective.has_inputs))
            for denoiser in denoisers
        ),
        "one_segment": sections.data.examples_per_row == 1
        and all((denoiser.documents or sections.data.documents) in ("join", "split") for denoiser in denoisers),
        "predicts_tokens": True,
    }
    fixed = sorted(derived.keys() & sections.model.keys())
    if fixed:
        raise ConfigError(
            f"config field model.{fixed[0]} cannot be set: it is derived from the objective, precision or "
            "data.bidirectional_inputs"
        )
    return checked_fields(ModelConfig, {**sections.model, **derived}, "model")


def make_model_config(
    fields: Mapping[str, Any], data: DataConfig, num_ids: int, denoisers: Sequence[Denoiser]
) -> ModelConfig:
    """Returns the model.

    Args:
      fields: from `model_fields`.
      data: its lengths bound the positions.
      num_ids: the number of the tokenizer's ids.
      denoisers: their sentence types are the model's, at least.

    Raises ConfigError for fields that cannot work together.
    """
    derived = {
        "vocab_size": fields["vocab_size"] or -(-num_ids // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        # In another order the last token of a full row is read too.
        "max_length": fields["max_length"] or max(data.inputs_length, data.targets_length) + fields["target_positions"],
    }
    try:
        model = ModelConfig(**fields | derived)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if model.vocab_size < num_ids:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} must be at least {num_ids}, the number of the tokenizer's ids, or 0"
        )
    if model.positions == "learned":
        check_max_length(model, data)
    types = max(denoiser.objective.num_token_types for denoiser in denoisers)
    if model.architecture == "encoder_only" and types > model.num_token_types:
        return dataclasses.replace(model, num_token_types=types)
    return model


def _check_annealing(sections: ExperimentConfig, model: ModelConfig) -> list[str]:
    """Returns warnings about data.attention_annealing_steps. Raises ConfigError where no attention can open."""
    steps, reason = sections.data.attention_annealing_steps, ""
    if model.architecture != "decoder_only":
        reason = f"needs model.architecture='decoder_only', not {model.architecture!r}"
    elif not model.has_prefix:
        reason = "has no effect, because this objective reads every row causally"
    if reason:
        raise ConfigError(f"data.attention_annealing_steps={steps} {reason}: set it to 0")
    if steps > sections.train.assumed_steps:
        return [
            f"data.attention_annealing_steps={steps} is above train.steps={sections.train.steps}: the run ends before "
            "all attention is open, as it is in evaluations"
        ]
    return []


def check_places(denoisers: Sequence[Denoiser], model: ModelConfig, data: DataConfig) -> None:
    """Raises ConfigError for fields that read places in a row, where these are not the positions of the tokens."""
    steps = data.attention_annealing_steps
    for denoiser in (each for each in denoisers if each.objective.has_blocks or each.objective.has_positions):
        objective, name = denoiser.objective, f"{denoiser.field} ({type(denoiser.objective).__name__})"
        rows = f"whose {'rows repeat each text' if objective.has_blocks else 'targets have positions of their own'}"
        if model.positions in ("relative", "none"):
            raise ConfigError(
                f"model.positions={model.positions!r} does not say where in the text a token is, and does not go with "
                f"{name}, {rows}: use 'rope' or 'learned'"
            )
        if steps and objective.has_blocks:
            raise ConfigError(
                f"data.attention_annealing_steps={steps} opens attention to what is later in a row, and does not go "
                f"with {name}, {rows}: set it to 0"
            )


def _check_special_tokens(denoisers: Sequence[Denoiser], sections: ExperimentConfig, vocab: Vocab) -> None:
    """Raises ConfigError where `vocab` lacks a special token of a denoiser: data.append_special_tokens is False."""
    is_start = sections.train.init_from and sections.train.init_from_vocabulary == "equal"  # of a model without it
    remedy = "data.append_special_tokens=True" + (" and train.init_from_vocabulary='by_token'" if is_start else "")
    for denoiser in denoisers:
        roles = denoiser.objective.special_tokens(sections.model["architecture"])
        missing = [GENERAL_NAMES[role] for role in roles if getattr(vocab, role) < 0]
        if denoiser.mode and denoiser.mode not in dict(vocab.modes) and denoiser.mode in sections.data.mode_tokens:
            missing.append(denoiser.mode)
        if not vocab.num_sentinels and denoiser.objective.num_sentinels(np.array([1, 2, 3])).any():
            missing.append(sentinel_name(0))
        if missing:
            raise ConfigError(
                f"{denoiser.field} ({type(denoiser.objective).__name__}) needs the special token {missing[0]}, which "
                f"data.tokenizer={sections.data.tokenizer!r} lacks: set {remedy}"
            )


def _learner_setup(sections: ExperimentConfig, num_groups: int, most_scored: int) -> LearnerSetup:
    """Returns the fields of the config that learners use."""
    return LearnerSetup(
        loss=sections.loss,
        distillation=sections.distillation,
        num_groups=num_groups,
        inputs_length=sections.data.inputs_length,
        most_scored=most_scored,
        examples_per_row=sections.data.examples_per_row,
        batch_size=sections.train.batch_size,
        grad_accum_steps=sections.train.grad_accum_steps,
        backend=sections.mesh.backend,
    )


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
