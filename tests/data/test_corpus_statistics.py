"""The trigram model is a probability distribution, is Witten-Bell's, and reads documents as language models do."""

import collections
import math
import tracemalloc
import types

import numpy as np
import pytest

from contract.windows import BatchSpec, WindowSpec
from data.windows import corpus_statistics
from data.windows.corpus_statistics import HELDOUT_TOKENS, TrigramModel, trigram_loss, trigram_model
from data.windows.documents import Documents
from data.windows.heldout_batches import Heldout
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


def heldout_of(documents, length=1000, num_windows=0, *, cut="split", eos=True):
    """The windows that an evaluation reads; with the defaults each document with its EOS."""
    spec = BatchSpec((WindowSpec("x", 1.0, length, cut, eos),), 1, pad_id=0, mix_by="example")
    rows = range(4)
    return Heldout(
        documents, spec, lambda windows, *_: windows, batch_size=4, local_rows=rows, seed=0, num_windows=num_windows
    )


def loss_of(train, heldout, most=HELDOUT_TOKENS):
    return trigram_loss(train, heldout.places(most), EOS)


@pytest.mark.parametrize("cut", ["join", "split"])
def test_the_loss_is_of_the_tokens_in_the_windows_that_an_evaluation_reads(tmp_path, cut):
    """The long document is easy, and an evaluation of 10 windows reads a few of its 43, and of all short documents."""
    random = np.random.default_rng(0)
    short = ["".join(random.choice(list("abcd"), size=30)) for _ in range(8)]
    store = store_of(tmp_path, ["ab" * 200, "cab" * 100, "ab" * 600, *short])
    train, documents = (Documents(store, np.arange(11)[half], "") for half in (slice(0, 2), slice(2, 11)))
    expected = reference([store.tokens[store.offsets[d] : store.offsets[d + 1] - 1].tolist() for d in (0, 1)], 259)
    heldout = heldout_of(documents, length=28, num_windows=10, cut=cut)
    losses = []
    for n in range(heldout.batches.end):
        for slice_ in zip(*heldout.batches.draw(n, 1).slices[:2], strict=True):
            begin = store.offsets[np.searchsorted(store.offsets, slice_[0], side="right") - 1]
            for place in range(slice_[0], slice_[0] + slice_[1]):
                context = [int(store.tokens[p]) if p >= begin else EOS for p in (place - 2, place - 1)]
                losses.append(-math.log(expected(tuple(context), int(store.tokens[place]))))
    loss = loss_of(train, heldout)
    assert len(heldout.places(HELDOUT_TOKENS)) == len(losses) == heldout.num_raw_tokens.sum() < 400
    assert loss.nats == pytest.approx(np.mean(losses), rel=1e-12)
    assert loss.nats > 2 * loss_of(train, heldout_of(documents)).nats  # that of all held-out text


def test_memory_does_not_grow_with_the_corpus(monkeypatch):
    monkeypatch.setattr(corpus_statistics, "TRAIN_TOKENS", 1000)
    tokens, ends = np.zeros(2_000_000, np.uint8), np.array([0, 10, 1_000_000, 2_000_000])
    digests, counts = np.arange(3, dtype=np.uint64), np.zeros(SIZE)
    store = types.SimpleNamespace(tokens=tokens, offsets=ends, digests=digests, unigram_counts=counts)
    tracemalloc.start()
    trigram_model(Documents(store, np.arange(3), "training"), EOS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6, "less than a byte for each of two million tokens"


def test_tokens_are_bounded_and_do_not_depend_on_the_order_of_the_training_documents(tmp_path, monkeypatch):
    store = store_of(tmp_path, [f"text {i} of some" for i in range(40)])
    heldout = heldout_of(Documents(store, np.arange(30, 40), ""))
    assert loss_of(Documents(store, np.arange(30), ""), heldout).train_tokens == 30 * 16 - 10
    assert len(heldout.places(HELDOUT_TOKENS)) == 160
    monkeypatch.setattr(corpus_statistics, "TRAIN_TOKENS", 100)
    losses = [loss_of(Documents(store, np.arange(30)[::step], ""), heldout, most=50) for step in (1, -1)]
    assert losses[0] == losses[1] and losses[0].train_tokens == 100
    assert len(heldout.places(50)) == 48  # every fourth of ten windows
