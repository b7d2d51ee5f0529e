"""Places examples in the rows of an encoder-decoder, a decoder or an encoder.

A row may contain several examples; each is a separate segment and does not attend to the others. contract/batch.py
describes the fields of the batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, append, prepend
from objectives.objective import Architecture, InputsTargets, Masked, RowShape
from objectives.rows.clean_copies import copy_lengths, read_in_blocks


class _Runs:
    """Rows filled from the left: the runs of positions of each example, example after example, then padding.

    Arrays are made run by run: NumPy repeats values much faster than it scatters them.
    """

    def __init__(
        self, row_ids: np.ndarray, lengths: np.ndarray, num_rows: int, width: int, copies: np.ndarray | None = None
    ):
        """Raises ValueError if the examples of a row are longer than the row.

        Args:
          row_ids: int [E], non-decreasing, the row of each example.
          lengths: int [E, P], the lengths of each example's P runs.
          num_rows: rows.
          width: positions of a row.
          copies: int [E], the lengths of the clean copies (objectives/rows/clean_copies.py), each the last run of its
            example, with its own positions. None: no example has one.
        """
        self._lengths_of_examples, self._copies = lengths.sum(axis=1), copies
        if copies is not None:
            lengths = np.column_stack([lengths, copies])
        used = np.bincount(row_ids, lengths.sum(axis=1), num_rows).astype(np.int64)
        if (used > width).any():
            raise ValueError(f"examples of {used.max()} tokens in rows of {width}")
        (num_examples, num_runs), row = lengths.shape, np.arange(num_rows)
        # Indices of the examples' runs, and of each row's padding, among all runs in the order of rows.
        self._index = (np.arange(num_examples) * num_runs + row_ids)[:, None] + np.arange(num_runs)
        padding = np.searchsorted(row_ids, row, side="right") * num_runs + row
        self._lengths = np.empty(num_examples * num_runs + num_rows, np.int64)
        self._lengths[self._index], self._lengths[padding] = lengths, width - used
        self._number_in_row = np.arange(num_examples) - np.searchsorted(row_ids, row_ids)
        self._one_per_row = num_examples == num_rows and not self._number_in_row.any()
        begins = (np.cumsum(self._lengths) - self._lengths)[self._index[:, 0]]
        self._begins_in_row = (begins - row_ids * width)[:, None]
        self.filled = self._own = valid_positions(used, width)  # bool [rows, width]
        # Indices into flattened rows: the first position of each example that has one, and of each row's padding.
        self.starts = begins[lengths.any(axis=1)]
        self.padding_starts = (row * width + used)[used < width]
        if copies is not None:
            self._separate_copies(num_runs)

    def _separate_copies(self, num_runs: int) -> None:
        """Gives the last run of each example, its clean copy, positions of its own."""
        is_copy = np.arange(num_runs) == num_runs - 1
        self._begins_in_row = self._begins_in_row + is_copy * self._lengths_of_examples[:, None]
        self._copied = self.spread(is_copy, np.bool_)
        self._own = self.filled & ~self._copied

    def spread(self, values: np.ndarray | int, dtype: type) -> np.ndarray:
        """[rows, width]: at each position the value of its run, 0 on padding. values: broadcastable to [E, P]."""
        value_of_run: np.ndarray = np.zeros(len(self._lengths), dtype)
        value_of_run[self._index] = values
        return np.repeat(value_of_run, self._lengths).reshape(self.filled.shape)

    def segments(self) -> np.ndarray:
        return self.spread(self._number_in_row[:, None] + 1, np.int32)

    def positions(self) -> np.ndarray:
        positions = np.arange(self.filled.shape[1], dtype=np.int32) * self.filled
        if self._copies is not None or not self._one_per_row:
            positions -= self.spread(self._begins_in_row, np.int32)
        return positions

    def fill(self, array: np.ndarray, padding: int, dtype: type = np.int32) -> np.ndarray:
        """[rows, width]: the values of each example, array[e], and elsewhere `padding`."""
        into: np.ndarray = np.full(self.filled.shape, padding, dtype)
        if not self._one_per_row:
            return _fill(array, self._lengths_of_examples, at=self._own, into=into)
        width = min(array.shape[1], into.shape[1])
        np.copyto(into[:, :width], array[:, :width], where=self._own[:, :width])
        return into

    def fill_both(self, array: np.ndarray, copies: np.ndarray | None, padding: int) -> np.ndarray:
        """As `fill`, with the values copies[e] in the clean copy of each example; None: no example has one."""
        into = self.fill(array, padding)
        if copies is None or self._copies is None:
            return into
        return _fill(copies, self._copies, at=self._copied, into=into)

    def fill_positions(self, array: np.ndarray) -> np.ndarray:
        """[rows, width]: the positions of each example, array[e]; those of clean copies are 0, 1, ..."""
        own = self.fill(array, 0)
        return own if self._copies is None else np.where(self._copied, self.positions(), own)


def _fill(array: np.ndarray, lengths: np.ndarray, at: np.ndarray, into: np.ndarray) -> np.ndarray:
    """`into` with the first lengths[e] of array[e], for all e in order, at the positions `at`."""
    into[at] = array[valid_positions(lengths, array.shape[1])]
    return into


def _shifted_right(runs: _Runs, tokens: np.ndarray, vocab: Vocab) -> np.ndarray:
    """int32 [rows, width]: the tokens one position later, after the decoder's start token in each segment."""
    shifted = np.empty_like(tokens)
    shifted[:, 1:] = tokens[:, :-1]
    shifted.ravel()[runs.padding_starts] = vocab.pad  # the tokens after it are padding already
    shifted.ravel()[runs.starts] = vocab.decoder_start
    return shifted


