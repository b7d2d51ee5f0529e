"""The rows that train.show shows: their examples as texts and numbers, their positions, their attention."""

import math
from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from train.experiment import Experiment
from train.show.attention import Picture, pictures
from train.show.counts import measure
from train.show.examples import Chunk, Examples, sides, take_apart
from train.show.text import Run, runs

PADDING, READ, SCORED = range(3)  # of a position, in a Strip


class Section(NamedTuple):
    """One text of an example: "raw", "inputs" or "targets"."""

    title: str
    runs: list[Run]


class Example(NamedTuple):
    number: int  # from 1, among those shown
    denoiser: str
    mode: str
    segment: int
    sections: list[Section]
    facts: str


class Strip(NamedTuple):
    """One stack's row, position by position."""

    title: str
    states: np.ndarray  # uint8 [L]: PADDING, READ or SCORED
    segments: np.ndarray  # int [L]

    @property
    def facts(self) -> str:
        padding = int((self.states == PADDING).sum())
        return f"{len(self.states) - padding} of {len(self.states)}, {padding} padding"


class Row(NamedTuple):
    batch: int
    row: int  # of the batch
    num_segments: int
    strips: list[Strip]
    examples: list[Example]
    pictures: list[Picture]


def rows_of(experiment: Experiment, chunk: Chunk, first_row: int, chosen: np.ndarray, number: int) -> list[Row]:
    """The rows that hold examples `chosen`, int [n], of a chunk whose first row is `first_row` of the run."""
    examples, found = take_apart(chunk), []
    measured = measure(examples, experiment.tokenizer.vocab)
    for row in np.unique(examples.rows[chosen]):
        shown = []
        for e in chosen[examples.rows[chosen] == row]:
            denoiser = experiment.collator.denoisers[examples.denoiser_ids[e]]
            sections = _sections(experiment, chunk.batch, examples, e)
            labels = experiment.collator.specs[examples.denoiser_ids[e]].classes or denoiser.objective.label_names
            facts = _example_facts(chunk.batch, examples, measured, e, labels)
            shown.append(Example(number, denoiser.name, denoiser.mode, int(examples.segments[e]), sections, facts))
            number += 1
        batch, row_of_batch = divmod(int(first_row + row), experiment.train.batch_size)
        num_segments = int((examples.rows == row).sum())
        strips = strips_of(chunk.batch, row)
        found.append(Row(batch, row_of_batch, num_segments, strips, shown, pictures(chunk.batch, row)))
    return found


def strips_of(batch: Batch, row: int) -> list[Strip]:
    found = []
    for side in sides(batch):
        segments = batch[f"{side}_segment_ids"][row]
        states = np.where(segments > 0, READ, PADDING).astype(np.uint8)
        if f"{side}_loss_weights" in batch:
            states[batch[f"{side}_loss_weights"][row] > 0] = SCORED
        found.append(Strip(side, states, segments))
    return found


def _sections(experiment: Experiment, batch: Batch, examples: Examples, e: int) -> list[Section]:
    tokenizer, row, segment = experiment.tokenizer, examples.rows[e], examples.segments[e]
    raw = examples.raw.tokens[e, : examples.raw.lengths[e]]
    found = [Section("raw", runs(raw, np.zeros(len(raw), bool), tokenizer))]
    for side in sides(batch):
        here = batch[f"{side}_segment_ids"][row] == segment
        inputs = batch[f"{side}_input_tokens"][row, here]
        if f"{side}_target_tokens" not in batch:
            found.append(Section("inputs", runs(inputs, np.zeros(len(inputs), bool), tokenizer)))
            continue
        targets, scored = batch[f"{side}_target_tokens"][row, here], batch[f"{side}_loss_weights"][row, here] > 0
        if side == "encoder":
            found.append(Section("inputs", runs(inputs, scored, tokenizer, shown=inputs == targets)))
        if side == "encoder" or "encoder_input_tokens" in batch:
            found.append(Section("targets", runs(targets, scored, tokenizer)))
        else:  # one sequence: what is read, then what is predicted, in as many turns as there are
            turns = np.split(np.arange(len(targets)), np.flatnonzero(np.diff(scored)) + 1)
            if scored[:1].all():
                found.append(Section("inputs", []))
            for turn in turns:
                title = "targets" if scored[turn].all() else "inputs"
                found.append(Section(title, runs(targets[turn], scored[turn], tokenizer)))
    return found


