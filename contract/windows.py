"""Windows of raw text: what an objective requests, and what the data package delivers.

An objective requests windows with a `WindowSpec` for each of its denoisers; a `BatchSpec` adds how many examples share
a row. The data package answers with `Windows`, which the objective turns into a batch (contract/batch.py).
"""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

DocumentHandling = Literal["join", "pack", "split", "whole"]


class Ramp(NamedTuple):
    """A weight that changes linearly during the run: the initial weight until `begin`, `weight` from `end` on."""

    begin: int  # number of an example of the run
    end: int  # the same; at least `begin`; where both are equal, the weight jumps
    weight: float  # the final weight, in the unit of the initial weight


class Capacity(NamedTuple):
    """The positions of one stack of a row, and which parts of a whole document occupy them."""

    field: str  # the config field that sets `positions`, for messages
    positions: int
    prompt: bool  # whether the document's prompt takes positions of this stack
    response: bool  # whether the text after the prompt takes positions of this stack
    special: int  # further positions that each example takes, for EOS and other special tokens
    least: int = 1  # the fewest positions that an example takes


@dataclasses.dataclass(frozen=True)
class WindowSpec:
    """The windows that one denoiser of an objective needs.

    Attributes:
      name: the denoiser's name.
      weight: share of the windows, or of their tokens (BatchSpec.mix_by). With a ramp: before the ramp begins.
      raw_length: tokens in a window. For "whole": the most tokens of a document that fits a row for every length of
        its prompt.
      documents: how windows treat document boundaries.
        "join": documents are concatenated, and a window is one example, across document ends (T5).
        "pack": the same windows, but each document's piece is a separate example in the same row.
        "split": a window ends where its document ends, so the last window of a document is shorter.
        "whole": a window is as many whole documents as fit a row, each a separate example.
      eos: whether each document ends in EOS. If False, no window contains an EOS.
      extra_columns: optional columns of `Windows` to fill: "others", "prompt_lengths", "labels", "quantiles",
        and, for "split", "begins_document" and "ends_document".
      ramp: how the weight changes during the run; None if it is constant.
      capacities: for "whole", the capacity of each stack.
      classes: for "labels", the names of the classes, in the order of their ids.
      on_unusable: for documents that exceed a capacity or have none of the classes: raise an error, or skip them.
      corpus: the number of the corpus that is read, in the order of `data.sources`; 0 in a run of one corpus.
    """

    name: str
    weight: float
    raw_length: int
    documents: DocumentHandling
    eos: bool
    extra_columns: tuple[str, ...] = ()
    ramp: Ramp | None = None
    capacities: tuple[Capacity, ...] = ()
    classes: tuple[str, ...] = ()
    on_unusable: Literal["error", "skip"] = "error"
    corpus: int = 0

    @property
    def final_weight(self) -> float:
        """The weight at the end of the run, in the unit of `weight`."""
        return self.ramp.weight if self.ramp else self.weight


class RowPlan(NamedTuple):
    """A cycle of R rows with M examples each, chosen to fill the rows (objectives/rows/packing.py). All int32 [R, M].

    Row r of the run is like row r mod R of the plan.
    """

    denoiser_ids: np.ndarray  # index into the objective's denoisers
    raw_lengths: np.ndarray  # tokens in the example's window
    variant_ids: np.ndarray  # which variant of its denoiser made the example (Denoiser.variants)

    def lengths_of(self, denoiser_id: int) -> np.ndarray:
        """The distinct window lengths of one denoiser, int32 [n], ascending."""
        return np.unique(self.raw_lengths[self.denoiser_ids == denoiser_id])

    def num_variants(self, denoiser_id: int) -> int:
        """The number of variants of one denoiser."""
        return int(self.variant_ids[self.denoiser_ids == denoiser_id].max()) + 1


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """What the rows of a batch are made from.

    Attributes:
      windows: a WindowSpec for each denoiser, in the order of `Windows.denoiser_ids`.
      examples_per_row: windows in a row.
      pad_id: the token id after the end of an example.
      mix_by: what the weights of the windows are shares of: "token" (their raw tokens) or "example" (windows; with
        several corpora, a window of whole documents counts as its documents).
      plan: which windows share a row, in place of the specs' own weights and lengths; None to draw them by weight.
    """

    windows: tuple[WindowSpec, ...]
    examples_per_row: int
    pad_id: int
    mix_by: Literal["example", "token"] = "example"
    plan: RowPlan | None = None


class Windows(NamedTuple):
    """E raw examples of the rows of one batch, in row order.

    The columns from others_tokens to quantiles are None unless a spec requests them (`extra_columns`).
    """

    tokens: np.ndarray  # int32 [E, W], padded with the pad id; W is the longest possible example
    lengths: np.ndarray  # int32 [E], 1..W
    row_ids: np.ndarray  # int32 [E], non-decreasing: the example's row in this process's part of the batch
    keys: np.ndarray  # uint64 [E], the example's random key (contract/rng.py, example_keys)
    denoiser_ids: np.ndarray  # int32 [E], index into the objective's denoisers
    others_tokens: np.ndarray | None = None  # int32 [E, W], a window of another document, drawn by the example's key
    others_lengths: np.ndarray | None = None  # int32 [E], 1..W; 0 where the example's spec does not list "others"
    prompt_lengths: np.ndarray | None = None  # int32 [E], how many leading tokens of the example are its prompt
    labels: np.ndarray | None = None  # int32 [E], the class of the example's document
    begins_document: np.ndarray | None = None  # bool [E], whether the example begins where its document does
    ends_document: np.ndarray | None = None  # bool [E], whether the example ends where its document does
    quantiles: np.ndarray | None = None  # float64 [E], uniform in [0, 1), evenly spread over a batch (contract/rng.py)
    variant_ids: np.ndarray | None = None  # int32 [E], as in RowPlan; None where rows are not planned
    row_steps: np.ndarray | None = None  # int64 [rows], the training batch of each row; None: no batch of a run
