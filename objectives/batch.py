"""The batch contract: what data hands to an objective, and what an objective hands to the model and the loss.

Fields of a batch (names are seqio's, except `decoder_bidirectional_mask`: seqio's `decoder_causal_attention`
says the opposite of what it means). B rows; S encoder positions, T decoder positions.

| field | dtype [shape] | layouts | meaning |
|---|---|---|---|
| decoder_input_tokens, decoder_target_tokens | int32 [B, T] | decoder-only, enc-dec | inputs are targets shifted right within each segment |
| decoder_loss_weights | float32 [B, T] | same | the only source of "is this scored" |
| decoder_segment_ids, decoder_positions | int32 [B, T] | same | segment 0 = padding; positions restart per segment |
| decoder_bidirectional_mask | bool [B, T] | decoder-only | True = prefix, visible to its whole segment |
| encoder_input_tokens, encoder_segment_ids, encoder_positions | int32 [B, S] | encoder-only, enc-dec | |
| encoder_target_tokens, encoder_loss_weights | int32 / float32 [B, S] | encoder-only | weights mark the *selected* positions, random and kept ones too |
| example_source | int32 [B, T] or [B, S] | all | which denoiser made it; shaped like the loss weights |

and, where the objective has them,

| encoder_token_types | int32 [B, S] | encoder-only | sentence A is 0, sentence B is 1 |
| encoder_attention_order | int32 [B, S] | encoder-only | a token sees those of its segment whose order is not above its own; where absent, all of them |
| sentence_labels | int32 [B] | encoder-only, decoder-only | the class of the row's text, or of its pair of sentences |

A packed decoder-only row, two examples, (inputs 5 6, targets 7 1) and (inputs 8, targets 9 1), T = 10, pad 0, EOS 1
(the objective has put EOS where it wants one; here only at the end of targets):

    decoder_target_tokens       5 6 7 1 8 9 1 0 0 0
    decoder_input_tokens        0 5 6 7 0 8 9 0 0 0     shifted within the segment; each starts from pad
    decoder_loss_weights        0 0 1 1 0 1 1 0 0 0
    decoder_segment_ids         1 1 1 1 2 2 2 0 0 0
    decoder_positions           0 1 2 3 0 1 2 0 0 0
    decoder_bidirectional_mask  1 1 1 0 1 1 0 0 0 0     the position that reads the last input predicts the first target
"""  # noqa: E501

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

Batch = dict[str, np.ndarray]

_DECODER = {
    "decoder_input_tokens": np.int32,
    "decoder_target_tokens": np.int32,
    "decoder_loss_weights": np.float32,
    "decoder_segment_ids": np.int32,
    "decoder_positions": np.int32,
}
_ENCODER = {"encoder_input_tokens": np.int32, "encoder_segment_ids": np.int32, "encoder_positions": np.int32}
FIELDS = {
    "encoder_decoder": {**_ENCODER, **_DECODER, "example_source": np.int32},
    "decoder_only": {**_DECODER, "decoder_bidirectional_mask": np.bool_, "example_source": np.int32},
    "encoder_only": {
        **_ENCODER,
        "encoder_target_tokens": np.int32,
        "encoder_loss_weights": np.float32,
        "example_source": np.int32,
    },
}
OPTIONAL_FIELDS = {
    "encoder_decoder": {},
    "decoder_only": {"sentence_labels": np.int32},
    "encoder_only": {
        "encoder_token_types": np.int32,
        "encoder_attention_order": np.int32,
        "sentence_labels": np.int32,
    },
}


class Ramp(NamedTuple):
    """How a weight changes in a run: from `begin` on it leaves its first value in a straight line, to be at its last
    one from `end` on. Both are examples of the run, begin <= end; where they are equal it jumps."""

    begin: int
    end: int
    weight: float  # the last one, in the unit of the first


