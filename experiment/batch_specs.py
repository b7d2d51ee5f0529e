"""The windows of training batches and of held-out batches that a config describes."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import BatchSpec
from experiment.config import ExperimentConfig
from experiment.tasks import mixed_by
from objectives import Denoiser, Mixture, Objective
from objectives.rows.lengths import RowShape
from objectives.rows.window_specs import make_batch_spec


def make_batch_specs(
    tasks: Sequence[Denoiser],
    sections: ExperimentConfig,
    objective: Objective | Mixture,
    row_shape: RowShape,
    vocab: Vocab,
) -> tuple[BatchSpec, BatchSpec, list[str]]:
    """Returns the windows of training batches and of held-out batches, and warnings to print.

    tasks: of experiment.tasks.make_tasks. Raises ConfigError as objectives.rows.window_specs.make_batch_spec does, and for a
    schedule of weights that does not fit the run.
    """
    data = sections.data
    make_spec = functools.partial(
        make_batch_spec,
        tasks,
        vocab=vocab,
        documents=data.documents,
        mix_by=mixed_by(objective, data),
        ramp=_ramp(objective, sections) if isinstance(objective, Mixture) else None,
        on_unusable=data.on_unusable,
    )
    batch_spec, warnings = make_spec(row_shape=row_shape, packing=data.packing)
    return batch_spec, batch_spec if batch_spec.plan is None else _unplanned(make_spec, row_shape), warnings


def _unplanned(make_spec: Callable[..., tuple[BatchSpec, list[str]]], row_shape: RowShape) -> BatchSpec:
    """Returns the windows of rows with equal parts, each window in a row of its own.

    In equal parts of a row that is planned, the windows' targets may not fit; in a row of their own they do.
    """
    shape = dataclasses.replace(row_shape, targets_length=row_shape.targets_length * row_shape.examples_per_row)
    return dataclasses.replace(make_spec(row_shape=shape, packing="equal")[0], examples_per_row=1)


def _ramp(mixture: Mixture, sections: ExperimentConfig) -> tuple[int, int] | None:
    """Returns the example numbers between which the mixture's weights change; None if the weights are constant."""
    if all(row.weight == row.final_weight for row in mixture.denoisers.values()):
        return None
    if sections.train.epochs:
        raise ConfigError(
            f"train.epochs={sections.train.epochs} does not go with objective.schedule='linear', whose begin_step and "
            "end_step are steps: set train.steps instead, and train.epochs=0"
        )
    if mixture.end_step > sections.train.steps:
        raise ConfigError(
            f"objective.end_step={mixture.end_step} must be train.steps={sections.train.steps} or less, "
            "or the run would end before the weights reach their final values"
        )
    examples_per_step = sections.train.batch_size * sections.data.examples_per_row
    return mixture.begin_step * examples_per_step, mixture.end_step * examples_per_step
