"""Places examples in rows: the same inputs and targets for an encoder-decoder, a decoder or an encoder.

Rows may hold several examples; each is a segment of its own and sees nothing of the others. `rows` int [E] is
non-decreasing, `source` int [E] says which denoiser made the example. Results follow objectives/batch.py.
"""

import numpy as np

from objectives.batch import Batch
from objectives.corruption import Sequences
from objectives.examples import InputsTargets, Masked
from objectives.lengths import RowShape
from objectives.noise import valid_positions
from objectives.vocab import Vocab


class _Placement:
    """Where runs of tokens stand in an array of rows: run e at row rows[e], from column starts[e] on."""

    def __init__(self, rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray, shape: tuple[int, int]):
        if (starts + lengths > shape[1]).any():
            raise ValueError(f"examples of {int((starts + lengths).max())} tokens in rows of {shape[1]}")
        self.starts, self.lengths, self.shape = starts, lengths, shape
        self.positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self.index = np.repeat(rows * shape[1] + starts, lengths) + self.positions

    def lay(self, flat: np.ndarray | int, *, into: np.ndarray) -> np.ndarray:
        """Writes the runs' values, one after another in `flat`, to their places; returns `into`."""
        into.reshape(-1)[self.index] = flat
        return into

    def tokens(self, sequences: Sequences, *, into: np.ndarray) -> np.ndarray:
        return self.lay(sequences.tokens[valid_positions(self.lengths, sequences.tokens.shape[1])], into=into)

    def per_run(self, values: np.ndarray) -> np.ndarray:
        return self.lay(np.repeat(values, self.lengths), into=np.zeros(self.shape, np.int32))


def _one_after_another(lengths: np.ndarray, rows: np.ndarray, shape: tuple[int, int]):
    """The placement of each row's examples from its left end, and their segment ids, int [E], from 1 on."""
    first = np.searchsorted(rows, rows)  # the first example of the same row
    offsets = np.cumsum(lengths) - lengths
    return _Placement(rows, offsets - offsets[first], lengths, shape), np.arange(len(rows)) - first + 1


def _decoder_fields(placement: _Placement, segments: np.ndarray, targets: np.ndarray, vocab: Vocab) -> Batch:
    positions = placement.lay(placement.positions, into=np.zeros(placement.shape, np.int32))
    inputs = np.full_like(targets, vocab.pad)
    inputs[:, 1:] = np.where(positions[:, 1:] > 0, targets[:, :-1], vocab.pad)
    return {
        "decoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_segment_ids": placement.per_run(segments),
        "decoder_positions": positions,
    }


def _encoder_fields(placement: _Placement, segments: np.ndarray, inputs: Sequences, vocab: Vocab) -> Batch:
    return {
        "encoder_input_tokens": placement.tokens(inputs, into=np.full(placement.shape, vocab.pad, np.int32)),
        "encoder_segment_ids": placement.per_run(segments),
        "encoder_positions": placement.lay(placement.positions, into=np.zeros(placement.shape, np.int32)),
    }


def _never_empty(sequences: Sequences, token: int) -> Sequences:
    """The sequences, `token` in place of each empty one."""
    tokens = np.pad(sequences.tokens, ((0, 0), (0, int(sequences.tokens.shape[1] == 0))))
    tokens[:, 0] = np.where(sequences.lengths == 0, token, tokens[:, 0])
    return Sequences(tokens, np.maximum(sequences.lengths, 1))


def encoder_decoder(
    examples: InputsTargets,
    rows: np.ndarray,
    source: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
) -> Batch:
    """Inputs to the encoder, targets to the decoder. Where there are no inputs the encoder reads one EOS."""
    inputs, targets = _never_empty(examples.inputs, vocab.eos), examples.targets
    encoder, _ = _one_after_another(inputs.lengths, rows, (num_rows, shape.inputs_length))
    decoder, segments = _one_after_another(targets.lengths, rows, (num_rows, shape.targets_length))
    target_tokens = decoder.tokens(targets, into=np.full(decoder.shape, vocab.pad, np.int32))
    return {
        **_encoder_fields(encoder, segments, inputs, vocab),
        **_decoder_fields(decoder, segments, target_tokens, vocab),
        "decoder_loss_weights": decoder.lay(1, into=np.zeros(decoder.shape, np.float32)),
        "example_source": decoder.per_run(source),
    }


def decoder_only(
    examples: InputsTargets,
    rows: np.ndarray,
    source: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
    *,
    bidirectional_inputs: bool = True,
) -> Batch:
    """Inputs, then targets, in one sequence; only targets are scored.

    With `bidirectional_inputs` the positions that read inputs see each other: as many as there are inputs, and one
    more, since inputs are shifted right (seqio's PrefixLMFeatureConverter). Without, the sequence is causal throughout.
    """
    inputs, targets = examples
    both, segments = _one_after_another(inputs.lengths + targets.lengths, rows, (num_rows, shape.inputs_length))
    inputs_place = _Placement(rows, both.starts, inputs.lengths, both.shape)
    targets_place = _Placement(rows, both.starts + inputs.lengths, targets.lengths, both.shape)
    tokens = inputs_place.tokens(inputs, into=np.full(both.shape, vocab.pad, np.int32))
    tokens = targets_place.tokens(targets, into=tokens)
    prefix = np.zeros(both.shape, bool)
    if bidirectional_inputs:
        reading = np.where(inputs.lengths > 0, inputs.lengths + 1, 0)
        _Placement(rows, both.starts, reading, both.shape).lay(True, into=prefix)
    return {
        **_decoder_fields(both, segments, tokens, vocab),
        "decoder_loss_weights": targets_place.lay(1, into=np.zeros(both.shape, np.float32)),
        "decoder_bidirectional_mask": prefix,
        "example_source": both.per_run(source),
    }


def encoder_only(
    examples: Masked, rows: np.ndarray, source: np.ndarray, num_rows: int, shape: RowShape, vocab: Vocab
) -> Batch:
    """Inputs and targets side by side; the selected positions are scored, whatever the inputs show there."""
    inputs, targets, selected = examples
    place, segments = _one_after_another(inputs.lengths, rows, (num_rows, shape.inputs_length))
    targets = Sequences(targets, inputs.lengths)
    return {
        **_encoder_fields(place, segments, inputs, vocab),
        "encoder_target_tokens": place.tokens(targets, into=np.full(place.shape, vocab.pad, np.int32)),
        "encoder_loss_weights": place.lay(
            selected[valid_positions(inputs.lengths, selected.shape[1])],
            into=np.zeros(place.shape, np.float32),
        ),
        "example_source": place.per_run(source),
    }
