"""Whole words and n-grams of words: where words begin, and which words are selected."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.mlm import VARIANTS
from contract import rng
from objectives.algebra import words
from objectives.algebra.sequences import Sequences
from objectives.algebra.words import CutWords, choose_ngrams, choose_token_ngrams, cut_words, word_starts
from objectives.mlm import MLM, maskable
from tests.objectives.helpers import byte_ids, random_keys, vocab

VOCAB = vocab()
EOS = VOCAB.eos


def encoded(text):
    """int32 [1, L]; "|" becomes EOS."""
    ids = byte_ids(text)
    return np.where(ids == byte_ids("|"), EOS, ids)[None].astype(np.int32)


def starts_of(tokens):
    return word_starts(tokens, maskable(Sequences(tokens, np.asarray([tokens.shape[1]])), VOCAB), VOCAB)


def words_of(text):
    cuts = np.flatnonzero(starts_of(encoded(text))[0])
    parts = np.split(np.frombuffer(text.encode(), np.uint8), cuts)[1:]
    return [part.tobytes().decode().rstrip("|") for part in parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = f(a.b)", ["x", " =", " f", "(a", ".b", ")"]),
        ("  if x:\n\n    return\n", ["  if", " x", ":", "\n\n    return", "\n"]),
        ("a_b|c d||.e", ["a", "_b", "c", " d", ".e"]),
        ("caf\u00e9 \u00e9t\u00e9", ["caf\u00e9", " \u00e9t\u00e9"]),
    ],
)
def test_texts_split_into_the_expected_words(text, expected):
    assert words_of(text) == expected


def choose(sizes, order, budget, cuts=None, begin=0, cut=None):
    """The indices of the selected words, in one row of words of these sizes.

    order: the drawn order of the n-grams, each given by its first word, counted from `begin`. cuts: where n-grams
    begin, counted likewise; None if every word is an n-gram. cut: whether the first and the last word are parts.
    """
    starts = np.zeros((1, sum(sizes)), bool)
    starts[0, np.cumsum([0, *sizes[:-1]])] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words.rng, "draw", lambda *_: np.asarray([order]))
        if cuts is not None:
            patch.setattr(words, "_cuts", lambda *_: np.asarray([cuts], bool))
            patch.setattr(words, "_first_heads", lambda *_: np.asarray([begin]))
        weights = (1.0,) if cuts is None else (1.0, 1.0, 1.0)
        chosen = choose_ngrams(random_keys(1), np.ones_like(starts), starts, np.asarray([budget]), weights, cut)
    words_chosen = np.split(chosen[0], np.cumsum(sizes)[:-1])
    assert all(word.all() or not word.any() for word in words_chosen)
    return [k for k, word in enumerate(words_chosen) if word.all()]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(4, [0]), (5, [3]), (6, [3]), (7, [2, 3]), (8, [0, 3]), (10, [0, 2, 3]), (13, [0, 1, 2, 3])],
)
def test_a_word_that_does_not_fit_is_skipped_and_later_words_are_tried(budget, expected):
    """Words of 3, 3, 2 and 5 tokens, drawn in the order 3 0 2 1."""
    assert choose([3, 3, 2, 5], [3, 0, 2, 1], budget) == expected


def test_the_leading_words_of_an_ngram_are_selected_up_to_the_first_that_does_not_fit():
    """N-grams (0 1 2) (3) (4 5) of words of 1 2 1, 1, 2 2 tokens, drawn last, first, middle; a budget of 6 tokens.

    Words 4 and 5 use 4 tokens and word 0 uses 1. Word 1 does not fit, so word 2 is not tried, although it would fit.
    Word 3 uses the last token.
    """
    assert choose([1, 2, 1, 1, 2, 2], [4, 0, 3], 6, cuts=[1, 0, 0, 1, 1, 0]) == [0, 3, 4, 5]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    st.integers(0, 1000),
)
def test_ngrams_of_tokens_are_those_of_words_of_one_token(rows, weights, seed):
    candidates = np.asarray(rows)
    budgets = np.minimum(np.arange(len(rows)) + seed % 8, candidates.sum(axis=1))
    keys = random_keys(len(rows), seed)
    chosen = choose_token_ngrams(keys, candidates, budgets, weights)
    assert (chosen == choose_ngrams(keys, candidates, candidates, budgets, weights)).all()
    assert (chosen.sum(axis=1) == budgets).all()


def test_the_division_into_ngrams_begins_at_any_word_and_goes_round():
    """N-grams (2 3 0) (1) of words of 1 2 2 1 tokens, drawn in this order; word 1 exceeds the budget of 5 tokens."""
    assert choose([1, 2, 2, 1], [0, 3], 5, cuts=[1, 0, 0, 1], begin=2) == [0, 2, 3]


def test_ngrams_continue_after_special_tokens_and_after_the_last_word():
    """ " a b" EOS " c d e f" in trigrams; the budget is three words of two tokens each."""
    tokens = np.repeat(encoded(" a b| c d e f"), 200, axis=0)
    chosen = choose_ngrams(random_keys(200), tokens != EOS, starts_of(tokens), np.full(200, 6), (0.0, 0.0, 1.0))
    texts = {"".join(np.asarray([*" a b| c d e f"])[row]) for row in chosen}
    assert texts == {" a b c", " b c d", " c d e", " d e f", " a e f", " a b f"}


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0, 0, [0, 2, 4]), (1, 0, [2, 4]), (0, 1, [0, 2]), (1, 1, [2])]
)
def test_a_part_of_a_word_is_selected_where_a_whole_word_would_fit(first, last, expected):
    """Words of 2, 5, 1, 5 and 2 tokens, a budget of 5 tokens. The inner words of at least 2 tokens have 5 tokens, so
    a part of 2 tokens is not selected after the word of 1 token."""
    cut = CutWords(np.asarray([first > 0]), np.asarray([last > 0]))
    assert choose([2, 5, 1, 5, 2], [2, 0, 4, 1, 3], 5, cut=cut) == expected


def test_words_that_follow_a_part_are_selected_where_they_would_fit_after_a_whole_word():
    """N-grams (0 1) (2) (3) of words of 1, 4, 4 and 3 tokens, drawn in this order. For word 0 a word of 4 tokens is
    drawn, so word 1 needs a budget of 8 tokens. Of a budget of 7 tokens the n-gram takes 1, and word 2 takes 4."""
    cut = CutWords(np.ones(1, bool), np.zeros(1, bool))
    assert choose([1, 4, 4, 3], [0, 2, 3], 8, cuts=[1, 0, 1, 1], cut=cut) == [0, 1, 3]
    assert choose([1, 4, 4, 3], [0, 2, 3], 7, cuts=[1, 0, 1, 1], cut=cut) == [0, 2]


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("ab cd", True, True),
        (" ab cd", True, True),
        (".ab cd", False, True),
        ("|ab cd", False, True),
        ("ab c|", True, False),
    ],
)
def test_which_words_of_a_row_may_be_parts(text, first, last):
    """A blank may continue an indentation, and only EOS shows that a word is whole."""
    tokens = encoded(text)
    assert [part.tolist() for part in cut_words(tokens, tokens != EOS, VOCAB)] == [[first], [last]]


def berts_selection(sizes, ngrams, budget):
    """The words that BERT's loop (create_pretraining_data.py) selects. ngrams: [[word]], in the drawn order."""
    selected, used = [], 0
    for ngram in ngrams:
        for word in ngram:
            if used + sizes[word] > budget:
                break
            selected.append(word)
            used += sizes[word]
    return sorted(selected)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_vectorised_selection_equals_berts_loop(data, seed):
    """In each row of a batch; where BERT's loop selects no word, single tokens are selected."""
    generator = np.random.default_rng(seed)
    n, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 60))
    lengths = generator.integers(1, width + 1, n)
    starts = (generator.random((n, width)) < data.draw(st.sampled_from([0.1, 0.4, 1.0]))) | (np.arange(width) == 0)
    candidates = np.arange(width) < lengths[:, None]
    starts &= candidates
    budgets = generator.integers(1, lengths + 1)
    weights = data.draw(st.sampled_from([(1.0,), (6.0, 3.0, 2.0), (0.0, 1.0), (0.0,) * 70 + (1.0,)]))
    orders, cuts, begins = [], [np.ones((n, width), bool)], [np.zeros(n, int)]
    with pytest.MonkeyPatch.context() as patch:
        real_draw, real_cuts, real_first_heads = rng.draw, words._cuts, words._first_heads
        patch.setattr(words.rng, "draw", lambda *args: orders.append(real_draw(*args)) or orders[-1])
        patch.setattr(words, "_cuts", lambda *args: cuts.append(real_cuts(*args)) or cuts[-1])
        patch.setattr(words, "_first_heads", lambda *args: begins.append(real_first_heads(*args)) or begins[-1])
        chosen = choose_ngrams(random_keys(n, seed), candidates, starts, budgets, weights)
    assert not (chosen & ~candidates).any() and (chosen.sum(axis=1) <= budgets).all()
    for e in range(n):
        places = np.split(np.arange(lengths[e]), np.flatnonzero(starts[e])[1:])
        heads = np.flatnonzero(cuts[-1][e, : len(places)])
        ends = dict(zip(heads, [*heads[1:], len(places)], strict=True))
        heads = [head for head in orders[0][e] if head in ends]
        ngrams = [(begins[-1][e] + np.arange(head, ends[head])) % len(places) for head in heads]
        expected = berts_selection([len(word) for word in places], ngrams, budgets[e])
        if expected:
            assert np.flatnonzero(chosen[e]).tolist() == np.concatenate([places[word] for word in expected]).tolist()
        else:
            assert chosen[e].sum() == budgets[e]


