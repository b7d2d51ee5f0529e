"""The contents of the page of train.show, which is then written as text, HTML or SVG."""

import dataclasses
import math

import numpy as np

from contract.batch import Batch, check_batch
from data.windows.documents import Documents, MixedDocuments
from experiment.experiment import Experiment
from run.corpus import open_corpora
from show.examples import Chunk, chunk_numbers, chunks, examples_of, expected_shares
from show.facts import (
    DenoiserFacts,
    denoiser_facts,
    experiment_facts,
    layout_facts,
)
from show.measure import measure
from show.rows import Row, rows_of, stack_rows_of
from show.statistics import STATISTICS, Statistic, Totals, compare, notes
from show.text import KINDS

_MEASURED_POSITIONS = 1 << 22
_MIN_EXAMPLES = 3  # lower bound of the default number of examples


@dataclasses.dataclass(frozen=True)
class Page:
    """The contents of the page: plain text, runs of tokens, numbers."""

    title: str
    facts: list[tuple[str, str]]
    warnings: list[str]
    denoisers: list[DenoiserFacts]
    rows: list[Row]
    statistics: dict[str, dict[str, Statistic]]  # name of the denoiser, name of the statistic
    measured_on: str
    notes: list[str]

    @property
    def columns(self) -> list[str]:
        """The statistics to show: those that some denoiser has, and "share" if there are several denoisers."""
        tables = self.statistics.values()
        known = {name for table in tables for name, statistic in table.items() if not math.isnan(statistic.measured)}
        return [name for name in STATISTICS if name in known and (name != "share" or len(tables) > 1)]

    @property
    def samples(self) -> dict[str, str]:
        """The text of one run of each kind that is on the page, in the order of KINDS, for the legend."""
        sections = [section for row in self.rows for example in row.examples for section in example.sections]
        texts = {run.kind: run.text for section in reversed(sections) for run in reversed(section.runs)}
        return {kind: texts[kind] for kind in KINDS if kind in texts}


def open_page(experiment: Experiment, *, title: str, num_examples: int | None = None) -> Page:
    """Returns the page of the training text that `experiment` names. Builds the token store if it does not exist.

    num_examples: None: one of each denoiser, at least 3.

    Raises ConfigError as data.store.store.open_or_build and data.windows.split.split_documents do.
    """
    if num_examples is None:
        num_examples = max(_MIN_EXAMPLES, len(experiment.tasks))
    return make_page(experiment, open_corpora(experiment).train_documents, title=title, num_examples=num_examples)


def make_page(experiment: Experiment, documents: Documents | MixedDocuments, *, title: str, num_examples: int) -> Page:
    """Reads rows as training does, measures them, and returns a page with `num_examples` of their examples."""
    dataset, chunk_rows = chunks(experiment, documents)
    positions = sum(stack_row.states.size for stack_row in stack_rows_of(dataset[0].batch, 0))
    num_chunks = math.ceil(max(_MEASURED_POSITIONS / positions, num_examples) / chunk_rows)
    numbers = chunk_numbers(experiment, num_chunks, chunk_rows)
    totals = Totals(len(experiment.tasks))
    denoiser_ids, row_ids, errors = [], [], []
    for n in numbers:
        chunk = dataset[n]
        errors += _errors(chunk.batch, experiment.model.architecture)
        examples = examples_of(chunk)
        totals.add(examples.denoiser_ids, measure(examples, experiment.vocab))
        denoiser_ids.append(examples.denoiser_ids)
        row_ids.append(examples.rows + n * chunk_rows)
    rows: list[Row] = []
    begin = np.cumsum([0, *map(len, denoiser_ids)])  # the number of each chunk's first example
    chosen = choose(np.concatenate(denoiser_ids), np.concatenate(row_ids), num_examples)
    for k in np.unique(np.searchsorted(begin, chosen, side="right") - 1):
        of_chunk = chosen[(chosen >= begin[k]) & (chosen < begin[k + 1])] - begin[k]
        number = 1 + sum(len(row.examples) for row in rows)
        rows += rows_of(experiment, dataset[numbers[k]], numbers[k] * chunk_rows, of_chunk, number)
    facts, num_rows = experiment_facts(experiment, documents), num_chunks * chunk_rows
    if not errors:
        facts.append(("checked", f"dtypes, shift, segments and padding of {num_rows:,} rows"))
    statistics = compare(totals, experiment, expected_shares(dataset, numbers))
    scores_on_device = any(denoiser.objective.device_note for denoiser in experiment.denoisers)
    return Page(
        title=title,
        facts=facts,
        warnings=[*experiment.warnings, *errors[:1]],
        denoisers=denoiser_facts(experiment, documents.factors),
        rows=rows,
        statistics=statistics,
        measured_on=f"{num_rows:,} rows, {totals.examples.sum():,} examples, {totals.raw_tokens:,} raw tokens",
        notes=notes(statistics, totals, scores_on_device=scores_on_device),
    )


def make_page_of_rows(experiment: Experiment, chunk: Chunk, *, title: str) -> Page:
    """Returns a page with all examples of `chunk`, without statistics."""
    examples = np.arange(len(chunk.windows.row_ids))
    return Page(
        title=title,
        facts=layout_facts(experiment),
        warnings=list(experiment.warnings),
        denoisers=denoiser_facts(experiment),
        rows=rows_of(experiment, chunk, 0, examples, 1),
        statistics={},
        measured_on="",
        notes=[],
    )


def choose(denoiser_ids: np.ndarray, row_ids: np.ndarray, num_examples: int) -> np.ndarray:
    """Returns the indices of `num_examples` of E examples, ascending.

    In order of priority: the first example of each denoiser; the examples of the first row that has several, because
    the row shows how examples share a row; examples in their order.

    denoiser_ids, row_ids: int [E]; row_ids do not decrease.
    """
    shared = np.flatnonzero(np.diff(row_ids) == 0)[:1]
    candidates = [
        np.sort(np.unique(denoiser_ids, return_index=True)[1]),
        np.flatnonzero(np.isin(row_ids, row_ids[shared])),
        np.arange(min(num_examples, len(denoiser_ids))),
    ]
    distinct, priority = np.unique(np.concatenate(candidates), return_index=True)
    return np.sort(distinct[np.argsort(priority)][:num_examples])


def _errors(batch: Batch, architecture: str) -> list[str]:
    try:
        check_batch(batch, architecture)
    except ValueError as error:
        return [f"invalid batch: {error}"]
    return []
