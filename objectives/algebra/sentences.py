"""Sentences of raw examples, and their permutation."""

from typing import Literal, NamedTuple

import numpy as np

from contract import rng
from contract.vocab import NEWLINE, SPACE, STOP, Vocab
from objectives.algebra.noise import take, valid_positions

SentenceEnds = Literal["stops", "newlines", "stops_and_newlines"]


def sentence_ends(tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab, ends: SentenceEnds) -> np.ndarray:
    """bool [E, W]: the last token of each sentence, and the last token of each example.

    Of several consecutive tokens that end a sentence only the last counts, so a blank line is not a sentence.

    Args:
      tokens: int32 [E, W].
      lengths: int [E].
      vocab: marks the tokens that end a sentence.
      ends: "stops": ".", "!" or "?" before whitespace, so not in "3.14" or "np.max". "newlines": a line break.
        "stops_and_newlines": either. WordPiece's tokens do not show white space, so there "3.14" is two sentences.
    """
    valid = valid_positions(lengths, tokens.shape[1])
    is_end = np.zeros(tokens.shape, bool)
    if ends != "newlines":
        is_end[:, :-1] = vocab.marked(tokens[:, :-1], STOP) & vocab.marked(tokens[:, 1:], SPACE) & valid[:, 1:]
    if ends != "stops":
        is_end |= vocab.marked(tokens, NEWLINE)
    is_end[:, :-1] &= ~is_end[:, 1:]
    is_end &= valid
    is_end[np.arange(len(tokens)), lengths - 1] = True
    return is_end


class Sentences(NamedTuple):
    """The sentences of E examples, S at most in one."""

    # int64 [E, W], which sentence of its example each token is in; after the example's end, its count
    number: np.ndarray
    lengths: np.ndarray  # int64 [E, S + 1], in tokens; 0 for those that an example does not have
    counts: np.ndarray  # int64 [E]


def sentences_of(ends: np.ndarray) -> Sentences:
    """The sentences of examples with sentence `ends`, bool [E, W]."""
    count = ends.sum(axis=1)
    number = np.cumsum(ends, axis=1) - ends
    stops = np.zeros((len(ends), int(count.max()) + 1), np.int64)
    rows, places = np.nonzero(ends)
    stops[rows, number[rows, places]] = places + 1
    return Sentences(number, np.maximum(np.diff(stops, axis=1, prepend=0), 0), count)


def first_tokens(ends: np.ndarray) -> np.ndarray:
    """bool [E, W]: the first token of each sentence, and each example's first token after its end."""
    first = np.ones_like(ends)
    first[:, 1:] = ends[:, :-1]
    return first


def permuted_sentences(keys: np.ndarray, ends: np.ndarray, share: float) -> np.ndarray:
    """The source position of each token after sentences are permuted: int64 [E, W], a permutation of each row.

    ends: bool [E, W], the last token of each sentence. ceil(share * n) of an example's n sentences are drawn and
    permuted among themselves, every order equally likely; the others keep their place in the order (fairseq's
    `DenoisingDataset.permute_sentences`). Tokens after an example's end keep their position.
    """
    num_examples, width = ends.shape
    counts = ends.sum(axis=1)
    most = int(counts.max())
    exists = valid_positions(counts, most + 1)  # one more column for the tokens after the last sentence
    stops = np.full(exists.shape, width, np.int64)
    stops[exists] = np.flatnonzero(ends) % width + 1
    starts = np.zeros_like(stops)
    starts[:, 1:] = stops[:, :-1]

    drawn = rng.draw(keys, exists, np.ceil(counts.astype(np.float32) * np.float32(share)).astype(np.int64))
    order = np.tile(np.arange(most + 2), (num_examples, 1))  # the sentence of each rank
    np.put_along_axis(order, np.sort(drawn, axis=1), drawn, axis=1)
    order = order[:, :-1]
    lengths = take(stops - starts, order)
    shifts = take(starts, order) - (np.cumsum(lengths, axis=1) - lengths)  # from new positions to old ones
    return np.repeat(shifts.ravel(), lengths.ravel()).reshape(ends.shape) + np.arange(width)
