"""Sentences of raw examples, and their permutation. NumPy, vectorised over examples."""

from typing import Literal

import numpy as np

from objectives import keys as rng
from objectives.noise import valid_positions
from objectives.vocab import NEWLINE, SPACE, STOP, Vocab

SentenceEnds = Literal["stops", "newlines", "stops_and_newlines"]


def sentence_ends(tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab, ends: SentenceEnds) -> np.ndarray:
    """bool [E, W]: the last token of each sentence, and of each example, whatever it is.

    tokens: int32 [E, W], lengths: int [E]. A sentence ends in a stop (".", "!" or "?") with whitespace after it, so not
    inside "3.14" or "np.max", or in a line's end, or in either. Of several such tokens in a row the last one counts: a
    blank line is not a sentence.
    """
    valid = valid_positions(lengths, tokens.shape[1])
    is_end = np.zeros(tokens.shape, bool)
    if ends != "newlines":
        is_end[:, :-1] = vocab.marked(tokens[:, :-1], STOP) & vocab.marked(tokens[:, 1:], SPACE)
    if ends != "stops":
        is_end |= vocab.marked(tokens, NEWLINE)
    is_end[:, :-1] &= ~is_end[:, 1:]
    is_end &= valid
    is_end[np.arange(len(tokens)), lengths - 1] = True
    return is_end


def permuted_positions(keys: np.ndarray, ends: np.ndarray, share: float) -> np.ndarray:
    """Where each token goes when sentences change places: int64 [E, W], a permutation of every row's positions.

    ends: bool [E, W], the last token of each sentence. ceil(share * n) of an example's n sentences are drawn and
    permuted among themselves, every order equally likely; the others keep their rank (fairseq's
    `DenoisingDataset.permute_sentences`). Tokens after an example's end stay.
    """
    num_examples, width = ends.shape
    counts = ends.sum(axis=1, dtype=np.int64)
    most = int(counts.max())
    exists = valid_positions(counts, most)
    stops = np.full((num_examples, most), 0, np.int64)
    stops[exists] = np.flatnonzero(ends) % width + 1
    starts = np.zeros_like(stops)
    starts[:, 1:] = stops[:, :-1]
    lengths = np.where(exists, stops - starts, 0)

    drawn = rng.draw(keys, exists, np.ceil(counts.astype(np.float32) * np.float32(share)).astype(np.int64))
    rank = np.tile(np.arange(most + 1), (num_examples, 1))  # one column more for what is no sentence
    np.put_along_axis(rank, drawn, np.sort(drawn, axis=1), axis=1)
    rank = rank[:, :most]
    length_of_rank = np.zeros_like(lengths)
    np.put_along_axis(length_of_rank, rank, lengths, axis=1)
    start_of_rank = np.cumsum(length_of_rank, axis=1) - length_of_rank
    shifts = np.zeros((num_examples, most + 1), np.int64)
    shifts[:, :most] = np.where(exists, np.take_along_axis(start_of_rank, rank, axis=1) - starts, 0)

    sentence = np.zeros(ends.shape, np.int32)  # the number of each token's sentence
    np.cumsum(ends[:, :-1], axis=1, dtype=np.int32, out=sentence[:, 1:])
    sentence += (np.arange(num_examples, dtype=np.int32) * (most + 1))[:, None]
    return shifts.ravel().take(sentence) + np.arange(width)
