"""Sequences of different lengths in one array, and operations on all of them at once."""

from typing import NamedTuple

import numpy as np

from contract.vocab import Vocab
from objectives.algebra.noise import count_by_row, valid_positions


class Sequences(NamedTuple):
    """E sequences: tokens int32 [E, W] and lengths int64 [E]. Tokens after a sequence's end have no meaning."""

    tokens: np.ndarray
    lengths: np.ndarray


def compact(tokens: np.ndarray, keep: np.ndarray) -> Sequences:
    """The tokens, int32 [E, W], of each row where `keep`, bool [E, W], in order and without gaps."""
    places = np.flatnonzero(keep)
    lengths = count_by_row(places, keep.shape)
    kept = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int32)
    kept[valid_positions(lengths, kept.shape[1])] = tokens.ravel().take(places)
    return Sequences(kept, lengths)


def append(sequences: Sequences, token: int) -> Sequences:
    """The sequences with `token` appended to each."""
    num_examples, width = sequences.tokens.shape
    tokens = np.empty((num_examples, width + 1), np.int32)
    tokens[:, :width] = sequences.tokens
    tokens[:, width] = token
    tokens[np.arange(num_examples), sequences.lengths] = token
    return Sequences(tokens, sequences.lengths + 1)


def prepend(sequences: Sequences, token: int | np.ndarray) -> Sequences:
    """The sequences with `token`, one for all or int [E], prepended to each."""
    num_examples, width = sequences.tokens.shape
    tokens = np.empty((num_examples, width + 1), np.int32)
    tokens[:, 0] = token
    tokens[:, 1:] = sequences.tokens
    return Sequences(tokens, sequences.lengths + 1)


def random_tokens(bits: np.ndarray, vocab: Vocab) -> np.ndarray:
    """Uniformly random ordinary tokens, int32 [...], from random `bits`, uint64 [...]."""
    content = np.uint64(vocab.content_end - vocab.content_start)
    return (vocab.content_start + bits % content).astype(np.int32)


def span_starts(noise: np.ndarray) -> np.ndarray:
    """bool [E, W]: the first position of each run of True."""
    starts = noise.copy()
    starts[:, 1:] &= ~noise[:, :-1]
    return starts
