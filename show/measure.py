"""Counts tokens and spans of each example in the batches, independently of the objective."""

import numpy as np

from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, compact, span_starts
from show.examples import Examples


def measure(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Returns counts for each example, float64 [E] each.

    raw, inputs, targets, scored: tokens. `raw` excludes special tokens around a text, except in encoder-only batches.
    used, positions: positions, as in `Examples`.
    hidden: raw tokens that the inputs do not contain at the same place; in encoder-only batches the selected positions.
    spans: runs of hidden tokens. NaN if the inputs do not determine the runs: tokens were dropped at several places
      without a mark, or reordered.
    rearranged: 1 if the targets are the whole text in another order, 0 if they are the whole text in its order, NaN if
      they are only a part of the text. Not in encoder-only batches.
    masked, random, kept: selected positions of each kind. In encoder-only batches only.
    """
    counts = {
        "inputs": examples.inputs.lengths,
        "targets": examples.targets.lengths,
        "scored": examples.scored,
        "used": examples.used,
        "positions": examples.positions,
        **(_corrupted(examples, vocab) if examples.selected is None else _selected(examples, vocab)),
    }
    return {name: np.asarray(values, np.float64) for name, values in counts.items()}


def _selected(examples: Examples, vocab: Vocab) -> dict[str, np.ndarray]:
    """Returns the counts of examples that predict selected positions in place."""
    selected, inputs = examples.selected, examples.inputs.tokens
    masked = selected & (inputs == vocab.mask)
    kept = selected & (inputs == examples.targets.tokens)
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
    raw, inputs, targets = (_text(part, vocab) for part in (examples.raw, examples.inputs, examples.targets))
    hidden, spans, rearranged = np.zeros((3, len(raw.lengths)))
    for denoiser_id in np.unique(examples.denoiser_ids):
        chosen = np.flatnonzero(examples.denoiser_ids == denoiser_id)
        text, visible, predicted = (Sequences(s.tokens[chosen], s.lengths[chosen]) for s in (raw, inputs, targets))
        hidden[chosen], spans[chosen] = _hidden(text, visible, vocab)
        predicted = compact(predicted.tokens, _valid(predicted) & ~_is_mark(predicted, vocab))
        is_whole = (predicted.lengths == text.lengths).all()
        rearranged[chosen] = _common_prefix(text, predicted) < text.lengths if is_whole else np.nan
    return {"raw": raw.lengths, "hidden": hidden, "spans": spans, "rearranged": rearranged}


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
    agree = _common_prefix(raw, inputs) + _common_prefix(_reversed(raw), _reversed(inputs))
    return hidden, np.where(hidden == 0, 0, np.where(agree >= inputs.lengths, 1, np.nan))


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


def _reversed(sequences: Sequences) -> Sequences:
    tokens, lengths = sequences
    index = (lengths[:, None] - 1 - np.arange(tokens.shape[1])) % max(tokens.shape[1], 1)
    return Sequences(np.take_along_axis(tokens, index, axis=1), lengths)
