"""Signatures are datasketch's, and the pairs are the near-identical documents and no others."""

import itertools

import numpy as np
import pytest

from data import minhash
from data.minhash import JACCARD, NearDuplicateSearch, shingles


def words(generator, count, vocabulary=5000):
    return [f"w{i}" for i in generator.integers(vocabulary, size=count)]


def search_of(folder, texts):
    search = NearDuplicateSearch(folder)
    for text in texts:
        search.add(text.encode())
    return search


def pairs_of(folder, texts):
    return [tuple(pair) for pair in search_of(folder, texts).pairs(np.arange(len(texts))).tolist()]


def jaccard(a, b):
    """The exact similarity of two texts, from their 5-grams as tuples."""
    grams = [set(zip(*(text.split()[k:] for k in range(5)), strict=False)) for text in (a, b)]
    return len(grams[0] & grams[1]) / len(grams[0] | grams[1])


def test_shingles_are_5_grams_of_words():
    text = b"a b c d e f a b c d e"
    grams = shingles(text)
    assert len(grams) == 7 and grams.dtype == np.uint32
    assert grams[0] == grams[6] and len(set(grams.tolist())) == 6
    assert shingles(b"a b\nc  d\te f a b c d e ").tolist() == grams.tolist()
    assert shingles(b"a b c d e")[0] == grams[0] != shingles(b"b a c d e")[0]
    assert shingles(b"a b").shape == shingles(b" ").shape == (1,)
    assert len({int(shingles(text)[0]) for text in (b"a b", b"b a", b"a", b"b", b"a a")}) == 5


def test_signatures_are_those_of_one_update_for_each_hash(tmp_path):
    datasketch = pytest.importorskip("datasketch")
    text = " ".join(words(np.random.default_rng(0), 3000))
    expected = datasketch.MinHash(128, seed=1, hashfunc=int)
    for value in shingles(text.encode()).tolist():
        expected.update(value)
    assert search_of(tmp_path, ["another text first", text])._signatures[128:].tolist() == expected.hashvalues.tolist()


def test_pairs_by_hand(tmp_path):
    generator = np.random.default_rng(1)
    text, other = (" ".join(words(generator, 400)) for _ in range(2))
    edited = text.replace(text.split()[200], "edited")  # changes 5 of 396 5-grams
    half = " ".join(text.split()[:200] + other.split()[:200])
    texts = [other, text, half, edited, text, "a b", "b a", "a b"]
    assert pairs_of(tmp_path, texts) == [(1, 3), (1, 4), (3, 4), (5, 7)]
    search = search_of(tmp_path, texts)
    assert search.pairs(np.array([0, 1, 2, 3, 5, 6])).tolist() == [[1, 3]]
    assert search.pairs(np.array([0])).shape == search.pairs(np.zeros(0, np.int64)).shape == (0, 2)
    assert not list(tmp_path.iterdir())


def test_versions_are_pairs_only_if_they_are_near_identical_themselves(tmp_path):
    """Each version has one more part replaced."""
    generator = np.random.default_rng(2)
    version = words(generator, 2000)
    versions = [list(version)]
    for k in range(12):
        version[k * 100 : (k + 1) * 100] = words(generator, 100)
        versions.append(list(version))
    texts = [" ".join(version) for version in versions]
    near = [(i, j) for i, j in itertools.combinations(range(13), 2) if jaccard(texts[i], texts[j]) >= JACCARD]
    assert len(near) == 12 + 11 and pairs_of(tmp_path, texts) == near


@pytest.mark.parametrize("most", [1 << 22, 2000])
def test_pairs_are_those_of_the_exact_similarity(tmp_path, monkeypatch, most):
    """Similarities of .6 to .95, with thousands of pairs near the threshold; in one block of sets and in many."""
    monkeypatch.setattr(minhash, "_BLOCK_SHINGLES", most)
    generator = np.random.default_rng(3)
    template, texts = words(generator, 300), []
    for changed in generator.integers(1, 40, size=120):
        at = generator.integers(0, 300 - changed)
        texts.append(" ".join(template[:at] + words(generator, changed) + template[at + changed :]))
    exact = {pair: jaccard(*(texts[i] for i in pair)) for pair in itertools.combinations(range(120), 2)}
    near = {pair for pair, similarity in exact.items() if similarity >= JACCARD}
    found = set(pairs_of(tmp_path, texts))
    assert found <= near and len(found) > 0.99 * len(near) > 1000
    assert sum(abs(similarity - JACCARD) < 0.05 for similarity in exact.values()) > 1000


def test_candidates_are_the_pairs_that_are_equal_in_a_band():
    generator = np.random.default_rng(4)
    signatures = generator.integers(2, size=(40, 128)).astype(np.uint32)  # each band is equal by chance in 1 of 64
    bands = signatures[:, : 21 * 6].reshape(40, 21, 6)
    equal = [pair for pair in itertools.combinations(range(40), 2) if (bands[pair[0]] == bands[pair[1]]).all(-1).any()]
    assert list(map(tuple, minhash._candidates(signatures).tolist())) == equal and equal


def test_many_equal_signatures_make_a_bounded_number_of_candidates(monkeypatch):
    """All pairs of 2,000 documents would be two million. Large groups are compared at random, small ones whole."""
    monkeypatch.setattr(minhash, "_PAIRS_OF_BAND", 20_000)
    large, small = np.arange(128), np.arange(128) + 1000
    signatures = np.stack([*[large] * 2000, *[small] * 4]).astype(np.uint32)
    pairs = minhash._candidates(signatures)
    assert len(pairs) <= 21 * 20_000 and (pairs[:, 0] < pairs[:, 1]).all()
    of_large = pairs[pairs[:, 1] < 2000]
    compared = np.bincount(of_large.ravel(), minlength=2000)
    assert compared.min() > 100 and np.abs(np.diff(of_large, axis=1)).mean() == pytest.approx(2000 / 3, rel=0.05)
    assert pairs[pairs[:, 1] >= 2000].tolist() == [[2000 + i, 2000 + j] for i, j in itertools.combinations(range(4), 2)]


def test_documents_beyond_the_limit_are_discarded(tmp_path, monkeypatch):
    monkeypatch.setattr(minhash, "MAX_DOCUMENTS", 2)
    search = NearDuplicateSearch(tmp_path)
    for count in range(4):
        search.add(b"a")
        assert search.complete == (count < 2)
    assert len(search._signatures) == 0
    with pytest.raises(ValueError, match="up to 2 documents"):
        search.pairs(np.arange(4))
