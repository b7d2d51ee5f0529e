"""The batch: the arrays that an objective makes of windows, and that models and losses read.

B rows; S encoder positions, T decoder positions. The names are seqio's, except `decoder_bidirectional_mask`: seqio's
`decoder_causal_attention` says the opposite of what it means.

| field | dtype [shape] | architectures | meaning |
|---|---|---|---|
| decoder_input_tokens, decoder_target_tokens | int32 [B, T] | decoder-only, encoder-decoder | inputs are targets shifted right within each segment; in a segment that is read in both directions throughout, the targets with some of them hidden, shifted or not; in a causal segment all scored targets may be hidden by one token that is none of its targets, or any of them by the mask token |
| decoder_loss_weights | float32 [B, T] | same | the only field that determines which positions are scored |
| decoder_segment_ids, decoder_positions | int32 [B, T] | same | segment 0 is padding; positions restart with each segment, at 0 unless an encoder-decoder's targets are a fragment of the text and have the text's positions; targets may have positions of their own |
| decoder_bidirectional_mask | bool [B, T] | decoder-only | True: the position is in the prefix, which the whole segment attends to |
| encoder_input_tokens, encoder_segment_ids, encoder_positions | int32 [B, S] | encoder-only, encoder-decoder | segments and positions as in the decoder |
| encoder_target_tokens, encoder_loss_weights | int32 / float32 [B, S] | encoder-only | weights mark the *selected* positions, including random and kept tokens |
| example_source | int32 [B, T] or [B, S] | all | the group whose sums the position is part of: in training the index of the denoiser that made the example; in held-out batches the number of the example in the batch, so that each example has a loss of its own |

Optional fields, which only some objectives make:

| field | dtype [shape] | architectures | meaning |
|---|---|---|---|
| decoder_loss_denominators, encoder_loss_denominators | float32 [B, T] or [B, S] | all | what each position adds to the denominator of the loss; without this field, its loss weight |
| encoder_token_types | int32 [B, S] | encoder-only | 0 in sentence A, 1 in sentence B |
| encoder_attention_order, decoder_attention_order | int32 [B, S] or [B, T] | encoder-only, decoder-only | see below; without this field, a segment's tokens attend to each other, in a decoder as decoder_bidirectional_mask says |
| decoder_target_positions | int32 [B, T] | decoder-only | the place of each target in its text; see below; without this field, decoder_positions |
| decoder_annealing_share | float32 [B] | decoder-only | attention mask annealing (DiffuLLaMA): the share of the pairs of a query and a later key, both in the prefix, that are unmasked; without this field, all |
| decoder_annealing_key | int32 [B] | decoder-only | the key of the random numbers that choose these pairs, the same in all rows of a batch |
| auxiliary_loss_weight | float32 [B] | all | in a batch of training, the weight of the learner's auxiliary loss, where a schedule changes it; without this field, that of the objective |
| sentence_labels | int32 [B] | all | the class of the row's text or pair of sentences; -1 without one |

An attention order removes keys from those that a token attends to. A token of order q >= 0 keeps the tokens of its segment
of the orders 0, ..., q. A token of order -q < 0 keeps the orders 0, ..., q - 1 and its own order, -q: a negative order is
visible to no other order. Block diffusion has order b in clean block b and -b in noisy block b; its segments are the noisy
copy of a text and then the clean one, both with the positions of the text; the targets of the clean copy are padding.

A text that is read in another order has decoder_target_positions: 0, 1, ... in the order of the text. Its decoder_positions
are those that the tokens which are read have in a row from left to right: 0 for the decoder start token, p + 1 for the token
at place p. In a row from left to right both fields are equal. The text a b c, read as c a b:

    decoder_target_tokens       c a b
    decoder_input_tokens        0 c a
    decoder_positions           0 3 1
    decoder_target_positions    2 0 1

A packed decoder-only row with two examples, (inputs 5 6, targets 7 1) and (inputs 8, targets 9 1), T = 10, pad 0, EOS 1
(the objective decides where EOS is; here it ends the targets), data.decoder_start_token="pad":

    decoder_target_tokens       5 6 7 1 8 9 1 0 0 0
    decoder_input_tokens        0 5 6 7 0 8 9 0 0 0     shifted within the segment, which starts with the decoder start token
    decoder_loss_weights        0 0 1 1 0 1 1 0 0 0
    decoder_segment_ids         1 1 1 1 2 2 2 0 0 0
    decoder_positions           0 1 2 3 0 1 2 0 0 0
    decoder_bidirectional_mask  1 1 1 0 1 1 0 0 0 0     the positions that read the start or an input
"""  # noqa: E501

