"""Chunks and pages of train.show written by hand, for its tests."""

import numpy as np

from contract.windows import Windows
from train.show.counts import Count
from train.show.examples import Chunk
from train.show.page import Page


def lay(side, tokenizer, texts, width):
    """Fields of one row that holds `texts`, one segment each."""
    tokens, segments, positions = np.zeros((3, 1, width), np.int32)
    at = 0
    for segment, text in enumerate(texts, start=1):
        ids = tokenizer.encode_with_specials(text)
        here = slice(at, at + len(ids))
        tokens[0, here], segments[0, here], positions[0, here] = ids, segment, np.arange(len(ids))
        at += len(ids)
    return tokens, {f"{side}_segment_ids": segments, f"{side}_positions": positions}


def windows(tokenizer, texts, source):
    ids = [tokenizer.encode_with_specials(text) for text in texts]
    tokens = np.zeros((len(ids), max(map(len, ids))), np.int32)
    for row, one in zip(tokens, ids, strict=True):
        row[: len(one)] = one
    lengths, rows = np.asarray([len(one) for one in ids]), np.zeros(len(ids), np.int32)
    return Windows(tokens, lengths, rows, np.zeros(len(ids), np.uint64), np.asarray(source, np.int32))


def encoder_decoder_chunk(tokenizer, raw, inputs, targets, source=(0, 1), width=16):
    input_tokens, encoder = lay("encoder", tokenizer, inputs, width)
    target_tokens, decoder = lay("decoder", tokenizer, targets, width)
    shifted = np.zeros_like(target_tokens)
    shifted[:, 1:] = np.where(decoder["decoder_positions"][:, 1:] > 0, target_tokens[:, :-1], 0)
    batch = {
        **encoder,
        **decoder,
        "encoder_input_tokens": input_tokens,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": target_tokens,
        "decoder_loss_weights": (decoder["decoder_segment_ids"] > 0).astype(np.float32),
        "example_source": decoder["decoder_segment_ids"],
    }
    return Chunk(windows(tokenizer, raw, source), batch)


def encoder_chunk(tokenizer, raw, inputs, targets, selected, width=16):
    input_tokens, encoder = lay("encoder", tokenizer, inputs, width)
    target_tokens, _ = lay("encoder", tokenizer, targets, width)
    weights = np.zeros((1, width), np.float32)
    weights[0, selected] = 1
    batch = {
        **encoder,
        "encoder_input_tokens": input_tokens,
        "encoder_target_tokens": target_tokens,
        "encoder_loss_weights": weights,
        "example_source": np.zeros_like(input_tokens),
    }
    return Chunk(windows(tokenizer, raw, [0] * len(raw)), batch)


def decoder_chunk(tokenizer, raw, rows, scored, prefix, width=16):
    """`scored` and `prefix`: the positions of the row."""
    target_tokens, decoder = lay("decoder", tokenizer, rows, width)
    weights, bidirectional = np.zeros((1, width), np.float32), np.zeros((1, width), bool)
    weights[0, scored], bidirectional[0, prefix] = 1, True
    shifted = np.zeros_like(target_tokens)
    shifted[:, 1:] = np.where(decoder["decoder_positions"][:, 1:] > 0, target_tokens[:, :-1], 0)
    batch = {
        **decoder,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": target_tokens,
        "decoder_loss_weights": weights,
        "decoder_bidirectional_mask": bidirectional,
        "example_source": np.zeros_like(target_tokens),
    }
    return Chunk(windows(tokenizer, raw, [0] * len(raw)), batch)


def page(rows, counts=None, denoisers=()):
    counts = counts or {"r": {"corrupted": Count(0.6, 0.15, 0.0), "spans": Count(1.0, None, 0.0)}}
    return Page("a title", [("rows", "2")], [], list(denoisers), rows, counts, "1 row", [])
