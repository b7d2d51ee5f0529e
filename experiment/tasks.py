"""Tasks, and the windows that they read: each denoiser of a run on each corpus that it reads.

seqio calls a corpus with its preprocessing a task. Corpora have rates (data/windows/documents.py, `rates`). Within a
corpus, the denoisers that read it have shares in proportion to their weights. So the corpora have their rates whatever
the denoisers are, and a denoiser that reads all corpora has its share in each of them. A run of one corpus has a task
for each denoiser.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import BatchSpec
from data.sources import check_source
from data.sources.config import OF_EACH_CORPUS
from data.store.store import TokenStore
from data.windows.leak_guard import have_equal_documents
from experiment.config import DataConfig, ExperimentConfig
from objectives import Denoiser, Mixture, Objective
from objectives.objective import RowShape
from objectives.rows.window_specs import make_batch_spec

# Fields of config.data for a run of several corpora, and the values that a config without data.sources must have.
_OF_SEVERAL = {"mix_by": "example", "rates": "weight", "rates_maximum": 0, "rates_temperature": 1.0}


def make_tasks(denoisers: Sequence[Denoiser], data: DataConfig) -> tuple[Denoiser, ...]:
    """Returns the tasks, in the order of the denoisers and then of data.sources; `denoisers` in a run of one corpus.

    The name of a task is "denoiser/corpus". Its weight is the weight of its corpus times the denoiser's share of it.

    Raises ConfigError for a denoiser that names an unknown corpus or has the name of a corpus, for a corpus that no
    denoiser reads, and for one that no denoiser reads at the start or at the end of the run.
    """
    for denoiser in denoisers:
        for name in denoiser.corpora:
            if name not in data.sources:
                known = f"one of {', '.join(map(repr, data.sources))}" if data.sources else "(): data.sources is empty"
                raise ConfigError(f"{denoiser.field}.corpora names {name!r}, which is no corpus: use {known}")
        if len(set(denoiser.corpora)) < len(denoiser.corpora):
            raise ConfigError(f"{denoiser.field}.corpora={denoiser.corpora} must name each corpus once")
        if denoiser.name in data.sources:
            raise ConfigError(
                f"data.sources.{denoiser.name} has the name of a denoiser, and loss/{denoiser.name} would be the "
                "metric of both: rename the corpus"
            )
    return _divided(denoisers, data) if data.sources else tuple(denoisers)


def _divided(denoisers: Sequence[Denoiser], data: DataConfig) -> tuple[Denoiser, ...]:
    """Returns a task for each denoiser on each corpus that it reads."""
    totals = {name: _total_weights(denoisers, name) for name in data.sources}
    return tuple(
        dataclasses.replace(
            denoiser,
            name=f"{denoiser.name}/{name}",
            weight=source.weight * denoiser.weight / totals[name][0],
            final_weight=source.weight * denoiser.final_weight / totals[name][1],
            corpus=corpus,
            documents=source.documents or None,
            documents_field=f"data.sources.{name}.documents"
            + ("" if source.documents else "='' and so data.documents"),
        )
        for denoiser in denoisers
        for corpus, (name, source) in enumerate(data.sources.items())
        if _reads(denoiser, name)
    )


def check_sources(sections: ExperimentConfig) -> None:
    """Raises ConfigError for a table data.sources that cannot work, or fields that do not go with it."""
    data = sections.data
    required, cause = (OF_EACH_CORPUS, "names the corpora") if data.sources else (_OF_SEVERAL, "is empty")
    for field, value in required.items():
        if getattr(data, field) != value:
            instead = f", and data.sources.*.{field} instead" if data.sources else ""
            raise ConfigError(
                f"data.{field}={getattr(data, field)!r} is not read, because data.sources {cause}: set it to "
                f"{value!r}{instead}"
            )
    if data.sources:
        _check_table(sections)
    else:
        check_source(data.source)


def _check_table(sections: ExperimentConfig) -> None:
    """Raises ConfigError for a table of several corpora that cannot work, or fields that do not go with it."""
    data = sections.data
    for name, source in data.sources.items():
        if not (name.isidentifier() and name.isascii()) or hasattr(ConfigDict(), name):
            raise ConfigError(
                f"data.sources names a corpus {name!r}, and the command line has no fields of that name: use letters, "
                "digits and '_', no digit first, and no attribute of a ConfigDict"
            )
        try:
            check_source(source.source)
        except ConfigError as error:
            raise corpus_error(error, name) from None
    if data.rates == "weight":
        for field in ("rates_maximum", "rates_temperature"):
            if getattr(data, field) != _OF_SEVERAL[field]:
                raise ConfigError(
                    f"data.{field}={getattr(data, field)} is read with data.rates='num_examples': set that, or "
                    f"data.{field}={_OF_SEVERAL[field]}"
                )
    elif data.packing == "planned":
        raise ConfigError(
            "data.packing='planned' plans rows before the corpora are read, and data.rates='num_examples' counts their "
            "documents: set data.packing='equal', or data.rates='weight'"
        )
    if sections.train.epochs:
        raise ConfigError(
            f"train.epochs={sections.train.epochs} is passes over one corpus, and data.sources has several, which are "
            "repeated at their own rates: set train.steps instead, and train.epochs=0"
        )


def make_batch_specs(
    tasks: Sequence[Denoiser],
    sections: ExperimentConfig,
    objective: Objective | Mixture,
    row_shape: RowShape,
    vocab: Vocab,
) -> tuple[BatchSpec, BatchSpec, list[str]]:
    """Returns the windows of training batches and of held-out batches, and warnings to print.

    tasks: of `make_tasks`. Raises ConfigError as objectives.rows.window_specs.make_batch_spec does, and for schedules
    that do not fit the run.
    """
    data = sections.data
    for task in (task for task in tasks if task.schedule):
        _check_end(f"{task.field}.{task.schedule.end_field}", task.schedule.end_step, sections)
    make_spec = functools.partial(
        make_batch_spec,
        tasks,
        vocab=vocab,
        documents=data.documents,
        mix_by=_mixed_by(objective, data),
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
    _check_end("objective.end_step", mixture.end_step, sections)
    examples_per_step = sections.train.batch_size * sections.data.examples_per_row
    return mixture.begin_step * examples_per_step, mixture.end_step * examples_per_step


def _check_end(field: str, end_step: int, sections: ExperimentConfig) -> None:
    """Raises ConfigError for a schedule that the run does not reach the end of, which the config field `field` sets."""
    if sections.train.epochs:
        raise ConfigError(
            f"train.epochs={sections.train.epochs} does not go with {field}, which needs the number of steps: set "
            "train.steps instead, and train.epochs=0"
        )
    if end_step > sections.train.steps:
        raise ConfigError(
            f"{field}={end_step} must be train.steps={sections.train.steps} or less, or the run would end before the "
            "schedule's final values"
        )


def _mixed_by(objective: Objective | Mixture, data: DataConfig) -> str:
    """Returns what the weights of denoisers and corpora are shares of, "example" or "token".

    Raises ConfigError where data.mix_by and a mixture's objective.mix_by differ.
    """
    if not isinstance(objective, Mixture):
        return data.mix_by
    if data.sources and data.mix_by != objective.mix_by:
        raise ConfigError(
            f"data.mix_by={data.mix_by!r} and objective.mix_by={objective.mix_by!r} differ, and corpora and denoisers "
            "are mixed together: set both to the same value"
        )
    return objective.mix_by


def check_different(stores: Mapping[str, TokenStore], data: DataConfig) -> None:
    """Raises ConfigError for two corpora of the same documents of the same files, read in the same way.

    stores: the token store of each corpus, by name. data: of the run.
    """
    for first, second in itertools.combinations(stores, 2):
        handling = {data.sources[name].documents or data.documents for name in (first, second)}
        if len(handling) == 1 and have_equal_documents(stores[first], stores[second]):
            raise ConfigError(
                f"data.sources.{first} and data.sources.{second} are the same documents of the same files, which one "
                "corpus with a higher weight means too: remove one of them"
            )


def corpus_error(error: ConfigError, name: str) -> ConfigError:
    """Returns an error of the corpus `name`, which names the fields of data.sources instead of those of data."""
    fields = rf"\bdata\.({'|'.join(OF_EACH_CORPUS)}|documents)\b"
    return ConfigError(f"corpus {name!r}: " + re.sub(fields, rf"data.sources.{name}.\1", str(error)))


def _reads(denoiser: Denoiser, corpus: str) -> bool:
    return not denoiser.corpora or corpus in denoiser.corpora


def _total_weights(denoisers: Sequence[Denoiser], corpus: str) -> tuple[float, float]:
    """Returns the sums of the initial and of the final weights of the denoisers that read a corpus."""
    reading = [denoiser for denoiser in denoisers if _reads(denoiser, corpus)]
    if not reading:
        raise ConfigError(
            f"data.sources.{corpus} is read by no denoiser: name it in the corpora of one, or remove it from "
            "data.sources"
        )
    totals = sum(denoiser.weight for denoiser in reading), sum(denoiser.final_weight for denoiser in reading)
    for total, field in zip(totals, ("weight", "final_weight"), strict=True):
        if not total:
            raise ConfigError(
                f"every {field} of the denoisers that read data.sources.{corpus} is 0 "
                f"({', '.join(denoiser.field for denoiser in reading)}): give at least one a share"
            )
    return totals