def _decoder_fields(runs: _Runs, targets: np.ndarray, denoiser_ids: np.ndarray, vocab: Vocab) -> Batch:
    return {
        "decoder_input_tokens": _shifted_right(runs, targets, vocab),
        "decoder_target_tokens": targets,
        "decoder_segment_ids": runs.segments(),
        "decoder_positions": runs.positions(),
        "example_source": runs.spread(denoiser_ids[:, None], np.int32),
    }


def _encoder_fields(runs: _Runs, inputs: Sequences, vocab: Vocab) -> Batch:
    return {
        "encoder_input_tokens": runs.fill(inputs.tokens, vocab.pad),
        "encoder_segment_ids": runs.segments(),
        "encoder_positions": runs.positions(),
    }


def _by_row(labels: np.ndarray, row_ids: np.ndarray, num_rows: int) -> np.ndarray:
    """int32 [rows]: the label of each row's example, 0 for a row without an example."""
    of_rows = np.zeros(num_rows, np.int32)
    of_rows[row_ids] = labels
    return of_rows


def _never_empty(sequences: Sequences, token: int) -> Sequences:
    """The sequences with `token` in place of each empty one."""
    if sequences.lengths.all():
        return sequences
    tokens = np.pad(sequences.tokens, ((0, 0), (0, int(sequences.tokens.shape[1] == 0))))
    tokens[:, 0] = np.where(sequences.lengths == 0, token, tokens[:, 0])
    return Sequences(tokens, np.maximum(sequences.lengths, 1))


def encoder_decoder(
    examples: InputsTargets,
    row_ids: np.ndarray,
    denoiser_ids: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
) -> Batch:
    """Returns a batch in which the encoder reads the inputs and the decoder predicts the targets.

    Without inputs the encoder reads a single EOS. Examples with labels have one row each, and the encoder reads an EOS
    after their inputs.

    Args:
      examples: E examples.
      row_ids: int [E], non-decreasing, the row of each example.
      denoiser_ids: int [E], the denoiser that made each example.
      num_rows: rows of the batch.
      shape: the positions of a row.
      vocab: the special ids.

    Raises ValueError where the examples of a row are longer than the row.
    """
    inputs, targets, labels, places, positions, given = examples
    assert places is None, "only a decoder-only model reads a text in another order"
    inputs = _never_empty(inputs, vocab.eos) if labels is None else append(inputs, vocab.eos)
    encoder = _Runs(row_ids, inputs.lengths[:, None], num_rows, shape.inputs_length)
    decoder = _Runs(row_ids, targets.lengths[:, None], num_rows, shape.targets_length)
    return {
        **_encoder_fields(encoder, inputs, vocab),
        **_decoder_fields(decoder, decoder.fill(targets.tokens, vocab.pad), denoiser_ids, vocab),
        "decoder_loss_weights": decoder.spread(1, np.float32) if given is None else decoder.fill(given, 0, np.float32),
        **({} if labels is None else {"sentence_labels": _by_row(labels, row_ids, num_rows)}),
        **({} if positions is None else {"decoder_positions": decoder.fill(positions, 0)}),
    }


