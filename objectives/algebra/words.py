"""Words of token sequences, and the selection of whole words and n-grams of words."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract import rng
from contract.vocab import BLANK, PUNCTUATION, SPACE, Vocab
from objectives.algebra.noise import count_by_row, random_column, take, valid_positions


class CutWords(NamedTuple):
    """Whether a row's first and last word may be parts of words that the row's ends have cut; bool [E] each."""

    first: np.ndarray
    last: np.ndarray


def word_starts(tokens: np.ndarray, ordinary: np.ndarray, vocab: Vocab, whole: np.ndarray | None = None) -> np.ndarray:
    """bool [E, W]: the first token of each word.

    A word begins with whitespace or punctuation, and ends before the next whitespace or punctuation or before a token
    that is not ordinary. The words of "x = f(a.b)" are "x", " =", " f", "(a", ".b" and ")". This is ALBERT's rule for
    SentencePiece; BERT's tokenizer marks word pieces with "##" and splits punctuation off both sides.

    Whitespace at the end of a text begins no word, and belongs to the word before. As a word of its own it would be
    short, and so be chosen more often than other tokens.

    Args:
      tokens: int32 [E, W].
      ordinary: bool [E, W], the tokens of words; a text ends before a token that is not ordinary.
      vocab: marks whitespace and punctuation.
      whole: bool [E], the rows whose last text is not cut; None: no row. Whitespace at the end of a text that may be
        cut can be the beginning of a word.
    """
    starts = vocab.marked(tokens, SPACE | PUNCTUATION)
    starts[:, 1:] &= ~vocab.marked(tokens[:, :-1], BLANK)
    starts[:, 1:] |= ~ordinary[:, :-1]
    starts[:, 0] = True
    starts &= ordinary
    _join_last_blanks(starts, tokens, ordinary, vocab, np.zeros(len(tokens), bool) if whole is None else whole)
    return starts


def _join_last_blanks(
    starts: np.ndarray, tokens: np.ndarray, ordinary: np.ndarray, vocab: Vocab, whole: np.ndarray
) -> None:
    """Clears `starts` where only whitespace follows until the end of a text."""
    is_end = ordinary.copy()
    is_end[:, :-1] &= ~ordinary[:, 1:]
    cut = ~whole & is_end.any(axis=1)
    last = starts.shape[1] - 1 - is_end[:, ::-1].argmax(axis=1)
    is_end[cut, last[cut]] = False
    rows, columns = np.nonzero(is_end)
    while len(rows):
        is_blank = vocab.marked(tokens[rows, columns], BLANK) & (columns > 0)
        rows, columns = rows[is_blank], columns[is_blank]
        starts_text = ~ordinary[rows, columns - 1]
        begins = starts[rows, columns]
        starts[rows[begins & ~starts_text], columns[begins & ~starts_text]] = False
        rows, columns = rows[~begins], columns[~begins] - 1


def cut_words(tokens: np.ndarray, ordinary: np.ndarray, vocab: Vocab, is_text: np.ndarray | None = None) -> CutWords:
    """The rows whose first or last word may be a part of a word. Arguments as for `word_starts`.

    The first word is whole if it begins after EOS, or with a token that always begins a word; the last word is whole if
    it ends before EOS.

    is_text: bool [E, W], the tokens of the raw text and its EOS, without the special tokens around it, which may have
    the id of EOS; None: all tokens.
    """
    rows, width = np.arange(len(tokens)), tokens.shape[1]
    first, last = ordinary.argmax(axis=1), width - 1 - ordinary[:, ::-1].argmax(axis=1)
    begins = tokens[rows, first]
    always_begins = vocab.marked(begins, SPACE | PUNCTUATION) & ~vocab.marked(begins, BLANK)
    is_eos = tokens == vocab.eos if is_text is None else (tokens == vocab.eos) & is_text
    after_eos = (first > 0) & is_eos[rows, first - 1]
    before_eos = (last < width - 1) & is_eos[rows, np.minimum(last + 1, width - 1)]
    return CutWords(~always_begins & ~after_eos, ~before_eos)


def choose_ngrams(
    keys: np.ndarray,
    candidates: np.ndarray,
    starts: np.ndarray,
    budgets: np.ndarray,
    weights: Sequence[float],
    cut: CutWords | None = None,
) -> np.ndarray:
    """Chooses n-grams of whole words up to a number of tokens: bool [E, W], the chosen tokens.

    The words of a row are divided into n-grams of independent lengths drawn by `weights`. N-grams are then drawn in
    random order and chosen while they fit the budget. Of an n-gram that does not fit, the leading words that fit are
    chosen, and drawing continues for the rest of the budget. BERT does this with words (create_pretraining_data.py),
    ALBERT with n-grams. Deviation: ALBERT draws from the n-grams at all words, and passes over those that overlap a
    chosen one, which long ones do more often: of its weights 6, 3 and 2 come shares of 59, 26 and 15%, not 55, 27 and
    18.

    Every place in a row is chosen equally often:
    - The division begins at a uniformly drawn word. An n-gram that reaches the end of the row continues at its
      beginning, and an n-gram that reaches a token that is no candidate continues after it, as in ALBERT. The first
      word of an n-gram fits more often than the others, so it must not be at the beginning of a row more often.
    - Short words fit more often than long ones, and the parts of words at the ends of a row are short. So such a part
      is chosen where a whole word would fit: a word of the row, drawn uniformly from those that are at least as long.
      The length of this word has the distribution of the words that the ends of rows cut. The words that follow the
      first part in its n-gram are chosen where they would fit after the whole word.

    If every word is longer than the budget, single tokens are chosen, as many as the budget.

    Args:
      keys: uint64 [E].
      candidates: bool [E, W], the tokens of words.
      starts: bool [E, W], the first token of each word.
      budgets: int [E], the most tokens to choose, at most candidates[e].sum().
      weights: relative frequencies of n-grams of 1, 2, 3, ... words.
      cut: which rows begin or end with a part of a word; None where all words are whole.
    """
    chosen = np.zeros(candidates.shape, bool)
    places, counts = np.flatnonzero(candidates), starts.sum(axis=1)
    if not len(places):
        return chosen
    sizes = np.diff(np.flatnonzero(starts.ravel()[places]), append=len(places))  # of the words of all rows in order
    exists = valid_positions(counts, int(counts.max()))
    order, follows = _ngram_order(keys, counts, exists, weights)
    in_order, head = np.zeros(exists.shape, np.int32), np.zeros(exists.shape, np.int32)
    in_order[exists] = sizes[order]
    head[:] = np.arange(exists.shape[1])
    if len(weights) > 1:
        head[exists] *= ~follows
        np.maximum.accumulate(head, axis=1, out=head)
    needed = in_order if cut is None else in_order + _missing(keys, sizes, counts, exists, cut, order, head)
    taken = np.empty(len(sizes), bool)
    taken[order] = fitting(in_order, needed, head, budgets)[exists]
    chosen.ravel()[places] = np.repeat(taken, sizes)

    without = np.flatnonzero(~chosen.any(axis=1))
    if len(without):
        chosen[without] = rng.choose_mask(rng.fold_in(keys[without], 2), candidates[without], budgets[without])
    return chosen


def choose_token_ngrams(
    keys: np.ndarray, candidates: np.ndarray, budgets: np.ndarray, weights: Sequence[float]
) -> np.ndarray:
    """Returns what `choose_ngrams` returns if every token is a word, in less than half of the time.

    Words of one token always fit, so the first budgets[e] tokens in the order of the n-grams are chosen, and only the
    n-grams of these tokens are drawn. Arguments as for `choose_ngrams`.
    """
    chosen = np.zeros(candidates.shape, bool)
    places = np.flatnonzero(candidates)
    counts = count_by_row(places, candidates.shape)
    if not len(places):
        return chosen
    exists = valid_positions(counts, int(counts.max()))
    heads = exists & _cuts(rng.fold_in(keys, 0), exists.shape[1], weights)
    at = np.flatnonzero(heads)
    order = rng.draw(rng.fold_in(keys, 1), heads, np.minimum(count_by_row(at, heads.shape), budgets))
    lengths = np.zeros((len(heads), heads.shape[1] + 1), np.int64)  # the last column is of the padding of `order`
    row_begins = np.cumsum(counts) - counts
    lengths[:, :-1][heads] = np.diff(row_begins[at // heads.shape[1]] + at % heads.shape[1], append=len(places))
    ends = np.minimum(np.cumsum(take(lengths, order), axis=1), budgets[:, None])
    taken = np.diff(ends, axis=1, prepend=0).ravel()
    rows = np.repeat(np.arange(len(keys)), budgets)
    tokens = np.repeat(order.ravel() - (np.cumsum(taken) - taken), taken) + np.arange(len(rows))
    if len(weights) > 1:
        tokens += _first_heads(rng.fold_in(keys, 5), counts)[rows]
        tokens -= np.where(tokens >= counts[rows], counts[rows], 0)
    chosen.ravel()[places[tokens + row_begins[rows]]] = True
    return chosen


def _missing(
    keys: np.ndarray,
    sizes: np.ndarray,
    counts: np.ndarray,
    exists: np.ndarray,
    cut: CutWords,
    order: np.ndarray,
    head: np.ndarray,
) -> np.ndarray:
    """int32 [E, M]: how many tokens more than its size must fit for a word, in order, to be chosen.

    For a part of a word: how many tokens it is shorter than the whole word that is drawn for it. For the words of an
    n-gram that follow the first word of the row: as many tokens as for this word. sizes: int64 [n], of all words; the
    other arguments are those of `choose_ngrams`, `_ngram_order` and `fitting`.
    """
    table = np.zeros(exists.shape, np.int32)
    table[exists] = sizes
    is_inner = valid_positions(counts - 1, exists.shape[1])
    is_inner[:, 0] = False
    missing = np.zeros((2, len(sizes)), np.int32)  # of first words, and of last words
    ends = np.cumsum(counts)
    for of_words, tag, is_cut, parts in zip(missing, (3, 4), cut, (ends - counts, ends - 1), strict=True):
        rows = np.flatnonzero(is_cut & (counts > 0))
        part = parts[rows]
        whole = random_column(rng.fold_in(keys[rows], tag), is_inner[rows] & (table[rows] >= sizes[part, None]))
        found = whole >= 0
        of_words[part[found]] = table[rows[found], whole[found]] - sizes[part[found]]
    first, last = np.zeros((2, *exists.shape), np.int32)
    first[exists], last[exists] = missing[0, order], missing[1, order]
    so_far = np.cumsum(first, axis=1, dtype=np.int32)
    return last + so_far - take(so_far - first, head)


def _ngram_order(
    keys: np.ndarray, counts: np.ndarray, exists: np.ndarray, weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """The words of each row with its n-grams in random order, and whether each continues the n-gram before it.

    int64 [n], indices among the words of all rows in order, and bool [n], the rows concatenated. counts: int [E], the
    words of each row; exists: bool [E, M], the same as a mask.
    """
    heads = exists if len(weights) == 1 else exists & _cuts(rng.fold_in(keys, 0), exists.shape[1], weights)
    order, rows = _shuffled(rng.fold_in(keys, 1), heads, exists), np.repeat(np.arange(len(keys)), counts)
    follows = np.zeros(len(order), bool)
    if len(weights) > 1:
        follows = ~heads[rows, order]
        order += _first_heads(rng.fold_in(keys, 5), counts)[rows]
        order -= np.where(order >= counts[rows], counts[rows], 0)
    return order + (np.cumsum(counts) - counts)[rows], follows


def _first_heads(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 [E]: the word at which the division into n-grams begins, drawn uniformly from counts[e] words."""
    return (rng.uniform(keys, 1)[:, 0] * counts).astype(np.int64)


