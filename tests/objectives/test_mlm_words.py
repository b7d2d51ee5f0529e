"""Whole words and n-grams of them: where words begin, and which are taken."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.mlm import VARIANTS
from contract import rng
from objectives.algebra import words
from objectives.algebra.masking import maskable
from objectives.algebra.sequences import Sequences
from objectives.algebra.words import choose_ngrams, word_starts
from objectives.mlm import MLM
from tests.objectives.helpers import vocab

VOCAB = vocab()
EOS = VOCAB.eos


def some_keys(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def encoded(text):
    """int32 [1, L]; "|" is the end of a document."""
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32) + VOCAB.content_start
    return np.where(ids == VOCAB.content_start + ord("|"), EOS, ids)[None].astype(np.int32)


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
def test_words_by_hand(text, expected):
    assert words_of(text) == expected


def choose(sizes, order, budget, cuts=None):
    """Numbers of the words taken, of words of these sizes, in one row. order: of the first words of n-grams."""
    starts = np.zeros((1, sum(sizes)), bool)
    starts[0, np.cumsum([0, *sizes[:-1]])] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words.rng, "draw", lambda *_: np.asarray([order]))
        if cuts is not None:
            patch.setattr(words, "_cuts", lambda *_: np.asarray([cuts], bool))
        weights = (1.0,) if cuts is None else (1.0, 1.0, 1.0)
        chosen = choose_ngrams(some_keys(1), np.ones_like(starts), starts, np.asarray([budget]), weights)
    of_word = np.split(chosen[0], np.cumsum(sizes)[:-1])
    assert all(word.all() or not word.any() for word in of_word)
    return [k for k, word in enumerate(of_word) if word.all()]


@pytest.mark.parametrize(
    ("budget", "taken"), [(4, [0]), (5, [3]), (6, [3]), (7, [2, 3]), (8, [0, 3]), (10, [0, 2, 3]), (13, [0, 1, 2, 3])]
)
def test_a_word_that_does_not_fit_is_skipped_and_the_next_ones_tried(budget, taken):
    """Words of 3, 3, 2 and 5 tokens, drawn in the order 3 0 2 1."""
    assert choose([3, 3, 2, 5], [3, 0, 2, 1], budget) == taken


def test_of_an_ngram_the_leading_words_that_fit_are_taken():
    """N-grams (0 1 2) (3) (4 5) of words of 1 2 1, 1, 2 2 tokens, drawn last, first, middle; room for 6 tokens.

    4 and 5 take 4, 0 takes 1; 1 has no room, so that 2 is not tried though it would have; 3 takes the last.
    """
    assert choose([1, 2, 1, 1, 2, 2], [4, 0, 3], 6, cuts=[1, 0, 0, 1, 1, 0]) == [0, 3, 4, 5]


def test_ngrams_end_before_special_tokens():
    """ " a b" EOS " c d e f" in trigrams is (a b) (c) (d e f); there is room for three words, of two tokens each."""
    tokens = np.repeat(encoded(" a b| c d e f"), 60, axis=0)
    chosen = choose_ngrams(some_keys(60), tokens != EOS, starts_of(tokens), np.full(60, 6), (0.0, 0.0, 1.0))
    assert {"".join(np.asarray([*" a b| c d e f"])[row]) for row in chosen} == {" a b c", " a b d", " c d e", " d e f"}


def taken_one_by_one(sizes, ngrams, budget):
    """BERT's loop (create_pretraining_data.py) over n-grams of words, [[word]] in the order of drawing."""
    taken, used = [], 0
    for ngram in ngrams:
        for word in ngram:
            if used + sizes[word] > budget:
                break
            taken.append(word)
            used += sizes[word]
    return sorted(taken)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_many_rows_at_once_take_what_a_loop_takes(data, seed):
    """The same words as a loop over the n-grams in the order drawn, whatever the rows hold beside them."""
    generator = np.random.default_rng(seed)
    n, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 60))
    lengths = generator.integers(1, width + 1, n)
    starts = (generator.random((n, width)) < data.draw(st.sampled_from([0.1, 0.4, 1.0]))) | (np.arange(width) == 0)
    candidates = np.arange(width) < lengths[:, None]
    starts &= candidates
    budgets = generator.integers(1, lengths + 1)
    weights = data.draw(st.sampled_from([(1.0,), (6.0, 3.0, 2.0), (0.0, 1.0), (0.0,) * 70 + (1.0,)]))
    drawn, cut = [], [np.ones((n, width), bool)]
    with pytest.MonkeyPatch.context() as patch:
        draw, cuts = rng.draw, words._cuts
        patch.setattr(words.rng, "draw", lambda *args: drawn.append(draw(*args)) or drawn[-1])
        patch.setattr(words, "_cuts", lambda *args: cut.append(cuts(*args)) or cut[-1])
        chosen = choose_ngrams(some_keys(n, seed), candidates, starts, budgets, weights)
    assert not (chosen & ~candidates).any() and (chosen.sum(axis=1) <= budgets).all()
    for e in range(n):
        places = np.split(np.arange(lengths[e]), np.flatnonzero(starts[e])[1:])
        heads = np.flatnonzero(cut[-1][e, : len(places)])
        ends = dict(zip(heads, [*heads[1:], len(places)], strict=True))
        ngrams = [range(head, ends[head]) for head in drawn[0][e] if head in ends]
        taken = taken_one_by_one([len(word) for word in places], ngrams, budgets[e])
        if taken:
            assert np.flatnonzero(chosen[e]).tolist() == np.concatenate([places[word] for word in taken]).tolist()
        else:
            assert chosen[e].sum() == budgets[e]