import numpy as np

Batch = dict[str, np.ndarray]
Dtypes = dict[str, type[np.generic]]

_DECODER: Dtypes = {
    "decoder_input_tokens": np.int32,
    "decoder_target_tokens": np.int32,
    "decoder_loss_weights": np.float32,
    "decoder_segment_ids": np.int32,
    "decoder_positions": np.int32,
}
_ENCODER: Dtypes = {"encoder_input_tokens": np.int32, "encoder_segment_ids": np.int32, "encoder_positions": np.int32}
FIELDS: dict[str, Dtypes] = {
    "encoder_decoder": {**_ENCODER, **_DECODER, "example_source": np.int32},
    "decoder_only": {**_DECODER, "decoder_bidirectional_mask": np.bool_, "example_source": np.int32},
    "encoder_only": {
        **_ENCODER,
        "encoder_target_tokens": np.int32,
        "encoder_loss_weights": np.float32,
        "example_source": np.int32,
    },
}
OPTIONAL_FIELDS: dict[str, Dtypes] = {
    "encoder_decoder": {
        "decoder_loss_denominators": np.float32,
        "auxiliary_loss_weight": np.float32,
        "sentence_labels": np.int32,
    },
    "decoder_only": {
        "decoder_loss_denominators": np.float32,
        "decoder_annealing_share": np.float32,
        "decoder_annealing_key": np.int32,
        "decoder_attention_order": np.int32,
        "decoder_target_positions": np.int32,
        "auxiliary_loss_weight": np.float32,
        "sentence_labels": np.int32,
    },
    "encoder_only": {
        "encoder_loss_denominators": np.float32,
        "encoder_token_types": np.int32,
        "encoder_attention_order": np.int32,
        "auxiliary_loss_weight": np.float32,
        "sentence_labels": np.int32,
    },
}
ANNEALING_FIELDS = ("decoder_annealing_share", "decoder_annealing_key")  # without them all pairs are unmasked
_OF_ROWS = (*ANNEALING_FIELDS, "auxiliary_loss_weight", "sentence_labels")


def check_batch(batch: Batch, architecture: str, mask: int = -1) -> None:
    """Raises ValueError if `batch` is not a valid batch of `architecture`.

    Checks the names, dtypes and dimensions of the fields, the order of segments and padding, the positions, that
    padding has no loss weight and no denominator, and that decoder inputs are the targets shifted right within each
    segment. mask: the token that a causal segment may read in place of a scored target; -1: none.
    """
    _check_fields(batch, architecture)
    for stack in ("encoder", "decoder"):
        if f"{stack}_segment_ids" in batch:
            _check_segments(batch, stack)
    if "decoder_segment_ids" in batch:
        _check_shift(batch, mask)


def _check_fields(batch: Batch, architecture: str) -> None:
    fields = FIELDS[architecture] | {k: v for k, v in OPTIONAL_FIELDS[architecture].items() if k in batch}
    if set(batch) != set(fields):
        raise ValueError(f"{architecture} batch: fields {sorted(set(batch) ^ set(fields))} are missing or unknown")
    rows = {len(array) for array in batch.values()}
    if len(rows) != 1:
        raise ValueError(f"{architecture} batch: fields have different numbers of rows: {sorted(rows)}")
    for name, dtype in fields.items():
        dimensions = 1 if name in _OF_ROWS else 2
        if batch[name].dtype != dtype or batch[name].ndim != dimensions:
            expected = f"{np.dtype(dtype)}{'[B, L]' if dimensions == 2 else '[B]'}"
            raise ValueError(f"{name} is {batch[name].dtype}{list(batch[name].shape)}, not {expected}")


