"""Windows: what an objective needs of the text, and what the data package delivers."""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np


class Ramp(NamedTuple):
    """How a weight changes in a run: from `begin` on it leaves its first value in a straight line, to be at its last
    one from `end` on. Both are examples of the run, begin <= end; where they are equal it jumps."""

    begin: int
    end: int
    weight: float  # the last one, in the unit of the first


class Capacity(NamedTuple):
    """The positions that one stack has in a row, and which of a whole document's tokens take them."""

    field: str  # of the config, that says how many there are
    positions: int
    prompt: bool  # whether the prompt stands here
    rest: bool  # whether what follows the prompt does
    added: int  # positions for EOS and the like


@dataclasses.dataclass(frozen=True)
class WindowSpec:
    """What an objective asks of the data for one of its denoisers.

    documents: "join" - documents run on one after another and a window is one text, across document ends (T5);
               "pack" - the same windows, but each document's piece is an example of its own, in the same row;
               "split" - a window stops at the end of its document, so the last one of a document is shorter;
               "whole" - a window is a row's fill of documents, none of them cut, each an example of its own.
    eos: whether each document ends in the EOS token. Where False no window holds an EOS.
    reads: what else of an example is wanted: "others", "prompt_lengths", "labels" (see Windows).
    ramp: how the weight changes in the course of the run; None: it does not.
    rooms: of "whole": what a row has room for, by stack.
    classes: of what reads labels: their names, in the order of their numbers.
    on_unusable: what to do about documents that have no room in a row, or none of the classes: "error" or "skip".
    """

    name: str
    weight: float  # share of the examples; of the first ones, where there is a ramp
    raw_length: int  # tokens in a window; of "whole", in a document that fits whatever its prompt's share is
    documents: Literal["join", "pack", "split", "whole"]
    eos: bool
    extra_columns: tuple[str, ...] = ()
    ramp: Ramp | None = None
    capacities: tuple[Capacity, ...] = ()
    classes: tuple[str, ...] = ()
    on_unusable: Literal["error", "skip"] = "error"

    @property
    def final_weight(self) -> float:
        """The weight at the end of the run. Beside those of the other specs it is a share."""
        return self.ramp.weight if self.ramp else self.weight

    @property
    def mean_weight(self) -> float:
        """The mean of the first and the last weight: that of held-out batches, which do not change with the step."""
        return (self.weight + self.final_weight) / 2


class RowPlan(NamedTuple):
    """Rows whose windows were chosen to fill them (objectives/rows/filling.py). All int32 [R, M]: M examples in
    each of R rows, and row r of the run is like row r mod R of the plan."""

    denoiser_ids: np.ndarray  # index into the objective's denoisers
    raw_lengths: np.ndarray  # tokens in the example's window
    parts: np.ndarray  # which part of its denoiser the example is of (Denoiser.parts)

    def lengths_of(self, denoiser: int) -> np.ndarray:
        """The different lengths of a denoiser's windows, int32 [n], ascending."""
        return np.unique(self.raw_lengths[self.denoiser_ids == denoiser])


class Windows(NamedTuple):
    """E raw examples of the rows of one batch, in row order. What others read is None where no spec asks for it."""

    tokens: np.ndarray  # int32 [E, R], padded with the vocabulary's pad id; R = the longest there can be
    lengths: np.ndarray  # int32 [E], 1..R
    row_ids: np.ndarray  # int32 [E], non-decreasing, the row of this (process-local) batch it belongs to
    keys: np.ndarray  # uint64 [E], the example's randomness: a function of (seed, global example index, piece)
    denoiser_ids: np.ndarray  # int32 [E], index into the objective's denoisers
    others_tokens: np.ndarray | None = None  # int32 [E, R], a window of another document, drawn by the example's key
    others_lengths: np.ndarray | None = None  # int32 [E], 1..R; 0 where the example's own spec does not read them
    prompt_lengths: np.ndarray | None = None  # int32 [E], leading tokens of the example that are its prompt
    labels: np.ndarray | None = None  # int32 [E], the class of the example's document
    parts: np.ndarray | None = None  # int32 [E], as RowPlan.parts; None where rows are not planned
