"""Statistics of each denoiser's examples, measured over many rows, next to the values expected from the config."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiment.experiment import Experiment

# name: what the statistic is. The order is that of the columns.
STATISTICS = {
    "share": "share of the examples",
    "corrupted": "share of the raw tokens: not in the inputs at their place",
    "selected": "share of the positions, special tokens included",
    "masked": "share of the selected positions: the inputs have [MASK]",
    "random": "share of the selected positions: the inputs have another token",
    "kept": "share of the selected positions: the inputs have the original token",
    "spans": "spans in an example, on average",
    "span_length": "tokens in a span, on average",
    "inputs": "tokens in the inputs, on average",
    "targets": "tokens in the targets, on average",
    "scored": "scored tokens in an example, on average",
    "useful": "share of the positions that are not padding",
}
_DECIMALS = {"spans": 1, "span_length": 2, "inputs": 1, "targets": 1, "scored": 1}  # the others are percentages
_TOLERANCE = 0.1


class Statistic(NamedTuple):
    """One statistic of one denoiser."""

    measured: float
    expected: float | None
    rounding: float  # the largest difference that whole numbers of tokens and spans explain

    @property
    def differs(self) -> bool:
        """Whether measured and expected differ by more than a tenth of the expected value and more than `rounding`."""
        if self.expected is None:
            return False
        # A comparison with NaN is False: the batches do not determine the value.
        return abs(self.measured - self.expected) > max(_TOLERANCE * self.expected, self.rounding)


def formatted(name: str, value: float) -> str:
    """Returns a value of statistic `name` as text; "-" for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.{_DECIMALS[name]}f}" if name in _DECIMALS else f"{value:.1%}"


class Totals:
    """Sums over the examples of each denoiser."""

    def __init__(self, num_denoisers: int):
        self.examples = np.zeros(num_denoisers, np.int64)
        self.not_scored = 0  # examples without a scored token
        self.sums: dict[str, np.ndarray] = {}

    def add(self, denoiser_ids: np.ndarray, measured: Mapping[str, np.ndarray]) -> None:
        """Adds examples. denoiser_ids: int [E]; measured: what `measure` returns for the examples."""
        size = len(self.examples)
        self.examples += np.bincount(denoiser_ids, minlength=size)
        self.not_scored += int((measured["scored"] == 0).sum())
        for name, values in measured.items():
            self.sums[name] = self.sums.get(name, 0) + np.bincount(denoiser_ids, values, minlength=size)

    @property
    def raw_tokens(self) -> int:
        """Raw tokens of all examples."""
        return int(self.sums["raw"].sum())

    def statistics(self) -> dict[str, np.ndarray]:
        """Returns the STATISTICS that apply, float [denoisers] each; NaN if the batches do not determine the value."""
        sums, examples = self.sums, self.examples
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {"share": examples / examples.sum()}
            in_place = sums.get("in_place", np.zeros(len(examples))) > 0
            if in_place.any():
                of_selected = {name: sums[name] / sums["hidden"] for name in ("masked", "random", "kept")}
                of_selected = {"selected": sums["hidden"] / sums["inputs"]} | of_selected
                values |= {name: np.where(in_place, value, np.nan) for name, value in of_selected.items()}
            if not in_place.all():
                values["corrupted"] = np.where(in_place, np.nan, sums["hidden"] / sums["raw"])
            values["spans"] = sums["spans"] / examples
            values["span_length"] = sums["hidden"] / sums["spans"]
            values["inputs"] = sums["inputs"] / examples
            if not in_place.all():
                values["targets"] = sums["targets"] / examples
                if (sums["scored"] != sums["targets"]).any():
                    values["scored"] = sums["scored"] / examples
            values["useful"] = sums["used"] / sums["positions"]
        return values


def compare(
    totals: Totals, experiment: Experiment, shares: np.ndarray, steps: Sequence[np.ndarray] = ()
) -> dict[str, dict[str, Statistic]]:
    """Returns name of the denoiser -> name of the statistic -> measured and expected value.

    Args:
      totals: of all examples.
      experiment: its tasks are the denoisers.
      shares: expected shares of the denoisers, float [denoisers].
      steps: of the examples of each denoiser, int [E] each. Read where a denoiser has a schedule.
    """
    values, table = totals.statistics(), {}
    raw_per_example = totals.sums["raw"] / np.maximum(totals.examples, 1)
    for k, denoiser in enumerate(experiment.tasks):
        of_steps, counts = [denoiser.objective.expected()], np.ones(1)
        if denoiser.schedule and len(steps[k]):
            distinct, counts = np.unique(steps[k], return_counts=True)
            of_steps = [denoiser.at(step).objective.expected() for step in distinct.tolist()]
        expected = {
            name: float(np.average([of_step[name] for of_step in of_steps], weights=counts)) for name in of_steps[0]
        }
        expected["share"] = float(shares[k])
        measured = {name: float(of_denoisers[k]) for name, of_denoisers in values.items()}
        # Rounding changes an example by up to half a token and half a span.
        rounding = dict.fromkeys(("corrupted", "selected"), 0.5 / max(raw_per_example[k], 1))
        rounding["span_length"] = 0.5 / max(measured["spans"], 1) * expected.get("span_length", 0)
        table[denoiser.name] = {
            name: Statistic(value, expected.get(name), rounding.get(name, 0.005)) for name, value in measured.items()
        }
    return table


def notes(table: Mapping[str, Mapping[str, Statistic]], totals: Totals, *, scores_on_device: bool = False) -> list[str]:
    """Returns explanations of statistics that differ from their expected values, and the number of unscored examples.

    scores_on_device: the training step scores something other than the batch's targets, so it is not a problem if no
      example has a scored token.
    """
    found = []
    for name, statistics in table.items():
        length = statistics["span_length"]
        if length.differs and length.measured < length.expected and statistics["spans"].measured < 2:
            found.append(
                f"{name}: an example hides {length.measured * statistics['spans'].measured:.0f} tokens, too few for "
                f"spans of {length.expected:g}, which need longer rows"
            )
    none_scored = totals.not_scored == totals.examples.sum()
    if totals.not_scored and not (scores_on_device and none_scored):
        found.append(f"{totals.not_scored:,} of {totals.examples.sum():,} examples have no scored token")
    return found
