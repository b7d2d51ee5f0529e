"""What train.show shows, before it is written for a terminal or as HTML: plain text, runs of tokens, numbers."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from contract.batch import Batch, check_batch
from data.batches import excluded
from data.documents import Documents
from train.experiment import Experiment
from train.show.counts import STATISTICS, Count, Totals, beside_expected, measure, notes
from train.show.examples import chunk_numbers, chunks, expected_shares, take_apart
from train.show.rows import Row, rows_of, strips_of

_COUNTED_POSITIONS = 1 << 22


class DenoiserFacts(NamedTuple):
    name: str
    mode: str
    share: str  # of the examples
    window: str
    objective: str
    fields: str


@dataclasses.dataclass(frozen=True)
class Page:
    title: str
    facts: list[tuple[str, str]]
    warnings: list[str]
    denoisers: list[DenoiserFacts]
    rows: list[Row]
    counts: dict[str, dict[str, Count]]  # denoiser, statistic
    counted: str  # what the counts are of
    notes: list[str]

    @property
    def statistics(self) -> list[str]:
        """Names of the statistics to show: those that are known of any denoiser, and shares where there are several."""
        tables = self.counts.values()
        known = {name for counts in tables for name, count in counts.items() if not math.isnan(count.measured)}
        return [name for name in STATISTICS if name in known and (name != "share" or len(tables) > 1)]


def make_page(experiment: Experiment, documents: Documents, *, title: str, num_examples: int) -> Page:
    """Reads rows as training does, counts over many of them, and picks `num_examples` to show, of every denoiser."""
    dataset, chunk_rows = chunks(experiment, documents)
    positions = sum(strip.states.size for strip in strips_of(dataset[0].batch, 0))
    num_chunks = math.ceil(max(_COUNTED_POSITIONS / positions, num_examples) / chunk_rows)
    numbers = chunk_numbers(experiment, num_chunks, chunk_rows)
    num_rows = num_chunks * chunk_rows
    totals = Totals(len(experiment.collator.denoisers))
    denoiser_ids, row, problems = [], [], []
    for n in numbers:
        chunk = dataset[n]
        problems += _problems(chunk.batch, experiment.model.architecture)
        examples = take_apart(chunk)
        totals.add(examples.denoiser_ids, measure(examples, experiment.tokenizer.vocab))
        denoiser_ids.append(examples.denoiser_ids)
        row.append(examples.rows + n * chunk_rows)
    shown: list[Row] = []
    first = np.cumsum([0, *map(len, denoiser_ids)])
    chosen = pick(np.concatenate(denoiser_ids), np.concatenate(row), num_examples)
    for n in np.unique(np.searchsorted(first, chosen, side="right") - 1):
        here = chosen[(chosen >= first[n]) & (chosen < first[n + 1])] - first[n]
        number = 1 + sum(len(row.examples) for row in shown)
        shown += rows_of(experiment, dataset[numbers[n]], numbers[n] * chunk_rows, here, number)
    facts = _facts(experiment, documents)
    if not problems:
        facts.append(("checked", f"dtypes, shift, segments and padding of {num_rows:,} rows"))
    counts = beside_expected(totals, experiment, expected_shares(experiment, numbers, chunk_rows))
    return Page(
        title=title,
        facts=facts,
        warnings=[*experiment.warnings, *problems[:1]],
        denoisers=_denoisers(experiment),
        rows=shown,
        counts=counts,
        counted=f"{num_rows:,} rows, {totals.examples.sum():,} examples, {totals.raw_tokens:,} raw tokens",
        notes=notes(
            counts, totals, scores_on_device=any(d.objective.device_note for d in experiment.collator.denoisers)
        ),
    )


def pick(denoiser_ids: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    """n of E examples, ascending, of denoisers `source` and in rows `rows`, int [E] each; rows do not decrease.

    First comes one of each denoiser, then the first row that holds several, since that shows how a row is shared, then
    the first examples.
    """
    shared = np.flatnonzero(np.diff(rows) == 0)[:1]
    wanted = [
        np.sort(np.unique(denoiser_ids, return_index=True)[1]),
        np.flatnonzero(np.isin(rows, rows[shared])),
        np.arange(min(n, len(denoiser_ids))),
    ]
    ordered, first = np.unique(np.concatenate(wanted), return_index=True)
    return np.sort(ordered[np.argsort(first)][:n])


def _problems(batch: Batch, architecture: str) -> list[str]:
    try:
        check_batch(batch, architecture)
    except ValueError as error:
        return [f"the batch is not what models expect: {error}"]
    return []


def _facts(experiment: Experiment, documents: Documents) -> list[tuple[str, str]]:
    shape, data, config = experiment.collator.shape, experiment.data, experiment.config["objective"]
    own = _fields({key: value for key, value in config.items() if key not in _SHOWN_ELSEWHERE})
    stacks = {
        "encoder_decoder": f"an encoder of {shape.inputs_length} positions, a decoder of {shape.targets_length}",
        "encoder_only": f"an encoder of {shape.inputs_length} positions",
        "decoder_only": f"a decoder of {shape.inputs_length} positions, "
        f"bidirectional_inputs {experiment.collator.bidirectional_inputs}",
    }
    of_row = f"{shape.examples_per_row} window{'s' if shape.examples_per_row > 1 else ''} in each"
    of_row += ", planned to fill it" if experiment.collator.plan else ""
    denoisers = experiment.collator.denoisers
    several = len(denoisers) > 1
    return [
        ("objective", experiment.objective_name + (f", {own}" if several and own else "")),
        *_schedule(experiment),
        *([("all denoisers", _fields(common))] if (common := _common_fields(experiment)) else []),
        ("architecture", f"{shape.architecture}: {stacks[shape.architecture]}"),
        ("rows", f"{experiment.train.batch_size} in a batch, {of_row}"),
        ("text", f"{data.source} {data.path}".strip() + f", {len(documents):,} {documents.label} documents"),
        *(("left out", what) for what in excluded(documents, experiment.collator.specs)),
        ("windows", f"documents are {_DOCUMENTS[data.documents]}"),
        ("tokenizer", f"{data.tokenizer}, {experiment.tokenizer.vocab.size:,} ids"),
        *(("in the step", one) for one in dict.fromkeys(d.objective.device_note for d in denoisers) if one),
    ]


_SHOWN_ELSEWHERE = ("name", "denoisers", "schedule", "begin_step", "end_step")


def _schedule(experiment: Experiment) -> list[tuple[str, str]]:
    if not any(spec.ramp for spec in experiment.collator.specs):
        return []
    config = experiment.config["objective"]
    steps = f"steps {config['begin_step']:,} and {config['end_step']:,}"
    between = f"each share goes in a straight line from its first to its last between {steps}"
    return [("schedule", f"{config['schedule']}: {between}; held-out examples have the mean of both")]


_DOCUMENTS = {
    "join": "joined: a window runs on across their ends",
    "pack": "packed: each one's part of a window is an example of its own",
    "split": "split: a window stops at the end of its document",
    "whole": "whole: a window is as many as fit in a row, each an example of its own",
}


def _common_fields(experiment: Experiment) -> dict[str, Any]:
    """The fields that are the same in all rows of a table of several."""
    first, *others = [vars(denoiser.objective) for denoiser in experiment.collator.denoisers]
    return {name: value for name, value in first.items() if others and all((name, value) in o.items() for o in others)}


def _denoisers(experiment: Experiment) -> list[DenoiserFacts]:
    found, final = [], sum(spec.final_weight for spec in experiment.collator.specs)
    common = _common_fields(experiment)
    for k, (denoiser, spec) in enumerate(zip(experiment.collator.denoisers, experiment.collator.specs, strict=True)):
        share = f"{spec.weight:.1%}" + (f" → {spec.final_weight / final:.1%}" if spec.ramp else "")
        objective = denoiser.objective
        names = [field.name for field in dataclasses.fields(objective) if field.name not in common]
        fields = {name: getattr(objective, name) for name in names}
        window = f"{experiment.collator.window(k)} tokens" if spec.documents != "whole" else "as many as fit"
        window += ", with EOS" if spec.eos else ""
        name = type(objective).__name__
        found.append(DenoiserFacts(denoiser.name, denoiser.mode, share, window, name, _fields(fields)))
    return found


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())