class DecoderExamples(NamedTuple):
    """Examples of a decoder-only row, of either kind: a mixture may have both in one batch."""

    read: Sequences  # the tokens that the decoder reads, before any shift
    targets: np.ndarray  # int32 [E, W], the true tokens at the places of `read`
    weights: np.ndarray  # float32 [E, W], the loss weights of the targets
    shifted: np.ndarray  # bool [E], whether a target is predicted where the token before it is read
    prefix: np.ndarray  # int64 [E], how many leading positions the whole segment attends to
    labels: np.ndarray | None = None  # int32 [E]
    denominators: np.ndarray | None = None  # float32 [E, W], as in Masked
    attention_order: np.ndarray | None = None  # int32 [E, W], as in Masked
    blocks: np.ndarray | None = None  # int32 [E, W], as in Masked
    positions: np.ndarray | None = None  # int32 [E, W], as in Masked
    target_positions: np.ndarray | None = None  # int32 [E, W], the place of each target in its text; None: `positions`


_OF_EITHER = ("labels", "denominators", "attention_order", "blocks", "positions")  # in Masked and DecoderExamples


def decoder_examples(examples: InputsTargets | Masked, bidirectional_inputs: bool, vocab: Vocab) -> DecoderExamples:
    """Returns examples as decoder-only rows have them.

    Masked examples are read in both directions unless they are causal. bidirectional_inputs: as for `decoder_only`.
    """
    if isinstance(examples, Masked):
        lengths = examples.inputs.lengths
        weights = examples.selected.astype(np.float32) if examples.weights is None else examples.weights
        shifted = np.zeros(len(lengths), bool) if examples.shifted is None else examples.shifted
        prefix = lengths if examples.causal is None else np.where(examples.causal, 0, lengths)
        optional = {name: getattr(examples, name) for name in _OF_EITHER}
        return DecoderExamples(examples.inputs, examples.targets, weights, shifted, prefix, **optional)
    inputs, targets, labels, places, positions, given = examples
    lengths = inputs.lengths + targets.lengths
    filled = valid_positions(lengths, int(lengths.max(initial=0)))
    is_target = filled & ~valid_positions(inputs.lengths, filled.shape[1])
    tokens = _fill(*inputs, at=filled & ~is_target, into=np.zeros(filled.shape, np.int32))
    tokens = _fill(*targets, at=is_target, into=tokens)
    prefix = (inputs.lengths + (inputs.lengths > 0)) * bidirectional_inputs
    read, every = Sequences(tokens, lengths), np.ones(len(lengths), bool)
    weights = is_target.astype(np.float32)
    if given is not None:
        weights = _fill(given, targets.lengths, at=is_target, into=weights)
    in_order = DecoderExamples(read, tokens, weights, every, prefix, labels)
    if places is not None:
        positions = np.pad(places + 1, ((0, 0), (1, 0)))[:, :-1]  # of the token before each, which is read there
        return in_order._replace(positions=positions, target_positions=places)
    if positions is not None:
        all_places = np.tile(np.arange(filled.shape[1], dtype=np.int32), (len(lengths), 1))
        positions = _fill(positions, targets.lengths, at=is_target, into=all_places)
    return in_order._replace(positions=positions)


def with_optional(parts: Sequence[InputsTargets], architecture: Architecture) -> list[InputsTargets]:
    """Returns the parts of one batch with positions, and weights, of the targets in all parts if some have them.

    architecture: "encoder_decoder" or "decoder_only": whether the positions without any are those after the inputs.
    """
    with_all = []
    for part in parts:
        shape, first = part.targets.tokens.shape, part.inputs.lengths[:, None] * (architecture == "decoder_only")
        if part.positions is None and any(other.positions is not None for other in parts):
            part = part._replace(positions=(first + np.arange(shape[1])).astype(np.int32))
        if part.weights is None and any(other.weights is not None for other in parts):
            part = part._replace(weights=np.ones(shape, np.float32))
        with_all.append(part)
    return with_all


def _read_fields(runs: _Runs, read: np.ndarray, examples: DecoderExamples | Masked, stack: str, vocab: Vocab) -> Batch:
    """What a single stack reads: its input tokens, and where examples have them attention order and positions.

    read: int32 [E, W], before any shift. stack: "encoder" or "decoder".
    """
    blocks, order, shifted, clean = examples.blocks, examples.attention_order, examples.shifted, None
    if blocks is not None:
        read, clean, order, shifted = read_in_blocks(read, examples.targets, blocks, order, shifted, vocab)
    tokens = runs.fill_both(read, clean, vocab.pad)
    if shifted is not None and shifted.any():
        is_shifted = runs.spread(shifted[:, None], np.bool_)
        tokens = np.where(is_shifted, _shifted_right(runs, tokens, vocab), tokens)
    fields = {f"{stack}_input_tokens": tokens}
    if order is not None:
        fields[f"{stack}_attention_order"] = runs.fill_both(order, blocks, 0)
    if examples.positions is not None:
        fields[f"{stack}_positions"] = runs.fill_positions(examples.positions)
    return fields


