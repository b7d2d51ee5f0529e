"""What an objective does on average, measured on the batches themselves, beside what its fields ask for."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, compact, span_starts
from train.experiment import Experiment
from train.show.examples import Examples

# name: what stands over the column, how a value is written, what it is
STATISTICS = {
    "share": ("share", "{:.1%}", "of the examples"),
    "corrupted": ("corrupted", "{:.1%}", "of the raw tokens: not shown where they stood"),
    "selected": ("selected", "{:.1%}", "of the positions, special tokens counted"),
    "masked": ("masked", "{:.1%}", "of the selected"),
    "random": ("random", "{:.1%}", "of the selected: another token is shown"),
    "kept": ("kept", "{:.1%}", "of the selected: shown as they are"),
    "spans": ("spans", "{:.1f}", "in an example"),
    "span_length": ("span length", "{:.2f}", "tokens, on average"),
    "rearranged": ("rearranged", "{:.1%}", "of the examples: targets tell the whole text, in another order"),
    "inputs": ("inputs", "{:.1f}", "tokens of an example"),
    "targets": ("targets", "{:.1f}", "tokens of an example"),
    "scored": ("scored", "{:.1f}", "tokens of an example"),
    "useful": ("useful", "{:.1%}", "of the positions: not padding"),
}
_TOLERANCE = 0.1


class Count(NamedTuple):
    """One statistic of one denoiser."""

    measured: float
    expected: float | None
    rounding: float  # how far examples of a whole number of tokens and spans may be from what was asked

    @property
    def is_off(self) -> bool:
        """Whether it is more than a tenth, and more than rounding, away from what was asked."""
        if self.expected is None:
            return False
        return abs(self.measured - self.expected) > max(
            _TOLERANCE * self.expected, self.rounding
        )  # NaN: cannot be told


def measure(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Tokens and spans of each example, float [E] each: raw, inputs, targets, scored, used, share, and

    hidden: raw tokens that the inputs do not show where they stood; where positions are selected, those positions;
    spans: runs of them, NaN where there is no telling (tokens dropped without a mark, in several places; a new order);
    rearranged: 1 where the targets tell the whole text but not in its order, 0 where in its order, NaN for part of it;
    masked, random, kept: of the selected positions, where there are any to select.
    """
    sums = {
        "inputs": examples.inputs.lengths,
        "targets": examples.targets.lengths,
        "scored": examples.scored,
        "used": examples.used,
        "share": examples.share,
        **(_of_text(examples, vocab) if examples.selected is None else _of_selected(examples, vocab)),
    }
    return {name: np.asarray(values, np.float64) for name, values in sums.items()}


