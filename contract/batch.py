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
