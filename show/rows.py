"""The rows on the page: examples as runs of tokens and facts, the use of positions, and attention masks."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from command.program import plural
from contract.batch import Batch
from contract.vocab import Vocab
from data.tokenizers.tokenizer import Tokenizer
from experiment.experiment import Experiment
from show.attention import Picture, pictures
from show.examples import Chunk, Examples, examples_of, measure, stacks

# kind of token -> name in the legend
KINDS = {
    "text": "text",
    "sentinel": "sentinel",
    "mask": "mask",
    "mode": "mode token",
    "eos": "end of text",
    "special": "special token",
    "random": "random token",
    "kept": "kept token",
}
ORDINARY = ("text", "random", "kept")  # kinds whose tokens are ordinary text, not special tokens


class Run(NamedTuple):
    """Adjacent tokens of one kind, all scored or none: a stretch of ordinary text, or one special token."""

    text: str
    kind: str  # one of KINDS
    scored: bool


def runs(
    ids: np.ndarray, scored: np.ndarray, tokenizer: Tokenizer, *, is_original: np.ndarray | None = None
) -> list[Run]:
    """Returns the runs of `ids`, int [n].

    scored: bool [n], whether the token has loss weight.
    is_original: bool [n], whether the id equals the original token. If given, scored text has the kind "kept" where
      True and "random" where False.
    """
    kinds = _kinds_of_ids(tokenizer.vocab)[np.clip(ids, 0, tokenizer.vocab.size)]
    if is_original is not None:
        kinds = np.where((kinds == "text") & scored, np.where(is_original, "kept", "random"), kinds)
    is_ordinary = np.isin(kinds, ORDINARY)
    continues = (kinds[1:] == kinds[:-1]) & (scored[1:] == scored[:-1]) & is_ordinary[1:]
    found = []
    for part in np.split(np.arange(len(ids)), np.flatnonzero(~continues) + 1):
        if len(part):
            first = part[0]
            text = tokenizer.decode(ids[part], inside=bool(is_ordinary[first]))
            found.append(Run(text, str(kinds[first]), bool(scored[first])))
    return found


def split_marks(text: str) -> list[tuple[str, bool]]:
    """Splits `text` into (piece, is_mark). A mark replaces an unprintable character.

    A newline or a tab follows its mark. Other unprintable characters, such as those that change the direction of
    writing, become Python's escape sequences.
    """
    pieces: list[tuple[str, bool]] = []
    for is_printable, group in itertools.groupby(text, str.isprintable):
        if is_printable:
            pieces.append(("".join(group), False))
            continue
        for char in group:
            pieces.append(({"\n": "↵", "\t": "⇥"}.get(char, repr(char)[1:-1]), True))
            pieces += [(char, False)] if char in "\n\t" else []
    return pieces


def _kinds_of_ids(vocab: Vocab) -> np.ndarray:
    """Returns the kind of each id, str [size + 1]; the last element is the kind of ids outside the vocabulary."""
    kinds = np.full(vocab.size + 1, "special", "U8")
    kinds[vocab.content_start : vocab.content_end] = "text"
    kinds[vocab.sentinels] = "sentinel"
    kinds[[id_ for _, id_ in vocab.modes]] = "mode"
    kinds[[id_ for id_ in [vocab.mask] if id_ >= 0]] = "mask"
    kinds[vocab.eos] = "eos"
    return kinds


PADDING, NOT_SCORED, SCORED = range(3)  # states of a position


class Section(NamedTuple):
    """One text of an example: "raw", "inputs" or "targets"."""

    title: str
    runs: list[Run]


class Example(NamedTuple):
    """One example, as text."""

    number: int  # on the page, from 1
    denoiser: str
    mode: str
    segment: int
    sections: list[Section]
    facts: str


class StackRow(NamedTuple):
    """The positions of one stack's row."""

    stack: str
    states: np.ndarray  # uint8 [L]: PADDING, NOT_SCORED or SCORED
    segment_ids: np.ndarray  # int [L]


class Row(NamedTuple):
    """One row of a batch, with some of its examples."""

    batch: int
    row: int  # of the batch
    num_segments: int
    stack_rows: list[StackRow]
    examples: list[Example]  # those on the page
    pictures: list[Picture]


def rows_of(experiment: Experiment, chunk: Chunk, first_row: int, chosen: np.ndarray, number: int) -> list[Row]:
    """Returns the rows that contain the examples `chosen`.

    chunk: rows of the run, of which the first is row `first_row`.
    chosen: indices into the examples of the chunk, int [n].
    number: the number that the first chosen example has on the page.
    """
    examples, found = examples_of(chunk, experiment.vocab), []
    measured = measure(examples, experiment.vocab)
    for row in np.unique(examples.rows[chosen]):
        of_row = []
        for e in chosen[examples.rows[chosen] == row]:
            denoiser = experiment.tasks[examples.denoiser_ids[e]]
            sections = _sections(experiment, chunk.batch, examples, e)
            labels = experiment.window_specs[examples.denoiser_ids[e]].classes or denoiser.objective.label_names
            counts = {name: values[e] for name, values in measured.items()}
            facts = [*_token_facts(examples, counts, e), *_position_facts(chunk.batch, examples, e, labels)]
            segment = int(examples.segments[e])
            of_row.append(Example(number, denoiser.name, denoiser.mode, segment, sections, ", ".join(facts)))
            number += 1
        batch, row_of_batch = divmod(int(first_row + row), experiment.train.batch_size)
        num_segments = int((examples.rows == row).sum())
        stack_rows = stack_rows_of(chunk.batch, row)
        found.append(Row(batch, row_of_batch, num_segments, stack_rows, of_row, pictures(chunk.batch, row)))
    return found


