"""The rows that training reads, the examples in them, and counts of their tokens, independent of the objective."""

from typing import NamedTuple

import numpy as np

from contract.batch import Batch, in_place, segments_with
from contract.vocab import Vocab
from contract.windows import Windows
from data.windows.batches import Batches
from data.windows.documents import Documents, MixedDocuments
from data.windows.order import weights_at
from experiment.experiment import Experiment
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, compact, span_starts

_CHUNK_POSITIONS = 1 << 17


class Chunk(NamedTuple):
    """Consecutive rows of the run. The number of rows does not depend on `train.batch_size`."""

    windows: Windows
    batch: Batch


class Examples(NamedTuple):
    """E examples, in the order of their rows and segments."""

    rows: np.ndarray  # int [E], row of the chunk
    segments: np.ndarray  # int [E], from 1
    denoiser_ids: np.ndarray  # int [E]
    raw: Sequences
    inputs: Sequences  # what the encoder reads; decoder_only: the tokens that are not scored; in place: all, as shown
    targets: Sequences  # the tokens to predict; in place: the original tokens at all positions
    scored: np.ndarray  # int [E], number of scored tokens
    in_place: np.ndarray  # bool [E], whether tokens are predicted in place
    selected: np.ndarray  # bool [E, W], the scored positions of examples in place
    used: np.ndarray  # int [E], positions of all stacks that hold the example
    positions: np.ndarray  # float [E], `used` and an equal part of the padding of the example's row