def _cuts(keys: np.ndarray, num_words: int, weights: Sequence[float]) -> np.ndarray:
    """bool [E, num_words]: the first word of each n-gram."""
    law, draws = np.cumsum(weights), rng.uniform(keys, num_words)
    lengths = np.ones(draws.shape, np.int32)
    for bound in (law / law[-1])[:-1]:
        lengths += draws >= bound
    cuts = np.zeros((len(keys), num_words + 1), bool)  # the last column collects cuts after the last word
    places = np.minimum(np.cumsum(lengths, axis=1), num_words) + (np.arange(len(keys)) * (num_words + 1))[:, None]
    cuts.ravel()[places] = True
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


def fitting(sizes: np.ndarray, needed: np.ndarray, head: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """bool [E, M]: the words chosen in order, each if the rest of budgets[e] is at least the number of tokens needed.

    sizes: int32 [E, M], what a chosen word takes of the budget; 0 where there is no word. needed: int32 [E, M], at
    least `sizes`. head: int32 [E, M], the place of the first word of each word's n-gram; the words between must be
    chosen for the word to be chosen. Each pass finds the first word of a row that does not fit, and drops this and all
    later words that need more than the rest of the budget at that word: the rest cannot grow. The loop ends because
    every pass drops a word.
    """
    taken, place = sizes > 0, np.arange(sizes.shape[1], dtype=np.int32)
    budgets = budgets.astype(np.int32)
    undecided = np.arange(len(sizes))
    while len(undecided):
        size, need, fits, budget = sizes[undecided], needed[undecided], taken[undecided], budgets[undecided, None]
        used_before = np.cumsum(size * fits, axis=1, dtype=np.int32) - size
        over = fits & (used_before + need > budget)
        some = over.any(axis=1)
        undecided, need, fits = undecided[some], need[some], fits[some]
        first = over[some].argmax(axis=1)[:, None]
        rest = budget[some] - take(used_before[some], first)
        dropped = (place >= first) & fits & (need > rest)
        last_dropped = np.maximum.accumulate(np.where(dropped, place, np.int32(-1)), axis=1)
        taken[undecided] = fits & (last_dropped < head[undecided])
    return taken