def _check_segments(batch: Batch, stack: str) -> None:
    segment_ids = batch[f"{stack}_segment_ids"]
    padding = segment_ids == 0
    if (np.diff(np.where(padding, np.iinfo(np.int32).max, segment_ids), axis=1) < 0).any():
        raise ValueError(f"{stack}_segment_ids must not decrease along a row, with padding last")
    in_text = stack == "decoder" and "encoder_segment_ids" in batch  # the targets may have the positions of the text
    restarts = padding if in_text else _starts(segment_ids) | padding
    if (batch[f"{stack}_positions"][restarts] != 0).any():
        raise ValueError(f"{stack}_positions must restart at 0 with each segment and be 0 on padding")
    for name in (f"{stack}_loss_weights", f"{stack}_loss_denominators"):
        if name in batch and (batch[name][padding] != 0).any():
            raise ValueError(f"{name} must be 0 on padding")


def _check_shift(batch: Batch, mask: int) -> None:
    segment_ids = batch["decoder_segment_ids"]
    inside = ((segment_ids != 0) & ~_starts(segment_ids))[:, 1:]
    if "decoder_bidirectional_mask" in batch:
        inside &= ~(_both_directions(batch) | _dummies(batch) | _masked(batch, mask))[:, 1:]
    shifted = batch["decoder_input_tokens"][:, 1:] == batch["decoder_target_tokens"][:, :-1]
    if not shifted[inside].all():
        raise ValueError("decoder_input_tokens are not decoder_target_tokens shifted right within segments")


def in_place(batch: Batch, mask: int = -1) -> np.ndarray:
    """bool [B, L]: the segments of a decoder-only batch whose inputs hide some of their targets, predicted in place.

    They are read in both directions throughout, or causally with one token in place of all scored targets, or the token
    `mask` in place of some.
    """
    hidden = _dummies(batch) | _masked(batch, mask)
    return _both_directions(batch) | segments_with(batch["decoder_segment_ids"], hidden)


def _both_directions(batch: Batch) -> np.ndarray:
    """bool [B, L]: the segments that are read in both directions throughout."""
    segment_ids = batch["decoder_segment_ids"]
    return ~segments_with(segment_ids, ~batch["decoder_bidirectional_mask"]) & (segment_ids != 0)


def _dummies(batch: Batch) -> np.ndarray:
    """bool [B, L]: where a segment reads, in place of every scored target, one token that is none of its targets."""
    segment_ids = batch["decoder_segment_ids"]
    after_scored = (segment_ids != 0) & ~_starts(segment_ids)
    after_scored[:, 1:] &= batch["decoder_loss_weights"][:, :-1] > 0
    keys, targets = _segment_keys(segment_ids), batch["decoder_target_tokens"].astype(np.int64)
    found, first, number = np.unique(keys[after_scored], return_index=True, return_inverse=True)
    read = batch["decoder_input_tokens"][after_scored]
    token = read[first].astype(np.int64)  # of each segment in `found`
    several = found[number[read != token[number]]]
    is_target = np.isin((keys << 32) + targets, (found << 32) + token)
    return after_scored & ~np.isin(keys, several) & ~segments_with(segment_ids, is_target)


def _masked(batch: Batch, mask: int) -> np.ndarray:
    """bool [B, L]: where a segment reads the token `mask` in place of a scored target that is another token."""
    segment_ids, read = batch["decoder_segment_ids"], batch["decoder_input_tokens"]
    found = (segment_ids != 0) & ~_starts(segment_ids) & (read == mask)
    found[:, 1:] &= (batch["decoder_loss_weights"][:, :-1] > 0) & (
        read[:, 1:] != batch["decoder_target_tokens"][:, :-1]
    )
    return found


def segments_with(segment_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """bool [B, L]: the segments, int32 [B, L], that have one of some positions, bool [B, L]."""
    keys = _segment_keys(segment_ids)
    return np.isin(keys, keys[positions])


def _segment_keys(segment_ids: np.ndarray) -> np.ndarray:
    """int64 [B, L]: a number of each segment that no other row has, of padding too."""
    return np.arange(len(segment_ids))[:, None] * (int(segment_ids.max(initial=0)) + 1) + segment_ids


def _starts(segment_ids: np.ndarray) -> np.ndarray:
    """bool [B, L]: where a segment starts."""
    starts = segment_ids != 0
    starts[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
    return starts
