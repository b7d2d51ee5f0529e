"""Places examples in rows: the same inputs and targets for an encoder-decoder, a decoder or an encoder.

Rows may hold several examples; each is a segment of its own and sees nothing of the others. `rows` int [E] is
non-decreasing, `source` int [E] says which denoiser made the example. Results follow contract/batch.py.
"""

import numpy as np

from contract.batch import Batch
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, append, prepend
from objectives.objective import InputsTargets, Masked
from objectives.rows.lengths import RowShape


class _Runs:
    """Rows filled from the left: example after example, each in one or more runs of positions, then padding.

    rows: int [E], non-decreasing; lengths: int [E, P], of the runs of each example; width: positions of a row. Arrays
    are made run by run: NumPy repeats a value many times over far faster than it puts values in their places.
    """

    def __init__(self, rows: np.ndarray, lengths: np.ndarray, num_rows: int, width: int):
        used = np.bincount(rows, lengths.sum(axis=1), num_rows).astype(np.int64)
        if (used > width).any():
            raise ValueError(f"examples of {used.max()} tokens in rows of {width}")
        (num_examples, num_parts), row = lengths.shape, np.arange(num_rows)
        # The runs of all rows as they stand, the padding of each row after its examples.
        self._place = (np.arange(num_examples) * num_parts + rows)[:, None] + np.arange(num_parts)
        padding = np.searchsorted(rows, row, side="right") * num_parts + row
        self._lengths = np.empty(num_examples * num_parts + num_rows, np.int64)
        self._lengths[self._place], self._lengths[padding] = lengths, width - used
        self._number_in_row = np.arange(num_examples) - np.searchsorted(rows, rows)
        self.filled = valid_positions(used, width)  # bool [rows, width]

    def spread(self, values: np.ndarray, dtype: type) -> np.ndarray:
        """[rows, width]: at each position its run's value, 0 on padding. values: what broadcasts to [E, P]."""
        of_run = np.zeros(len(self._lengths), dtype)
        of_run[self._place] = values
        return np.repeat(of_run, self._lengths).reshape(self.filled.shape)

    def segments(self) -> np.ndarray:
        return self.spread(self._number_in_row[:, None] + 1, np.int32)

    def positions(self) -> np.ndarray:
        begins = (np.cumsum(self._lengths) - self._lengths)[self._place[:, :1]]
        positions = np.arange(self.filled.size, dtype=np.int32).reshape(self.filled.shape)
        positions -= self.spread(begins, np.int32)
        positions *= self.filled
        return positions


def _lay(array: np.ndarray, lengths: np.ndarray, at: np.ndarray, into: np.ndarray) -> np.ndarray:
    """The first lengths[e] of array[e], of all e one after another, at the places `at` of `into`, which it returns."""
    into[at] = array[valid_positions(lengths, array.shape[1])]
    return into


def _decoder_fields(runs: _Runs, targets: np.ndarray, denoiser_ids: np.ndarray, vocab: Vocab) -> Batch:
    positions = runs.positions()
    inputs = np.empty_like(targets)
    inputs[:, 1:] = targets[:, :-1]
    inputs[positions == 0] = vocab.pad
    return {
        "decoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_segment_ids": runs.segments(),
        "decoder_positions": positions,
        "example_source": runs.spread(denoiser_ids[:, None], np.int32),
    }


def _encoder_fields(runs: _Runs, inputs: Sequences, vocab: Vocab) -> Batch:
    return {
        "encoder_input_tokens": _lay(*inputs, at=runs.filled, into=np.full(runs.filled.shape, vocab.pad, np.int32)),
        "encoder_segment_ids": runs.segments(),
        "encoder_positions": runs.positions(),
    }


def _never_empty(sequences: Sequences, token: int) -> Sequences:
    """The sequences, `token` in place of each empty one."""
    if sequences.lengths.all():
        return sequences
    tokens = np.pad(sequences.tokens, ((0, 0), (0, int(sequences.tokens.shape[1] == 0))))
    tokens[:, 0] = np.where(sequences.lengths == 0, token, tokens[:, 0])
    return Sequences(tokens, np.maximum(sequences.lengths, 1))