def stack_rows_of(batch: Batch, row: int) -> list[StackRow]:
    """Returns the positions of one row, for each stack."""
    found = []
    for stack in stacks(batch):
        segment_ids = batch[f"{stack}_segment_ids"][row]
        states = np.where(segment_ids > 0, NOT_SCORED, PADDING).astype(np.uint8)
        if f"{stack}_loss_weights" in batch:
            states[batch[f"{stack}_loss_weights"][row] > 0] = SCORED
        found.append(StackRow(stack, states, segment_ids))
    return found


def _sections(experiment: Experiment, batch: Batch, examples: Examples, e: int) -> list[Section]:
    """Returns the texts of example `e`."""
    tokenizer, row, segment = experiment.tokenizer, examples.rows[e], examples.segments[e]
    raw = examples.raw.tokens[e, : examples.raw.lengths[e]]
    found = [Section("raw", runs(raw, np.zeros(len(raw), bool), tokenizer))]
    for stack in stacks(batch):
        in_segment = batch[f"{stack}_segment_ids"][row] == segment
        inputs = batch[f"{stack}_input_tokens"][row, in_segment]
        if f"{stack}_target_tokens" not in batch:
            found.append(Section("inputs", runs(inputs, np.zeros(len(inputs), bool), tokenizer)))
            continue
        targets = batch[f"{stack}_target_tokens"][row, in_segment]
        scored = batch[f"{stack}_loss_weights"][row, in_segment] > 0
        if examples.in_place[e]:
            shown = examples.inputs.tokens[e, : len(targets)]
            found.append(Section("inputs", runs(shown, scored, tokenizer, is_original=shown == targets)))
        if examples.in_place[e] or "encoder_input_tokens" in batch:
            order = batch.get(f"{stack}_attention_order", np.zeros_like(batch[f"{stack}_segment_ids"]))[row, in_segment]
            count = len(targets) // 2 if (order < 0).any() else len(targets)  # a clean copy has no targets
            found.append(Section("targets", runs(targets[:count], scored[:count], tokenizer)))
        else:  # decoder_only: the inputs, then the targets, in one sequence
            end = examples.inputs.lengths[e]
            for title, part in (("inputs", slice(end)), ("targets", slice(end, None))):
                found.append(Section(title, runs(targets[part], scored[part], tokenizer)))
    return found


def _token_facts(examples: Examples, counts: dict[str, float], e: int) -> list[str]:
    """Returns the lengths of example `e` and its share of corrupted or selected tokens. counts: from `measure`."""
    hidden, inputs = int(counts["hidden"]), int(counts["inputs"])
    spans = "" if math.isnan(counts["spans"]) else f" in {plural(int(counts['spans']), 'span')}"
    raw = f"raw {plural(int(examples.raw.lengths[e]), 'token')}"
    if not examples.in_place[e]:
        corrupted = f"corrupted {hidden} ({_percent(hidden, counts['raw'])}){spans}"
        return [raw, f"inputs {inputs}", f"targets {int(counts['targets'])}", corrupted]
    kinds = ", ".join(f"{int(counts[name])} {name}" for name in ("masked", "random", "kept"))
    selected = f"selected {hidden} ({_percent(hidden, inputs)}){spans}: {kinds}" if hidden else "no token selected"
    return [raw, f"inputs and targets {inputs}", selected]


def _position_facts(batch: Batch, examples: Examples, e: int, labels: tuple[str, ...]) -> list[str]:
    """Returns what the batch contains for example `e` in addition to tokens."""
    facts, row, segment = [], examples.rows[e], examples.segments[e]
    if "decoder_bidirectional_mask" in batch:
        prefix = batch["decoder_bidirectional_mask"][row][batch["decoder_segment_ids"][row] == segment]
        facts.append(f"bidirectional prefix of {plural(prefix.sum(), 'position')}" if prefix.any() else "causal")
    if "decoder_target_positions" in batch:
        places = batch["decoder_target_positions"][row][batch["decoder_segment_ids"][row] == segment]
        facts.append("from left to right" if (np.diff(places) == 1).all() else "in a shuffled order")
    if "encoder_token_types" in batch:
        types = batch["encoder_token_types"][row][batch["encoder_segment_ids"][row] == segment]
        facts.append(f"sentence A {plural((types == 0).sum(), 'position')}, B {(types == 1).sum()}")
    if "sentence_labels" in batch:
        label = batch["sentence_labels"][row]
        name = "no pair" if label < 0 else labels[label] if labels else ""
        facts.append(f"label {label}" + (f": {name}" if name else ""))
    return facts


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