def _example_facts(
    batch: Batch, examples: Examples, measured: dict[str, np.ndarray], e: int, labels: tuple[str, ...]
) -> str:
    one = {name: values[e] for name, values in measured.items()}
    body, inputs, hidden, spans = (_int(one[name]) for name in ("raw", "inputs", "hidden", "spans"))
    raw = examples.raw.lengths[e]
    if examples.selected is not None:
        parts = [f"raw {raw} tokens", f"inputs and targets {inputs}"]
        shown = ", ".join(f"{_int(one[name])} {name}" for name in ("masked", "random", "kept"))
        selected = f"selected {hidden} ({_percent(hidden, inputs)}) in {spans} spans: {shown}"
        parts.append(selected if hidden else "no token selected")
    else:
        parts = [f"raw {raw} tokens", f"inputs {inputs}", f"targets {_int(one['targets'])}"]
        in_spans = "" if math.isnan(one["spans"]) else f" in {spans} span{'' if spans == 1 else 's'}"
        parts.append(f"corrupted {hidden} ({_percent(hidden, body)}){in_spans}")
    row, segment = examples.rows[e], examples.segments[e]
    if "decoder_bidirectional_mask" in batch:
        prefix = batch["decoder_bidirectional_mask"][row][batch["decoder_segment_ids"][row] == segment]
        parts.append(f"the first {prefix.sum()} positions see each other" if prefix.any() else "causal throughout")
    if "encoder_token_types" in batch:
        types = batch["encoder_token_types"][row][batch["encoder_segment_ids"][row] == segment]
        parts.append(f"sentence A {(types == 0).sum()} positions, B {(types == 1).sum()}")
    if "sentence_labels" in batch:
        label = batch["sentence_labels"][row]
        parts.append(f"label {label}" + (f": {labels[label]}" if labels else ""))
    return ", ".join([*parts, *_other_fields(batch, row, segment)])


_OF_A_STACK = ("input_tokens", "target_tokens", "loss_weights", "segment_ids", "positions")
_SHOWN = {f"{side}_{field}" for side in ("encoder", "decoder") for field in _OF_A_STACK}
_SHOWN |= {"decoder_bidirectional_mask", "encoder_token_types", "example_source", "sentence_labels"}


def _other_fields(batch: Batch, row: int, segment: int) -> list[str]:
    """Fields of the batch that are shown in no other way: a row's value, or an example's in short."""
    found = []
    for name in sorted(batch.keys() - _SHOWN):
        values = np.atleast_1d(batch[name][row])
        side = name.partition("_")[0]
        if f"{side}_segment_ids" in batch:
            values = values[batch[f"{side}_segment_ids"][row] == segment]
        found.append(f"{name} {in_short(values.tolist())}")
    return found


def in_short(values: list[int]) -> str:
    """Runs of equal values as value×times, runs that go up or down by one as first..last: "0×84 1..44"."""
    parts, begin = [], 0
    while begin < len(values):
        end = begin + 1
        step = values[end] - values[begin] if end < len(values) else 0
        while end < len(values) and values[end] - values[end - 1] == step and step in (-1, 0, 1):
            end += 1
        if step and end - begin < 3:
            end = begin + 1  # two neighbours are no run
        first, last, times = values[begin], values[end - 1], end - begin
        parts.append(str(first) if times == 1 else f"{first}×{times}" if first == last else f"{first}..{last}")
        begin = end
    return " ".join(parts)


def _int(value: float) -> float:
    return value if math.isnan(value) else int(value)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
