"""The trigram model is a probability distribution, is Witten-Bell's, and reads documents as language models do."""

import collections
import math

import numpy as np
import pytest

from data import trigram
from data.documents import Documents
from data.trigram import TrigramModel, trigram_loss
from tests.data.corpus import store_of

EOS = 1


def triples_of(texts):
    """Each id, third, after the two before it, with EOS before and after every text: int64 [3, n]."""
    padded = [[EOS, EOS, *text, EOS] for text in texts]
    return np.array([ids[i : i + 3] for ids in padded for i in range(len(ids) - 2)]).T


def reference(texts, size):
    """Witten-Bell's formulas, with dictionaries."""
    counts = collections.Counter()
    followers = collections.defaultdict(set)
    for u, v, w in triples_of(texts).T.tolist():
        for context in ((), (v,), (u, v)):
            counts[(*context, w)] += 1
            followers[context].add(w)
    total = {context: sum(counts[(*context, w)] for w in seen) for context, seen in followers.items()}

    def probability(context, w):
        if not context:
            return (counts[(w,)] + 1) / (total[()] + size)
        shorter = probability(context[1:], w)
        if context not in followers:
            return shorter
        types = len(followers[context])
        return (counts[(*context, w)] + types * shorter) / (total[context] + types)

    return probability


TEXTS = [[3, 4, 3, 4, 5], [4, 4, 3], [6], [3, 4, 5, 3, 4, 6]]
SIZE = 8  # 7 never occurs


def test_probabilities_sum_to_1_after_every_context():
    model = TrigramModel(triples_of(TEXTS), SIZE)
    u, v, w = (ids.ravel() for ids in np.meshgrid(*[np.arange(SIZE)] * 3, indexing="ij"))
    probabilities = model.probability(u, v, w)
    assert (probabilities > 0).all()
    np.testing.assert_allclose(probabilities.reshape(SIZE * SIZE, SIZE).sum(axis=1), 1, rtol=1e-12)


def test_probabilities_are_witten_bells():
    model, expected = TrigramModel(triples_of(TEXTS), SIZE), reference(TEXTS, SIZE)
    u, v, w = (ids.ravel() for ids in np.meshgrid(*[np.arange(SIZE)] * 3, indexing="ij"))
    wanted = [expected((a, b), c) for a, b, c in zip(u.tolist(), v.tolist(), w.tolist(), strict=True)]
    np.testing.assert_allclose(model.probability(u, v, w), wanted, rtol=1e-12)


def test_by_hand():
    # "ab" and "ac": after EOS EOS always a; after EOS a once b, once c; one of 6 tokens is b.
    model = TrigramModel(triples_of([[3, 4], [3, 5]]), 6)
    one = (1 + 1) / (6 + 6)
    two = (1 + 2 * one) / (2 + 2)
    assert model.probability(*np.array([[EOS], [3], [4]])) == pytest.approx((1 + 2 * two) / (2 + 2))
    assert model.probability(*np.array([[0], [0], [4]])) == pytest.approx(one)  # neither context occurs


def test_the_loss_of_documents_is_that_of_their_texts(tmp_path):
    texts = ["abab", "b", "abc", "ca", "aab"]
    store = store_of(tmp_path, texts)
    train, heldout = (Documents(store, np.array(index), "") for index in ([0, 1, 4], [3, 2]))
    ids = [[ord(c) + 3 for c in text] for text in texts]
    expected = reference([ids[i] for i in (0, 1, 4)], len(store.unigram_counts))
    losses = [-math.log(expected((u, v), w)) for u, v, w in triples_of([ids[2], ids[3]]).T.tolist()]
    loss = trigram_loss(train, heldout, EOS)
    assert (loss.train_tokens, loss.heldout_tokens) == (4 + 1 + 3 + 3, 3 + 2 + 2)
    assert loss.nats == pytest.approx(np.mean(losses), rel=1e-12)


def test_tokens_are_bounded_and_do_not_depend_on_the_order_of_the_documents(tmp_path, monkeypatch):
    store = store_of(tmp_path, [f"text {i} of some" for i in range(40)])
    monkeypatch.setattr(trigram, "TRAIN_TOKENS", 100)
    monkeypatch.setattr(trigram, "HELDOUT_TOKENS", 50)
    losses = [
        trigram_loss(*(Documents(store, half[::step], "") for half in (np.arange(30), np.arange(30, 40))), EOS)
        for step in (1, -1)
    ]
    assert losses[0] == losses[1] and losses[0][1:] == (100, 50)


def test_real_text_is_below_the_unigram_entropy(corpus):
    paths = sorted((corpus / "text").glob("*.txt"))
    store = store_of(corpus.parent / "trigram", [path.read_text(encoding="utf-8") for path in paths])
    train, heldout = (Documents(store, np.arange(30)[half], "") for half in (slice(0, 25), slice(25, 30)))
    loss = trigram_loss(train, heldout, EOS).nats
    assert 1.5 < loss < 2.5 < store.unigram_entropy()
