"""Words of token sequences, and the choice of whole words and runs of them. NumPy, vectorised over sequences."""

from collections.abc import Sequence

import numpy as np

from contract import rng
from contract.vocab import BLANK, PUNCTUATION, SPACE, Vocab
from objectives.algebra.noise import take, valid_positions


def word_starts(tokens: np.ndarray, ordinary: np.ndarray, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the first token of each word. tokens: int32 [E, W]; ordinary: bool [E, W], those of words.

    A word begins with whitespace or punctuation and goes on to the next of either, or to a token that is not ordinary;
    whitespace before it is part of it. So of "x = f(a.b)" the words are "x", " =", " f", "(a", ".b" and ")": ALBERT's
    rule for SentencePiece, where BERT's pieces are marked "##" by a tokenizer that splits punctuation off both sides.
    """
    starts = vocab.marked(tokens, SPACE | PUNCTUATION)
    starts[:, 1:] &= ~vocab.marked(tokens[:, :-1], BLANK)
    starts[:, 1:] |= ~ordinary[:, :-1]
    starts[:, 0] = True
    return starts & ordinary


def choose_ngrams(
    keys: np.ndarray, candidates: np.ndarray, starts: np.ndarray, budgets: np.ndarray, weights: Sequence[float]
) -> np.ndarray:
    """Whole words up to a number of tokens, n-grams of them at a time: bool [E, W], the tokens chosen.

    candidates: bool [E, W], the tokens of words; starts: bool [E, W], the first of each word; budgets: int [E], the
    most tokens, at most candidates[e].sum(). weights: of n-grams of 1, 2, 3, ... words; they need not add up to 1.

    The words are cut into n-grams, each of a length drawn by `weights` whatever the others are; one also ends before a
    token that is no candidate, and at the end. N-grams are then drawn in random order and taken while they fit. Of one
    that does not fit the leading words that do are taken, and the drawing goes on for what room is left: what BERT does
    with words (create_pretraining_data.py) and ALBERT with n-grams, whose overlaps there are none of here.

    Where no word drawn fits, for each is longer than the budget, that many single tokens are chosen.
    """
    chosen = np.zeros(candidates.shape, bool)
    places, counts = np.flatnonzero(candidates), starts.sum(axis=1)
    if not len(places):
        return chosen
    first = np.flatnonzero(starts.ravel()[places])  # the words of all rows, one after another, by their first token
    sizes = np.diff(first, append=len(places))
    exists = valid_positions(counts, int(counts.max()))
    heads = exists
    if len(weights) > 1:
        after_gap = np.zeros_like(exists)
        after_gap[exists] = ~candidates.ravel()[places[first] - 1]
        heads = exists & (_cuts(rng.fold_in(keys, 0), exists.shape[1], weights) | after_gap)
    order = _shuffled(rng.fold_in(keys, 1), heads, exists)

    word = order + np.repeat(np.cumsum(counts) - counts, counts)  # among those of all rows
    shuffled_sizes, follows = np.zeros(exists.shape, np.int64), np.zeros_like(exists)
    shuffled_sizes[exists] = sizes[word]
    follows[exists] = ~heads[exists][word]
    taken = np.empty(len(word), bool)
    taken[word] = _fitting(shuffled_sizes, follows, budgets)[exists]
    chosen.ravel()[places] = np.repeat(taken, sizes)

    without = np.flatnonzero(~chosen.any(axis=1))
    if len(without):
        chosen[without] = rng.choose_mask(rng.fold_in(keys[without], 2), candidates[without], budgets[without])
    return chosen


def _cuts(keys: np.ndarray, num_words: int, weights: Sequence[float]) -> np.ndarray:
    """bool [E, num_words]: the first word of each n-gram."""
    law = np.cumsum(weights)
    lengths = 1 + np.searchsorted(law / law[-1], rng.uniform(keys, num_words), side="right")
    cuts = np.zeros((len(keys), num_words + 1), bool)  # what lies beyond ends up in the last place
    np.put_along_axis(cuts, np.minimum(np.cumsum(lengths, axis=1), num_words), True, axis=1)
    cuts[:, 0] = True
    return cuts[:, :num_words]


def _shuffled(keys: np.ndarray, heads: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """int64 [n]: the words of each row, n-gram after n-gram in random order, all rows one after another.

    heads: bool [E, M], the first word of each n-gram; exists: bool [E, M], the words there are.
    """
    order = rng.draw(keys, heads, heads.sum(axis=1))
    if heads is exists:
        return order[valid_positions(exists.sum(axis=1), order.shape[1])]
    lengths = np.zeros((len(heads), heads.shape[1] + 1), np.int64)
    lengths[:, :-1][heads] = np.diff(np.flatnonzero(heads[exists]), append=exists.sum())
    lengths = take(lengths, order).ravel()
    places = np.arange(lengths.sum())
    return np.repeat(order.ravel() - (np.cumsum(lengths) - lengths), lengths) + places


def _fitting(sizes: np.ndarray, follows: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """bool [E, M]: the words that are taken one after another, each if budgets[e] leaves room for its tokens.

    sizes: int64 [E, M], 0 where there is no word; follows: bool [E, M], words that are taken only if the one before is.
    Each pass finds the first word of a row that finds no room, and drops all later ones that are too long for the room
    it found, since there will never be more. Every pass takes a word more or is the last: a handful in all.
    """
    taken, place = sizes > 0, np.arange(sizes.shape[1])
    head = np.maximum.accumulate(np.where(follows, 0, place), axis=1)
    unsettled = np.arange(len(sizes))
    while len(unsettled):
        size, fits, budget = sizes[unsettled], taken[unsettled], budgets[unsettled, None]
        used = np.cumsum(size * fits, axis=1)
        over = fits & (used > budget)
        some = over.any(axis=1)
        unsettled, size, fits, used = unsettled[some], size[some], fits[some], used[some]
        first = over[some].argmax(axis=1)[:, None]
        room = budget[some] - (take(used, first) - take(size, first))
        dropped = (place >= first) & fits & (size > room)
        last_dropped = np.maximum.accumulate(np.where(dropped, place, -1), axis=1)
        taken[unsettled] = fits & (last_dropped < head[unsettled])
    return taken
