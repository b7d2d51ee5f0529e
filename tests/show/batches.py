"""Chunks and pages of train.show written by hand, for its tests."""

import numpy as np

from contract.windows import Windows
from show.examples import Chunk
from show.page import Page
from show.statistics import Statistic


def stack_fields(stack, tokenizer, texts, width):
    """The tokens, segment ids and positions of one row that holds `texts`, one segment each."""
    tokens, segment_ids, positions = np.zeros((3, 1, width), np.int32)
    begin = 0
    for segment, text in enumerate(texts, start=1):
        ids = tokenizer.encode_with_specials(text)
        part = slice(begin, begin + len(ids))
        tokens[0, part], segment_ids[0, part], positions[0, part] = ids, segment, np.arange(len(ids))
        begin += len(ids)
    return tokens, {f"{stack}_segment_ids": segment_ids, f"{stack}_positions": positions}


def decoder_fields(tokenizer, texts, width):
    """The decoder's fields of one row, all positions scored."""
    targets, fields = stack_fields("decoder", tokenizer, texts, width)
    inputs = np.zeros_like(targets)
    inputs[:, 1:] = np.where(fields["decoder_positions"][:, 1:] > 0, targets[:, :-1], 0)
    weights = (fields["decoder_segment_ids"] > 0).astype(np.float32)
    return fields | {"decoder_input_tokens": inputs, "decoder_target_tokens": targets, "decoder_loss_weights": weights}


def windows(tokenizer, texts, denoiser_ids):
    """The raw windows of one row."""
    ids = [tokenizer.encode_with_specials(text) for text in texts]
    tokens = np.zeros((len(ids), max(map(len, ids))), np.int32)
    for padded, window in zip(tokens, ids, strict=True):
        padded[: len(window)] = window
    lengths, row_ids = np.asarray([len(window) for window in ids]), np.zeros(len(ids), np.int32)
    return Windows(tokens, lengths, row_ids, np.zeros(len(ids), np.uint64), np.asarray(denoiser_ids, np.int32))


def encoder_decoder_chunk(tokenizer, raw, inputs, targets, denoiser_ids=(0, 1), width=16):
    tokens, encoder = stack_fields("encoder", tokenizer, inputs, width)
    decoder = decoder_fields(tokenizer, targets, width)
    source = decoder["decoder_segment_ids"]
    batch = {**encoder, **decoder, "encoder_input_tokens": tokens, "example_source": source}
    return Chunk(windows(tokenizer, raw, denoiser_ids), batch)


def encoder_chunk(tokenizer, raw, inputs, targets, selected, width=16):
    """selected: the scored positions of the row."""
    input_tokens, encoder = stack_fields("encoder", tokenizer, inputs, width)
    target_tokens, _ = stack_fields("encoder", tokenizer, targets, width)
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
    """scored, prefix: positions of the row."""
    decoder = decoder_fields(tokenizer, rows, width)
    weights, bidirectional = np.zeros((1, width), np.float32), np.zeros((1, width), bool)
    weights[0, scored], bidirectional[0, prefix] = 1, True
    source = np.zeros((1, width), np.int32)
    masks = {"decoder_loss_weights": weights, "decoder_bidirectional_mask": bidirectional, "example_source": source}
    return Chunk(windows(tokenizer, raw, [0] * len(raw)), decoder | masks)


def page(rows, denoisers=()):
    """A page with `rows` and one statistic that is off."""
    statistics = {"r": {"corrupted": Statistic(0.6, 0.15, 0.0), "spans": Statistic(1.0, None, 0.0)}}
    return Page("a title", [("batch", "2")], [], list(denoisers), rows, statistics, "1 row", [])