def decoder_only(
    examples: InputsTargets | Masked | DecoderExamples,
    row_ids: np.ndarray,
    denoiser_ids: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
    *,
    bidirectional_inputs: bool = True,
) -> Batch:
    """Returns a batch with inputs and targets in one sequence, of which only the targets are scored.

    The rows of Masked examples are read in both directions unless they are causal, and the targets are predicted at
    their own positions or at those before them (`Masked.shifted`).

    bidirectional_inputs: whether the positions that read the start token or an input attend to each other. They are one
    more than the inputs, because the sequence is shifted right (as in seqio's PrefixLMFeatureConverter). If False, the
    sequence is causal. Examples with labels have one row each. The other arguments and the error are those of
    `encoder_decoder`.
    """
    if not isinstance(examples, DecoderExamples):
        examples = decoder_examples(examples, bidirectional_inputs, vocab)
    lengths, prefix = examples.read.lengths, np.minimum(examples.prefix, examples.read.lengths)
    copies = copy_lengths(examples.blocks, lengths)
    runs = _Runs(row_ids, np.stack([prefix, lengths - prefix], axis=1), num_rows, shape.inputs_length, copies)
    optional = _read_fields(runs, examples.read.tokens, examples, "decoder", vocab)
    if examples.labels is not None:
        optional["sentence_labels"] = _by_row(examples.labels, row_ids, num_rows)
    if examples.denominators is not None:
        optional["decoder_loss_denominators"] = runs.fill(examples.denominators, 0, np.float32)
    if examples.target_positions is not None:
        optional["decoder_target_positions"] = runs.fill_positions(examples.target_positions)
    is_prefix = np.asarray([True, False] if copies is None else [True, False, True])
    return {
        **_decoder_fields(runs, runs.fill(examples.targets, vocab.pad), denoiser_ids, vocab),
        "decoder_loss_weights": runs.fill(examples.weights, 0, np.float32),
        "decoder_bidirectional_mask": runs.spread(is_prefix, np.bool_),
        **optional,
    }


def _predicted_at_cls(examples: InputsTargets, vocab: Vocab) -> Masked:
    """[CLS] inputs [SEP], of which [CLS] alone is selected."""
    text = append(prepend(examples.inputs, vocab.cls), vocab.sep)
    selected = np.zeros(text.tokens.shape, bool)
    selected[:, 0] = True
    return Masked(text, text.tokens, selected, labels=examples.labels)


def encoder_only(
    examples: Masked | InputsTargets,
    row_ids: np.ndarray,
    denoiser_ids: np.ndarray,
    num_rows: int,
    shape: RowShape,
    vocab: Vocab,
) -> Batch:
    """Returns a batch in which the encoder reads the inputs and predicts targets in place, at the selected positions.

    Examples with labels have one row each. InputsTargets are classified at [CLS]: the row is
    [CLS] inputs [SEP]. The arguments and the error are those of `encoder_decoder`.
    """
    if isinstance(examples, InputsTargets):
        examples = _predicted_at_cls(examples, vocab)
    inputs = examples.inputs
    weights = examples.selected if examples.weights is None else examples.weights
    copies = copy_lengths(examples.blocks, inputs.lengths)
    runs = _Runs(row_ids, inputs.lengths[:, None], num_rows, shape.inputs_length, copies)
    fields = _encoder_fields(runs, inputs, vocab) | _read_fields(runs, inputs.tokens, examples, "encoder", vocab)
    if examples.token_types is not None:
        fields["encoder_token_types"] = runs.fill(examples.token_types, 0)
    if examples.labels is not None:
        fields["sentence_labels"] = _by_row(examples.labels, row_ids, num_rows)
    if examples.denominators is not None:
        fields["encoder_loss_denominators"] = runs.fill(examples.denominators, 0, np.float32)
    return {
        **fields,
        "encoder_target_tokens": runs.fill(examples.targets, vocab.pad),
        "encoder_loss_weights": runs.fill(weights, 0, np.float32),
        "example_source": runs.spread(denoiser_ids[:, None], np.int32),
    }
