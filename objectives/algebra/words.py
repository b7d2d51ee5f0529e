"""Words of token sequences, and the selection of whole words and n-grams of words."""

from collections.abc import Sequence

import numpy as np

from contract import rng
from contract.vocab import BLANK, PUNCTUATION, SPACE, Vocab
from objectives.algebra.noise import take, valid_positions


def word_starts(tokens: np.ndarray, ordinary: np.ndarray, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the first token of each word. tokens: int32 [E, W]; ordinary: bool [E, W], the tokens of words.

    A word begins with whitespace or punctuation, and ends before the next whitespace or punctuation or before a token
    that is not ordinary. The words of "x = f(a.b)" are "x", " =", " f", "(a", ".b" and ")". This is ALBERT's rule for
    SentencePiece; BERT's tokenizer marks word pieces with "##" and splits punctuation off both sides.
    """
    starts = vocab.marked(tokens, SPACE | PUNCTUATION)
    starts[:, 1:] &= ~vocab.marked(tokens[:, :-1], BLANK)
    starts[:, 1:] |= ~ordinary[:, :-1]
    starts[:, 0] = True
    return starts & ordinary


def choose_ngrams(
    keys: np.ndarray, candidates: np.ndarray, starts: np.ndarray, budgets: np.ndarray, weights: Sequence[float]
) -> np.ndarray:
    """Chooses n-grams of whole words up to a number of tokens: bool [E, W], the chosen tokens.

    The words are divided into n-grams of independent lengths drawn by `weights`; an n-gram also ends before a token
    that is no candidate. N-grams are then drawn in random order and chosen while they fit the budget. Of an n-gram that
    does not fit, the leading words that fit are chosen, and drawing continues for the rest of the budget. BERT does
    this with words (create_pretraining_data.py), ALBERT with n-grams. Deviation: ALBERT's n-grams may overlap.

    If every word is longer than the budget, single tokens are chosen, as many as the budget.

    Args:
      keys: uint64 [E].
      candidates: bool [E, W], the tokens of words.
      starts: bool [E, W], the first token of each word.
      budgets: int [E], the most tokens to choose, at most candidates[e].sum().
      weights: relative frequencies of n-grams of 1, 2, 3, ... words.
    """
    chosen = np.zeros(candidates.shape, bool)
    places, counts = np.flatnonzero(candidates), starts.sum(axis=1)
    if not len(places):
        return chosen
    first = np.flatnonzero(starts.ravel()[places])  # the first token of each word, of all rows in order
    sizes = np.diff(first, append=len(places))
    exists = valid_positions(counts, int(counts.max()))
    heads = exists
    if len(weights) > 1:
        after_gap = np.zeros_like(exists)
        after_gap[exists] = ~candidates.ravel()[places[first] - 1]
        heads = exists & (_cuts(rng.fold_in(keys, 0), exists.shape[1], weights) | after_gap)
    order = _shuffled(rng.fold_in(keys, 1), heads, exists)

    word = order + np.repeat(np.cumsum(counts) - counts, counts)  # index among the words of all rows
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
    cuts = np.zeros((len(keys), num_words + 1), bool)  # the last column collects cuts after the last word
    np.put_along_axis(cuts, np.minimum(np.cumsum(lengths, axis=1), num_words), True, axis=1)
    cuts[:, 0] = True
    return cuts[:, :num_words]


def _shuffled(keys: np.ndarray, heads: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """int64 [n]: the words of each row with its n-grams in random order, all rows concatenated.

    heads: bool [E, M], the first word of each n-gram; exists: bool [E, M], True where a row has a word.
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
    """bool [E, M]: the words chosen in order, each if its tokens fit the rest of budgets[e].

    sizes: int64 [E, M], 0 where there is no word. follows: bool [E, M], words that are chosen only if the previous word
    is chosen. Each pass finds the first word of a row that does not fit, and drops this and all later words that exceed
    the rest of the budget at that word: the rest cannot grow. The loop ends because every pass drops a word.
    """
    taken, place = sizes > 0, np.arange(sizes.shape[1])
    head = np.maximum.accumulate(np.where(follows, 0, place), axis=1)
    undecided = np.arange(len(sizes))
    while len(undecided):
        size, fits, budget = sizes[undecided], taken[undecided], budgets[undecided, None]
        used = np.cumsum(size * fits, axis=1)
        over = fits & (used > budget)
        some = over.any(axis=1)
        undecided, size, fits, used = undecided[some], size[some], fits[some], used[some]
        first = over[some].argmax(axis=1)[:, None]
        rest = budget[some] - (take(used, first) - take(size, first))
        dropped = (place >= first) & fits & (size > rest)
        last_dropped = np.maximum.accumulate(np.where(dropped, place, -1), axis=1)
        taken[undecided] = fits & (last_dropped < head[undecided])
    return taken