def chunks(experiment: Experiment, documents: Documents | MixedDocuments) -> tuple[Batches, int]:
    """Returns a dataset of `Chunk`s, which are the rows of training in their order, and the number of rows in each."""
    shape = experiment.row_shape
    positions = shape.inputs_length + (shape.targets_length if shape.architecture == "encoder_decoder" else 0)
    num_rows = max(_CHUNK_POSITIONS // positions, 1)

    def read(windows: Windows, rows: int) -> Chunk:
        return Chunk(windows, experiment.collate(windows, rows))

    return experiment.batches(documents, batch_size=num_rows, transform=read), num_rows


def chunk_numbers(experiment: Experiment, num_chunks: int, chunk_rows: int) -> list[int]:
    """Returns the numbers of the chunks to read: 0, 1, ..., `num_chunks` - 1.

    If the weights of the mixture, or the fields of an objective, change during the run: at most `num_chunks` numbers,
    evenly spaced over the run, so that measured shares and rates are those of the run.
    """
    changes = any(spec.ramp for spec in experiment.window_specs) or any(task.schedule for task in experiment.tasks)
    if not changes:
        return list(range(num_chunks))
    last = (experiment.train.steps * experiment.train.batch_size - 1) // chunk_rows
    return np.unique(np.linspace(0, last, num_chunks).round().astype(int)).tolist()


def expected_shares(dataset: Batches, numbers: list[int]) -> np.ndarray:
    """Returns the expected share of each denoiser in the windows of chunks `numbers`, float64 [denoisers]."""
    windows = (np.asarray(numbers)[:, None] * dataset.num_windows + np.arange(dataset.num_windows)).ravel()
    weights = weights_at(dataset.weights, dataset.ramps, windows)
    return (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)


def stacks(batch: Batch) -> list[str]:
    """Returns the stacks that the batch has fields for: "encoder", "decoder" or both."""
    return [stack for stack in ("encoder", "decoder") if f"{stack}_segment_ids" in batch]


def _targets(batch: Batch) -> np.ndarray:
    """bool [B, T]: what is predicted in a decoder's row: from the prefix's end, or the first scored target, on.

    Targets may have no loss weight. The first of them, where nothing marks the prefix, is one of the inputs then.
    """
    segments, prefix = batch["decoder_segment_ids"], batch["decoder_bidirectional_mask"]
    begins = batch["decoder_loss_weights"] > 0
    begins[:, :-1] |= prefix[:, :-1] & ~prefix[:, 1:] & (segments[:, :-1] == segments[:, 1:])
    return np.maximum.accumulate(begins * segments, axis=1) == segments


def examples_of(chunk: Chunk, vocab: Vocab) -> Examples:
    """Returns the examples of a chunk. Example k of a row is segment k + 1 of each stack (contract/batch.py)."""
    windows, batch = chunk
    num_examples, num_rows = len(windows.row_ids), len(batch["example_source"])
    first = np.searchsorted(windows.row_ids, np.arange(num_rows))
    present = {stack: batch[f"{stack}_segment_ids"] > 0 for stack in stacks(batch)}
    example = {stack: first[:, None] + batch[f"{stack}_segment_ids"] - 1 for stack in present}

    def count(stack: str, chosen: np.ndarray) -> np.ndarray:
        return np.bincount(example[stack][chosen], minlength=num_examples)

    def sequences(stack: str, field: str, chosen: np.ndarray) -> Sequences:
        lengths, values = count(stack, chosen), batch[f"{stack}_{field}"]
        padded = np.zeros((num_examples, lengths.max(initial=0)), values.dtype)
        padded[valid_positions(lengths, padded.shape[1])] = values[chosen]
        return Sequences(padded, lengths)

    scored = {stack: batch[f"{stack}_loss_weights"] > 0 for stack in present if f"{stack}_loss_weights" in batch}
    targets = Sequences(np.zeros((num_examples, 0), np.int32), np.zeros(num_examples, np.int64))
    is_in_place, stack = np.full(num_examples, "decoder" not in present), "encoder"
    if "encoder" in present:
        if "decoder" not in present and "encoder" in scored:
            batch = batch | {"encoder_input_tokens": shown_tokens(batch, vocab, "encoder")}
        inputs = sequences("encoder", "input_tokens", present["encoder"])
        if "encoder" in scored:
            targets = sequences("encoder", "target_tokens", present["encoder"])
        if "decoder" in present:
            targets = sequences("decoder", "target_tokens", present["decoder"])
    else:
        stack, place, source = "decoder", in_place(batch, vocab.mask), batch["example_source"]
        # A denoiser that hides tokens of causal rows may hide none in some of them.
        hides = place & ~batch["decoder_bidirectional_mask"]
        place |= present["decoder"] & np.isin(source, source[hides])
        is_in_place = count("decoder", place) > 0
        batch = batch | {"decoder_shown_tokens": shown_tokens(batch, vocab)}
        is_target = place | _targets(batch) & present["decoder"]
        inputs = sequences("decoder", "shown_tokens", present["decoder"] & (place | ~is_target))
        targets = sequences("decoder", "target_tokens", is_target)
    selected = np.zeros(targets.tokens.shape, bool)
    if stack in scored and is_in_place.any():
        weights = sequences(stack, "loss_weights", present[stack]).tokens[:, : selected.shape[1]]
        selected[:, : weights.shape[1]] = (weights > 0) & is_in_place[:, None]
    examples_in_row = np.bincount(windows.row_ids, minlength=num_rows)[windows.row_ids]
    used = sum(count(stack, mask) for stack, mask in present.items())
    padding = sum((~mask).sum(axis=1) for mask in present.values())
    return Examples(
        rows=windows.row_ids,
        segments=np.arange(num_examples) - first[windows.row_ids] + 1,
        denoiser_ids=windows.denoiser_ids,
        raw=Sequences(windows.tokens, windows.lengths),
        inputs=inputs,
        targets=targets,
        scored=sum(count(stack, mask) for stack, mask in scored.items()) + np.zeros(num_examples, int),
        in_place=is_in_place,
        selected=selected,
        used=used,
        positions=used + padding[windows.row_ids] / examples_in_row,
    )


def shown_tokens(batch: Batch, vocab: Vocab, stack: str = "decoder") -> np.ndarray:
    """Returns what a batch of a single stack shows in the place of each target, int32 [B, L].

    The target itself, except in segments with hidden targets. Where these are predicted at the position before, the
    last token of a segment, or of a block, is read by no position: it is a mask if all tokens that the segment scores
    are hidden.
    """
    inputs, targets, segments = (batch[f"{stack}_{name}"] for name in ("input_tokens", "target_tokens", "segment_ids"))
    place = in_place(batch, vocab.mask) if stack == "decoder" else segments != 0
    is_first = np.diff(segments, axis=1, prepend=0) != 0
    starts = place & is_first & (inputs == vocab.decoder_start) & (targets != vocab.decoder_start)
    shifted = place & segments_with(segments, starts)
    is_last = np.diff(segments, axis=1, append=0) != 0
    if f"{stack}_attention_order" in batch:  # the last token of a noisy block is read by no position either
        order = batch[f"{stack}_attention_order"]
        is_last |= (order < 0) & (np.diff(order, axis=1, append=0) != 0)
    after, scored = np.roll(inputs, -1, axis=1), batch[f"{stack}_loss_weights"] > 0
    scores_visible = segments_with(segments, scored & ~is_last & (after != vocab.mask))
    after = np.where(is_last, np.where(scored & ~scores_visible, vocab.mask, targets), after)
    return np.where(shifted, after, np.where(place, inputs, targets)).astype(np.int32)


def measure(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Returns counts for each example, float64 [E] each.

    raw, inputs, targets, scored: tokens. `raw` excludes special tokens around a text, except of examples in place.
    used, positions: positions, as in `Examples`.
    hidden: raw tokens that the inputs do not contain at the same place; of examples in place the selected positions.
    spans: runs of hidden tokens. NaN if the inputs do not determine the runs: tokens were dropped without a mark and
      not at the end alone, or reordered.
    Where an example is in place also in_place, which examples are, and masked, random and kept: their selected
      positions of each kind.
    """
    counts = {
        "inputs": examples.inputs.lengths,
        "targets": examples.targets.lengths,
        "scored": examples.scored,
        "used": examples.used,
        "positions": examples.positions,
    }
    others = {} if examples.in_place.all() else _corrupted(examples, vocab)
    if not examples.in_place.any():
        counts |= others
    else:
        selected = _selected(examples, vocab) | {"in_place": examples.in_place}
        counts |= selected | {name: np.where(examples.in_place, selected[name], others[name]) for name in others}
    return {name: np.asarray(values, np.float64) for name, values in counts.items()}


def _selected(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Returns the counts of examples that predict selected positions in place."""
    width = min(examples.inputs.tokens.shape[1], examples.targets.tokens.shape[1])
    selected, inputs = examples.selected[:, :width], examples.inputs.tokens[:, :width]
    masked = selected & (inputs == vocab.mask)
    kept = selected & (inputs == examples.targets.tokens[:, :width])
    return {
        "raw": examples.raw.lengths,
        "hidden": selected.sum(axis=1),
        "spans": span_starts(selected).sum(axis=1),
        "masked": masked.sum(axis=1),
        "random": (selected & ~masked & ~kept).sum(axis=1),
        "kept": kept.sum(axis=1),
    }


def _corrupted(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Returns the counts of examples that read inputs and predict targets."""
    raw, inputs = (_text(part, vocab) for part in (examples.raw, examples.inputs))
    hidden, spans = np.zeros((2, len(raw.lengths)))
    for denoiser_id in np.unique(examples.denoiser_ids):
        chosen = np.flatnonzero(examples.denoiser_ids == denoiser_id)
        text, visible = (Sequences(s.tokens[chosen], s.lengths[chosen]) for s in (raw, inputs))
        hidden[chosen], spans[chosen] = _hidden(text, visible, vocab)
    return {"raw": raw.lengths, "hidden": hidden, "spans": spans}


def _hidden(raw: Sequences, inputs: Sequences, vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hidden tokens and the spans of one denoiser's examples, float [E] each."""
    valid = _valid(inputs)
    if (raw.lengths == inputs.lengths).all():  # each token has kept its place: compare position by position
        width = inputs.tokens.shape[1]
        changed = (raw.tokens[:, :width] != inputs.tokens) & valid
        in_order = [np.sort(np.where(valid, s.tokens[:, :width], -1), axis=1) for s in (raw, inputs)]
        is_new_order = changed.any() and (in_order[0] == in_order[1]).all()
        return changed.sum(axis=1), np.where(is_new_order, np.nan, span_starts(changed).sum(axis=1))
    marks = valid & _is_mark(inputs, vocab)
    hidden = raw.lengths - (valid & ~marks).sum(axis=1)
    if marks.any():  # each mark replaces one span
        return hidden, marks.sum(axis=1)
    is_prefix = _common_prefix(raw, inputs) == inputs.lengths  # the span is the rest of the text
    return hidden, np.where(hidden == 0, 0, np.where(is_prefix, 1, np.nan))


def _text(sequences: Sequences, vocab: Vocab) -> Sequences:
    """Returns the sequences without the special tokens that surround a text."""
    around = [vocab.pad, vocab.eos, vocab.bos, vocab.cls, vocab.sep, *(id_ for _, id_ in vocab.modes)]
    return compact(sequences.tokens, _valid(sequences) & ~np.isin(sequences.tokens, around))


def _valid(sequences: Sequences) -> np.ndarray:
    return valid_positions(sequences.lengths, sequences.tokens.shape[1])


def _is_mark(sequences: Sequences, vocab: Vocab) -> np.ndarray:
    """Returns which tokens are sentinels or masks, bool [E, W]."""
    return np.isin(sequences.tokens, vocab.sentinels) | (sequences.tokens == vocab.mask)


def _common_prefix(a: Sequences, b: Sequences) -> np.ndarray:
    """Returns the length of the longest common prefix of each pair of sequences, int [E]."""
    width = min(a.tokens.shape[1], b.tokens.shape[1])
    same = a.tokens[:, :width] == b.tokens[:, :width]
    same &= valid_positions(np.minimum(a.lengths, b.lengths), width)
    return np.logical_and.accumulate(same, axis=1).sum(axis=1)