@pytest.mark.parametrize("name", ["whole_word", "ngram", "span"])
def test_where_every_word_is_longer_than_the_count_single_tokens_are_selected(name):
    """Forty letters and no space: round(0.15 * 42) = 6 of them, anywhere."""
    mlm = MLM(**VARIANTS[name])
    tokens = np.repeat(encoded("abcdefghij" * 4), 50, axis=0)
    selected = mlm.corrupt(tokens, np.full(50, 40), some_keys(50), VOCAB).selected
    assert (selected.sum(axis=1) == 6).all() and selected[:, 1:-1].any(axis=0).all()


@pytest.mark.parametrize("name", ["whole_word", "ngram", "span"])
def test_words_are_selected_whole_each_as_often(name):
    """A hundred words of four tokens: round(0.15 * 402) = 60 is fifteen words of them."""
    mlm = MLM(**VARIANTS[name])
    tokens = np.repeat(encoded(" abc" * 100), 1000, axis=0)
    selected = mlm.corrupt(tokens, np.full(1000, 400), some_keys(1000), VOCAB).selected[:, 1:-1].reshape(1000, 100, 4)
    assert (selected.any(axis=2) == selected.all(axis=2)).all()
    assert (selected.sum(axis=(1, 2)) == 60).all()
    assert np.abs(selected[..., 0].mean(axis=0) - 0.15).max() < 0.06


@pytest.mark.parametrize(
    ("name", "law"), [("ngram", [6 / 11, 3 / 11, 2 / 11]), ("span", 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10))]
)
def test_ngrams_come_in_their_lengths(name, law):
    """Over long texts of which little is selected, so that hardly two n-grams touch and hardly any is cut to fit."""
    mlm = dataclasses.replace(MLM(**VARIANTS[name]), mask_rate=0.01, mask_unit="token")
    text = Sequences(np.full((20, 20_000), VOCAB.content_start, np.int32), np.full(20, 20_000))
    selected = np.pad(mlm.select(text, some_keys(20), VOCAB), ((0, 0), (1, 1)))
    begins, ends = (np.flatnonzero(np.diff(selected.ravel().astype(int)) == step) for step in (1, -1))
    counts = np.bincount(ends - begins, minlength=len(law) + 1)[1 : len(law) + 1]
    assert counts.sum() > 800
    np.testing.assert_allclose(counts / counts.sum(), law, atol=0.035)
    assert mlm.select(text, some_keys(20), VOCAB).sum(axis=1).tolist() == [200] * 20
