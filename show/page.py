"""The contents of the page of train.show: facts, examples and statistics, which show/terminal.py prints."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from command.program import plural
from contract.batch import check_batch
from data.windows.corpus_statistics import coverage_warnings
from data.windows.document_filter import describe_excluded
from data.windows.documents import Documents, MixedDocuments
from experiment.experiment import Experiment
from experiment.objective import with_steps
from objectives import Denoiser
from objectives.objective import Phases
from run.corpus import describe_rates, of_corpus, open_corpora
from show.examples import Chunk, chunk_numbers, chunks, examples_of, expected_shares, measure
from show.rows import KINDS, Row, rows_of, stack_rows_of
from show.statistics import STATISTICS, Statistic, Totals, compare, notes

_DOCUMENTS = {
    "join": "joined: a window continues across the ends of documents",
    "pack": "packed: each document's part of a window is a separate example",
    "split": "split: a window ends where its document ends",
    "whole": "whole: a window is as many documents as fit in a row, each a separate example",
}
_SHOWN_ELSEWHERE = ("name", "denoisers", "schedule", "begin_step", "end_step")


class DenoiserFacts(NamedTuple):
    """One denoiser of the objective, as text."""

    name: str
    mode: str
    share: str  # of the examples
    window: str
    objective: str
    fields: str


def experiment_facts(
    experiment: Experiment, documents: Documents | MixedDocuments, heldout: Documents | MixedDocuments | None = None
) -> list[tuple[str, str]]:
    """Returns (name, value) of each fact about the objective, the architecture and the data, as for `make_page`."""
    data, config = experiment.data, with_steps(experiment.config["objective"], experiment.train.steps)
    own = _written({key: value for key, value in config.items() if key not in _SHOWN_ELSEWHERE})
    windows = f"{plural(experiment.row_shape.examples_per_row, 'window')} per row"
    windows += ", planned so that the row is full" if experiment.batch_spec.plan else ""
    schedule = [("schedule", _change_of(row)) for row in experiment.denoisers if row.schedule]
    if any(spec.ramp for spec in experiment.window_specs):
        change = f"shares change linearly between steps {config['begin_step']:,} and {config['end_step']:,}"
        schedule += [("schedule", f"{change}; held-out examples have the mean of the initial and the final shares")]
    notes = dict.fromkeys(denoiser.objective.device_note for denoiser in experiment.denoisers)
    return [
        ("objective", experiment.objective_name + (f", {own}" if len(experiment.denoisers) > 1 and own else "")),
        *schedule,
        ("architecture", _architecture(experiment)),
        ("batch", f"{plural(experiment.train.batch_size, 'row')}, {windows}"),
        *_text_facts(experiment, documents, heldout),
        ("tokenizer", f"{data.tokenizer}, {experiment.vocab.size:,} ids"),
        *(("training step", note) for note in notes if note),
    ]


def _text_facts(
    experiment: Experiment, documents: Documents | MixedDocuments, heldout: Documents | MixedDocuments | None
) -> list[tuple[str, str]]:
    """Returns (name, value) of the facts about each corpus, and about the rates of several."""
    data, facts = experiment.data, []
    handling: dict[str, list[str]] = {}  # names of the corpora with each value of data.documents
    for number, (name, own) in enumerate(data.of_corpora().items()):
        part = documents.by_corpus[number]
        specs = [spec for spec in experiment.window_specs if spec.corpus == number]
        text = f"{own.source} {own.path}".strip() + f", {plural(len(part), 'document')} to train on"
        text += f", {len(heldout.by_corpus[number]):,} held out" if heldout is not None else ""
        facts.append(("text", of_corpus(name) + text))
        facts += [("excluded", of_corpus(name) + what) for what in describe_excluded(part, specs)]
        handling.setdefault(specs[0].documents, []).append(name)
    if data.sources:
        facts.append(("rates", describe_rates(data, documents.factors)))
    for value, names in handling.items():
        of = f"{', '.join(names)}: " if len(handling) > 1 else ""
        facts.append(("windows", f"{of}documents are {_DOCUMENTS[value]}"))
    return facts


def _corpus_warnings(experiment: Experiment, documents: Documents | MixedDocuments) -> list[str]:
    """Returns the warnings about what the tokenizer loses of each corpus, as the summary of a run has them."""
    names, parts = experiment.data.of_corpora(), documents.by_corpus
    return [
        of_corpus(name) + line
        for name, part in zip(names, parts, strict=True)
        for line in coverage_warnings(part.store, experiment.tokenizer)
    ]


def denoiser_facts(experiment: Experiment, factors: Sequence[float] = ()) -> list[DenoiserFacts]:
    """Returns the objective's table of denoisers, divided by corpora; one row for one denoiser of one corpus.

    factors: MixedDocuments.factors; () where the corpora are not known, and with them the effect of data.rates.
    """
    specs, found = experiment.window_specs, []
    factor_of = np.array([factors[spec.corpus] if factors else 1.0 for spec in specs])
    weights, final_weights = (
        np.array([getattr(spec, field) for spec in specs]) * factor_of for field in ("weight", "final_weight")
    )
    for k, (denoiser, spec) in enumerate(zip(experiment.tasks, specs, strict=True)):
        share = f"{weights[k] / weights.sum():.1%}"
        share += f" → {final_weights[k] / final_weights.sum():.1%}" if spec.ramp else ""
        share += " of tokens" if experiment.batch_spec.mix_by == "token" else ""
        objective = denoiser.objective
        names = [field.name for field in dataclasses.fields(objective)]
        ends = {name: dict.fromkeys(str(getattr(end, name)) for end in denoiser.ends) for name in names}
        fields = _written({name: " → ".join(values) for name, values in ends.items()})
        window = f"{experiment.window_length(k)} tokens" if spec.documents != "whole" else "whole documents"
        window += ", with EOS" if spec.eos else ""
        found.append(DenoiserFacts(denoiser.name, denoiser.mode, share, window, type(objective).__name__, fields))
    return found


def _change_of(denoiser: Denoiser) -> str:
    schedule, names = denoiser.schedule, " and ".join(denoiser.schedule.fields)
    if isinstance(schedule, Phases):
        at = "step" if len(schedule.begins) == 1 else "steps"
        change = f"change of {names} at once, at the {at} {', '.join(f'{step:,}' for step in schedule.begins)}"
    else:
        change = f"linear change of {names} between steps {schedule.begin_step:,} and {schedule.end_step:,}"
    return f"{denoiser.name}: {change}; held-out examples have the final values"


def _architecture(experiment: Experiment) -> str:
    shape = experiment.row_shape
    stacks = {
        "encoder_decoder": f"encoder of {shape.inputs_length} positions, decoder of {shape.targets_length}",
        "encoder_only": f"encoder of {shape.inputs_length} positions",
        "decoder_only": f"decoder of {shape.inputs_length} positions",
    }
    objectives = [denoiser.objective for denoiser in experiment.denoisers]
    if shape.architecture == "decoder_only" and any(
        objective.has_inputs and not (objective.causal or objective.in_place) for objective in objectives
    ):
        stacks["decoder_only"] += f", data.bidirectional_inputs={experiment.data.bidirectional_inputs}"
    return f"{shape.architecture}: {stacks[shape.architecture]}"


def _written(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())


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
    # Name of the denoiser, name of the statistic. Pages of given texts have none.
    statistics: dict[str, dict[str, Statistic]] = dataclasses.field(default_factory=dict)
    measured_on: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

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


def open_page(
    experiment: Experiment, *, title: str, num_examples: int | None = None, show_progress: bool = True
) -> Page:
    """Returns the page of the training text that `experiment` names. Builds the token store if it does not exist.

    num_examples: None: one of each denoiser, at least 3. show_progress: whether a bar is shown while it is built.

    Raises ConfigError as data.store.store.open_or_build and data.windows.split.split_documents do.
    """
    corpora = open_corpora(experiment, show_progress=show_progress)
    train, heldout = corpora.train_documents, corpora.heldout_documents
    num_examples = default_num_examples(experiment, num_examples)
    return make_page(experiment, train, title=title, num_examples=num_examples, heldout=heldout)


def default_num_examples(experiment: Experiment, num_examples: int | None) -> int:
    """Returns `num_examples`, or if it is None one example of each denoiser, at least 3."""
    return max(_MIN_EXAMPLES, len(experiment.tasks)) if num_examples is None else num_examples


def make_page(
    experiment: Experiment,
    documents: Documents | MixedDocuments,
    *,
    title: str,
    num_examples: int,
    heldout: Documents | MixedDocuments | None = None,
) -> Page:
    """Reads rows as training does, measures them, and returns a page with `num_examples` of their examples.

    heldout: the held-out documents, whose number is a fact of the page; None: it is not.
    """
    dataset, chunk_rows = chunks(experiment, documents)
    positions = sum(stack_row.states.size for stack_row in stack_rows_of(dataset[0].batch, 0))
    num_chunks = math.ceil(max(_MEASURED_POSITIONS / positions, num_examples) / chunk_rows)
    numbers = chunk_numbers(experiment, num_chunks, chunk_rows)
    totals = Totals(len(experiment.tasks))
    denoiser_ids, row_ids, steps, errors = [], [], [], []
    masks_inputs = any(denoiser.objective.masks_inputs for denoiser in experiment.denoisers)
    mask = experiment.vocab.mask if masks_inputs else -1
    for n in numbers:
        chunk = dataset[n]
        try:
            check_batch(chunk.batch, experiment.model.architecture, mask)
        except ValueError as error:
            errors.append(f"invalid batch: {error}")
        examples = examples_of(chunk, experiment.vocab)
        totals.add(examples.denoiser_ids, measure(examples, experiment.vocab))
        denoiser_ids.append(examples.denoiser_ids)
        row_ids.append(examples.rows + n * chunk_rows)
        steps.append(chunk.windows.row_steps[examples.rows])
    rows: list[Row] = []
    begin = np.cumsum([0, *map(len, denoiser_ids)])  # the number of each chunk's first example
    chosen = choose(np.concatenate(denoiser_ids), np.concatenate(row_ids), num_examples)
    for k in np.unique(np.searchsorted(begin, chosen, side="right") - 1):
        of_chunk = chosen[(chosen >= begin[k]) & (chosen < begin[k + 1])] - begin[k]
        number = 1 + sum(len(row.examples) for row in rows)
        rows += rows_of(experiment, dataset[numbers[k]], numbers[k] * chunk_rows, of_chunk, number)
    facts, num_rows = experiment_facts(experiment, documents, heldout), len(numbers) * chunk_rows
    if not errors:
        facts.append(("checked", f"dtypes, shift, segments and padding of {num_rows:,} rows"))
    of_denoiser = np.concatenate(denoiser_ids) == np.arange(len(experiment.tasks))[:, None]
    steps_of = [np.concatenate(steps)[chosen] for chosen in of_denoiser]
    statistics = compare(totals, experiment, expected_shares(dataset, numbers), steps_of)
    scores_on_device = any(denoiser.objective.device_note for denoiser in experiment.denoisers)
    return Page(
        title=title,
        facts=facts,
        warnings=[*experiment.warnings, *_corpus_warnings(experiment, documents), *errors[:1]],
        denoisers=denoiser_facts(experiment, documents.factors),
        rows=rows,
        statistics=statistics,
        measured_on=f"{num_rows:,} rows, {totals.examples.sum():,} examples, {totals.raw_tokens:,} raw tokens",
        notes=notes(statistics, totals, scores_on_device=scores_on_device),
    )


def make_page_of_rows(experiment: Experiment, chunks_: Sequence[Chunk], *, title: str) -> Page:
    """Returns a page with all examples of `chunks_`, without statistics."""
    rows: list[Row] = []
    for chunk in chunks_:
        examples = np.arange(len(chunk.windows.row_ids))
        rows += rows_of(experiment, chunk, len(rows), examples, 1 + sum(len(row.examples) for row in rows))
    return Page(
        title=title,
        facts=[
            ("objective", experiment.objective_name),
            ("architecture", _architecture(experiment)),
            ("tokenizer", f"{experiment.data.tokenizer}, {experiment.vocab.size:,} ids"),
        ],
        warnings=list(experiment.warnings),
        denoisers=denoiser_facts(experiment),
        rows=rows,
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