def _of_selected(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    selected, shown = examples.selected, examples.inputs.tokens
    masked = selected & (shown == vocab.mask)
    kept = selected & (shown == examples.targets.tokens)
    return {
        "raw": examples.raw.lengths,
        "hidden": selected.sum(axis=1),
        "spans": span_starts(selected).sum(axis=1),
        "masked": masked.sum(axis=1),
        "random": (selected & ~masked & ~kept).sum(axis=1),
        "kept": kept.sum(axis=1),
    }


def _of_text(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    raw, inputs, targets = (_body(one, vocab) for one in (examples.raw, examples.inputs, examples.targets))
    hidden, spans, rearranged = np.zeros((3, len(raw.lengths)))
    for denoiser in np.unique(examples.denoiser_ids):
        chosen = np.flatnonzero(examples.denoiser_ids == denoiser)
        texts, shown, told = (Sequences(one.tokens[chosen], one.lengths[chosen]) for one in (raw, inputs, targets))
        hidden[chosen], spans[chosen] = _hidden(texts, shown, vocab)
        told = compact(told.tokens, _valid(told) & ~_is_mark(told, vocab))
        is_whole = (told.lengths == texts.lengths).all()
        rearranged[chosen] = _agreement(texts, told) < texts.lengths if is_whole else np.nan
    return {"raw": raw.lengths, "hidden": hidden, "spans": spans, "rearranged": rearranged}


def _hidden(raw: Sequences, inputs: Sequences, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
    """Hidden tokens and spans of the examples of one denoiser, float [E] each."""
    valid = _valid(inputs)
    if (raw.lengths == inputs.lengths).all():  # every token kept its place: what stands there is compared
        width = inputs.tokens.shape[1]
        changed = (raw.tokens[:, :width] != inputs.tokens) & valid
        in_order = [np.sort(np.where(valid, one.tokens[:, :width], -1), axis=1) for one in (raw, inputs)]
        is_new_order = changed.any() and (in_order[0] == in_order[1]).all()
        return changed.sum(axis=1), np.where(is_new_order, np.nan, span_starts(changed).sum(axis=1))
    marks = valid & _is_mark(inputs, vocab)
    hidden = raw.lengths - (valid & ~marks).sum(axis=1)
    if marks.any():  # each mark stands for one span
        return hidden, marks.sum(axis=1)
    agree = _agreement(raw, inputs) + _agreement(_reversed(raw), _reversed(inputs))
    return hidden, np.where(hidden == 0, 0, np.where(agree >= inputs.lengths, 1, np.nan))


def _body(sequences: Sequences, vocab: Vocab) -> Sequences:
    """The sequences without the tokens that only frame a text."""
    frame = [vocab.pad, vocab.eos, vocab.bos, vocab.cls, vocab.sep, *(id_ for _, id_ in vocab.modes)]
    return compact(sequences.tokens, _valid(sequences) & ~np.isin(sequences.tokens, frame))


def _valid(sequences: Sequences) -> np.ndarray:
    return valid_positions(sequences.lengths, sequences.tokens.shape[1])


def _is_mark(sequences: Sequences, vocab: Vocab) -> np.ndarray:
    return np.isin(sequences.tokens, vocab.sentinels) | (sequences.tokens == vocab.mask)


def _agreement(a: Sequences, b: Sequences) -> np.ndarray:
    """int [E]: how many tokens two sequences have in common from their start on."""
    width = min(a.tokens.shape[1], b.tokens.shape[1])
    same = a.tokens[:, :width] == b.tokens[:, :width]
    same &= valid_positions(np.minimum(a.lengths, b.lengths), width)
    return np.logical_and.accumulate(same, axis=1).sum(axis=1)


def _reversed(sequences: Sequences) -> Sequences:
    tokens, lengths = sequences
    index = (lengths[:, None] - 1 - np.arange(tokens.shape[1])) % max(tokens.shape[1], 1)
    return Sequences(np.take_along_axis(tokens, index, axis=1), lengths)


def number(name: str, value: float) -> str:
    """A value of statistic `name` as it is shown."""
    return "-" if math.isnan(value) else STATISTICS[name][1].format(value)


class Totals:
    """Sums over the examples of each denoiser, of as many chunks as are added."""

    def __init__(self, num_denoisers: int):
        self.examples = np.zeros(num_denoisers, np.int64)
        self.without_targets = 0
        self._sums: dict[str, np.ndarray] = {}

    def add(self, denoiser_ids: np.ndarray, measured: Mapping[str, np.ndarray]) -> None:
        """`measured` of `measure`, of examples of denoisers `source`, int [E]."""
        size = len(self.examples)
        self.examples += np.bincount(denoiser_ids, minlength=size)
        self.without_targets += int((measured["scored"] == 0).sum())
        for name, values in measured.items():
            self._sums[name] = self._sums.get(name, 0) + np.bincount(denoiser_ids, values, minlength=size)

    @property
    def raw_tokens(self) -> int:
        return int(self._sums["raw"].sum())

    @property
    def raw_per_example(self) -> np.ndarray:
        """float [denoisers]"""
        return self._sums["raw"] / np.maximum(self.examples, 1)

    def statistics(self) -> dict[str, np.ndarray]:
        """Each of STATISTICS that means something here, float [denoisers]; NaN where it cannot be told."""
        sums, examples = self._sums, self.examples
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {"share": examples / examples.sum()}
            if "masked" in sums:
                values["selected"] = sums["hidden"] / sums["inputs"]
                values |= {name: sums[name] / sums["hidden"] for name in ("masked", "random", "kept")}
            else:
                values["corrupted"] = sums["hidden"] / sums["raw"]
            values["spans"] = sums["spans"] / examples
            values["span_length"] = sums["hidden"] / sums["spans"]
            values["inputs"] = sums["inputs"] / examples
            if "masked" not in sums:
                values["targets"] = sums["targets"] / examples
                values["rearranged"] = sums["rearranged"] / examples
                if (sums["scored"] != sums["targets"]).any():
                    values["scored"] = sums["scored"] / examples
            values["useful"] = sums["used"] / sums["share"]
        return values


def beside_expected(totals: Totals, experiment: Experiment, shares: np.ndarray) -> dict[str, dict[str, Count]]:
    """For each denoiser, by its name, its statistics beside what was asked; `shares`, float [denoisers], are asked."""
    statistics, table = totals.statistics(), {}
    for k, denoiser in enumerate(experiment.collator.denoisers):
        expected = denoiser.objective.expected() | {"share": float(shares[k])}
        of_denoiser = {name: float(values[k]) for name, values in statistics.items()}
        # Half a token, and half a span, of an example.
        rounding = dict.fromkeys(("corrupted", "selected"), 0.5 / max(totals.raw_per_example[k], 1))
        rounding["span_length"] = 0.5 / max(of_denoiser["spans"], 1) * expected.get("span_length", 0)
        table[denoiser.name] = {
            name: Count(value, expected.get(name), rounding.get(name, 0.005)) for name, value in of_denoiser.items()
        }
    return table


def notes(table: Mapping[str, Mapping[str, Count]], totals: Totals, *, scores_on_device: bool = False) -> list[str]:
    """What explains a number that is off, and what no number shows.

    scores_on_device: the step scores something else than tokens, so it may be that no example has any.
    """
    found = []
    for name, counts in table.items():
        length = counts["span_length"]
        if length.is_off and length.measured < length.expected and counts["spans"].measured < 2:
            found.append(
                f"{name}: an example hides {length.measured * counts['spans'].measured:.0f} tokens, too few for "
                f"spans of {length.expected:g}: only longer rows hold such spans"
            )
    all_without = totals.without_targets == totals.examples.sum()
    if totals.without_targets and not (scores_on_device and all_without):
        found.append(f"{totals.without_targets:,} of {totals.examples.sum():,} examples have nothing that is scored")
    return found