def encoder_decoder(
    examples: InputsTargets,
    rows: np.ndarray,
    denoiser_ids: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
) -> Batch:
    """Inputs to the encoder, targets to the decoder. Where there are no inputs the encoder reads one EOS."""
    inputs, targets = _never_empty(examples.inputs, vocab.eos), examples.targets
    encoder = _Runs(rows, inputs.lengths[:, None], num_rows, shape.inputs_length)
    decoder = _Runs(rows, targets.lengths[:, None], num_rows, shape.targets_length)
    target_tokens = _lay(*targets, at=decoder.filled, into=np.full(decoder.filled.shape, vocab.pad, np.int32))
    return {
        **_encoder_fields(encoder, inputs, vocab),
        **_decoder_fields(decoder, target_tokens, denoiser_ids, vocab),
        "decoder_loss_weights": decoder.spread(1, np.float32),
    }


def decoder_only(
    examples: InputsTargets,
    rows: np.ndarray,
    denoiser_ids: np.ndarray,
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
    inputs, targets, labels = examples
    also_reads = (inputs.lengths > 0).astype(np.int64)  # the position of the first target
    parts = np.stack([inputs.lengths, also_reads, targets.lengths - also_reads], axis=1)
    runs = _Runs(rows, parts, num_rows, shape.inputs_length)
    is_target = runs.spread(np.asarray([False, True, True]), np.bool_)
    tokens = np.full(is_target.shape, vocab.pad, np.int32)
    tokens = _lay(*inputs, at=runs.filled & ~is_target, into=tokens)
    tokens = _lay(*targets, at=is_target, into=tokens)
    return {
        **_decoder_fields(runs, tokens, denoiser_ids, vocab),
        "decoder_loss_weights": is_target.astype(np.float32),
        "decoder_bidirectional_mask": runs.spread(np.asarray([True, True, False]) & bidirectional_inputs, np.bool_),
        **({} if labels is None else {"sentence_labels": labels}),
    }


def _read_at_cls(examples: InputsTargets, vocab: Vocab) -> Masked:
    text = append(prepend(examples.inputs, vocab.cls), vocab.sep)
    selected = np.zeros(text.tokens.shape, bool)
    selected[:, 0] = True
    return Masked(text, text.tokens, selected, labels=examples.labels)


def encoder_only(
    examples: Masked | InputsTargets,
    rows: np.ndarray,
    denoiser_ids: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
) -> Batch:
    """Inputs and targets side by side; the selected positions are scored, whatever the inputs show there.

    Labels are rows' and not segments': examples that have one stand one to a row, in order. Inputs that come with a
    label and targets in sequence have the label read at [CLS]: [CLS] inputs [SEP], with nothing selected but [CLS].
    """
    if isinstance(examples, InputsTargets):
        examples = _read_at_cls(examples, vocab)
    inputs, targets, selected, token_types, attention_order, labels = examples
    runs = _Runs(rows, inputs.lengths[:, None], num_rows, shape.inputs_length)
    fields = _encoder_fields(runs, inputs, vocab)
    per_token = {"encoder_token_types": token_types, "encoder_attention_order": attention_order}
    for name, values in per_token.items():
        if values is not None:
            fields[name] = _lay(values, inputs.lengths, at=runs.filled, into=np.zeros(runs.filled.shape, np.int32))
    if labels is not None:
        fields["sentence_labels"] = labels
    padding, unscored = np.full_like(fields["encoder_input_tokens"], vocab.pad), np.zeros(runs.filled.shape, np.float32)
    return {
        **fields,
        "encoder_target_tokens": _lay(targets, inputs.lengths, at=runs.filled, into=padding),
        "encoder_loss_weights": _lay(selected, inputs.lengths, at=runs.filled, into=unscored),
        "example_source": runs.spread(denoiser_ids[:, None], np.int32),
    }