class Room(NamedTuple):
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
    reads: tuple[str, ...] = ()
    ramp: Ramp | None = None
    rooms: tuple[Room, ...] = ()
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
    """Rows whose windows were chosen to fill them (objectives/packing.py). All int32 [R, M]: M examples in each of R
    rows, and row r of the run is like row r mod R of the plan."""

    sources: np.ndarray  # index into the objective's denoisers
    raw_lengths: np.ndarray  # tokens in the example's window
    parts: np.ndarray  # which part of its denoiser the example is of (Denoiser.parts)

    def lengths_of(self, source: int) -> np.ndarray:
        """The different lengths of a denoiser's windows, int32 [n], ascending."""
        return np.unique(self.raw_lengths[self.sources == source])


class Windows(NamedTuple):
    """E raw examples of the rows of one batch, in row order. What others read is None where no spec asks for it."""

    tokens: np.ndarray  # int32 [E, R], padded with the vocabulary's pad id; R = the longest there can be
    lengths: np.ndarray  # int32 [E], 1..R
    rows: np.ndarray  # int32 [E], non-decreasing, the row of this (process-local) batch it belongs to
    keys: np.ndarray  # uint64 [E], the example's randomness: a function of (seed, global example index, piece)
    source: np.ndarray  # int32 [E], index into the objective's denoisers
    others_tokens: np.ndarray | None = None  # int32 [E, R], a window of another document, drawn by the example's key
    others_lengths: np.ndarray | None = None  # int32 [E], 1..R; 0 where the example's own spec does not read them
    prompt_lengths: np.ndarray | None = None  # int32 [E], leading tokens of the example that are its prompt
    labels: np.ndarray | None = None  # int32 [E], the class of the example's document
    parts: np.ndarray | None = None  # int32 [E], as RowPlan.parts; None where rows are not planned


def check_batch(batch: Batch, architecture: str) -> None:
    """Raises ValueError where `batch` is not one of `architecture`'s layout: fields, dtypes, shapes, padding, shift."""
    fields = FIELDS[architecture] | {k: v for k, v in OPTIONAL_FIELDS[architecture].items() if k in batch}
    if set(batch) != set(fields):
        raise ValueError(f"{architecture} batch: fields {sorted(set(batch) ^ set(fields))} are missing or unknown")
    rows = {len(array) for array in batch.values()}
    if len(rows) != 1:
        raise ValueError(f"{architecture} batch: fields have different numbers of rows: {sorted(rows)}")
    for name, dtype in fields.items():
        dimensions = 1 if name == "sentence_labels" else 2
        if batch[name].dtype != dtype or batch[name].ndim != dimensions:
            wanted = f"{np.dtype(dtype)}{'[B, L]' if dimensions == 2 else '[B]'}"
            raise ValueError(f"{name} is {batch[name].dtype}{list(batch[name].shape)}, not {wanted}")
    for side in ("encoder", "decoder"):
        if f"{side}_segment_ids" not in batch:
            continue
        segments = batch[f"{side}_segment_ids"]
        padding = segments == 0
        if (np.diff(np.where(padding, np.iinfo(np.int32).max, segments), axis=1) < 0).any():
            raise ValueError(f"{side}_segment_ids must not decrease along a row, padding last")
        starts = ~padding
        starts[:, 1:] &= segments[:, 1:] != segments[:, :-1]
        if (batch[f"{side}_positions"][starts | padding] != 0).any():
            raise ValueError(f"{side}_positions must restart at 0 with each segment and be 0 on padding")
        weights = batch.get(f"{side}_loss_weights")
        if weights is not None and (weights[padding] != 0).any():
            raise ValueError(f"{side}_loss_weights must be 0 on padding")
        if side == "decoder":
            inputs, targets = batch["decoder_input_tokens"], batch["decoder_target_tokens"]
            inside = ~starts & ~padding
            inside[:, 0] = False
            if (inputs[:, 1:][inside[:, 1:]] != targets[:, :-1][inside[:, 1:]]).any():
                raise ValueError("decoder_input_tokens are not decoder_target_tokens shifted right within segments")