@pytest.mark.parametrize("name", ["whole_word", "ngram", "span"])
def test_single_tokens_are_selected_where_every_word_is_longer_than_the_count(name):
    """A word of 40 letters: round(0.15 * 42) = 6 of them are selected, at any position."""
    mlm = MLM(**VARIANTS[name])
    tokens = np.repeat(encoded("abcdefghij" * 4), 50, axis=0)
    selected = mlm.corrupt(tokens, np.full(50, 40), random_keys(50), VOCAB).selected
    assert (selected.sum(axis=1) == 6).all() and selected[:, 1:-1].any(axis=0).all()


@pytest.mark.parametrize("name", ["whole_word", "ngram", "span"])
def test_words_are_selected_whole_and_equally_often(name):
    """100 words of four tokens: round(0.15 * 402) = 60 tokens are 15 words."""
    mlm = MLM(**VARIANTS[name])
    tokens = np.repeat(encoded(" abc" * 100), 1000, axis=0)
    selected = mlm.corrupt(tokens, np.full(1000, 400), random_keys(1000), VOCAB).selected[:, 1:-1].reshape(1000, 100, 4)
    assert (selected.any(axis=2) == selected.all(axis=2)).all()
    assert (selected.sum(axis=(1, 2)) == 60).all()
    assert np.abs(selected[..., 0].mean(axis=0) - 0.15).max() < 0.06


@pytest.mark.parametrize(
    ("name", "law"), [("ngram", [6 / 11, 3 / 11, 2 / 11]), ("span", 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10))]
)
def test_ngram_lengths_follow_their_weights(name, law):
    """In long texts with a low mask rate, in which n-grams rarely touch and are rarely cut to fit."""
    mlm = dataclasses.replace(MLM(**VARIANTS[name]), mask_rate=0.01, mask_unit="token")
    text = Sequences(np.full((20, 20_000), VOCAB.content_start, np.int32), np.full(20, 20_000))
    selected = np.pad(mlm.select(text, random_keys(20), VOCAB), ((0, 0), (1, 1)))
    begins, ends = (np.flatnonzero(np.diff(selected.ravel().astype(int)) == step) for step in (1, -1))
    counts = np.bincount(ends - begins, minlength=len(law) + 1)[1 : len(law) + 1]
    assert counts.sum() > 800
    np.testing.assert_allclose(counts / counts.sum(), law, atol=0.035)
    assert mlm.select(text, random_keys(20), VOCAB).sum(axis=1).tolist() == [200] * 20
