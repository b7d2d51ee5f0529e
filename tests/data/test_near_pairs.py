"""The pairs are the near-identical documents and no others, also where nothing fits into memory."""

import itertools

import numpy as np
import pytest

from data.duplicates import external_sort, near_pairs
from data.duplicates.minhash import MinHasher
from data.duplicates.near_pairs import JACCARD, NearPairs


@pytest.fixture(params=["in memory", "on disk"])
def memory(request, monkeypatch):
    """Sorts that fit into memory, and sorts of many small runs, whose groups begin in one slice and end in another."""
    if request.param == "on disk":
        monkeypatch.setattr(external_sort, "RUN_ROWS", 20_000)
        monkeypatch.setattr(near_pairs, "RUN_ROWS", 500)
        monkeypatch.setattr(near_pairs, "_CHUNK", 50)
        monkeypatch.setattr(near_pairs, "_SLICE", 300)


def words(generator, count, vocabulary=5000):
    return [f"w{i}" for i in generator.integers(vocabulary, size=count)]


def search_of(folder, texts):
    search, hasher = NearPairs(folder), MinHasher()
    for text in texts:
        signature, members = hasher.signature(text.encode())
        search.add(signature, members, np.array([len(members)]))
    return search


def pairs_among(search, documents, *arguments, **options):
    blocks = list(search.pairs(np.asarray(documents, np.int64), *arguments, **options))
    return [tuple(pair) for block in blocks for pair in block.tolist()]


def pairs_of(folder, texts):
    return pairs_among(search_of(folder, texts), range(len(texts)))


def candidates_of(folder, signatures, **options):
    search = NearPairs(folder)
    search.add(signatures, np.zeros(len(signatures), np.uint32), np.ones(len(signatures), np.int64))
    blocks = search.candidates(np.arange(len(signatures)), 21, 6, **options)
    return np.concatenate([np.zeros((0, 2), np.int64), *blocks])


def jaccard(a, b):
    """The exact similarity of two texts, from their 5-grams as tuples."""
    grams = [set(zip(*(text.split()[k:] for k in range(5)), strict=False)) for text in (a, b)]
    return len(grams[0] & grams[1]) / len(grams[0] | grams[1])


def test_pairs_by_hand(tmp_path):
    generator = np.random.default_rng(1)
    text, other = (" ".join(words(generator, 400)) for _ in range(2))
    edited = text.replace(text.split()[200], "edited")  # changes 5 of 396 5-grams
    half = " ".join(text.split()[:200] + other.split()[:200])
    texts = [other, text, half, edited, text, "a b", "b a", "a b"]
    assert pairs_of(tmp_path, texts) == [(1, 3), (1, 4), (3, 4), (5, 7)]
    search = search_of(tmp_path, texts)
    assert pairs_among(search, [0, 1, 2, 3, 5, 6]) == [(1, 3)]
    assert pairs_among(search, [0]) == pairs_among(search, []) == []
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
    monkeypatch.setattr(near_pairs, "_BLOCK_SHINGLES", most)
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


def test_candidates_are_the_pairs_that_are_equal_in_a_band(tmp_path, memory):
    generator = np.random.default_rng(4)
    signatures = generator.integers(2, size=(40, 128)).astype(np.uint32)  # each band is equal by chance in 1 of 64
    bands = signatures[:, : 21 * 6].reshape(40, 21, 6)
    equal = [pair for pair in itertools.combinations(range(40), 2) if (bands[pair[0]] == bands[pair[1]]).all(-1).any()]
    assert list(map(tuple, candidates_of(tmp_path, signatures).tolist())) == equal and equal


def test_many_equal_signatures_make_a_bounded_number_of_candidates(tmp_path, monkeypatch, memory):
    """All pairs of 2,000 documents would be two million. Large groups are compared at random, small ones whole."""
    monkeypatch.setattr(near_pairs, "_PAIRS_OF_BAND", 20_000)
    large, small = np.arange(128), np.arange(128) + 1000
    signatures = np.stack([*[large] * 2000, *[small] * 4]).astype(np.uint32)
    pairs = candidates_of(tmp_path, signatures)
    assert len(pairs) <= 21 * 20_000 and (pairs[:, 0] < pairs[:, 1]).all()
    of_large = pairs[pairs[:, 1] < 2000]
    compared = np.bincount(of_large.ravel(), minlength=2000)
    assert compared.min() > 100 and np.abs(np.diff(of_large, axis=1)).mean() == pytest.approx(2000 / 3, rel=0.05)
    assert pairs[pairs[:, 1] >= 2000].tolist() == [[2000 + i, 2000 + j] for i, j in itertools.combinations(range(4), 2)]


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_the_threshold_chooses_the_bands(tmp_path, threshold):
    """99% of the pairs at the threshold itself are candidates, with as few bands as that allows."""
    bands, rows = near_pairs._banding(threshold)
    assert bands * rows <= 128 and 1 - (1 - threshold**rows) ** bands >= 0.99
    generator = np.random.default_rng(5)
    template, texts = words(generator, 200), []
    for changed in generator.integers(1, 60, size=60):
        texts.append(" ".join(template[: 200 - changed] + words(generator, changed)))
    near = {pair for pair in itertools.combinations(range(60), 2) if jaccard(*(texts[i] for i in pair)) >= threshold}
    found = set(pairs_among(search_of(tmp_path, texts), range(60), threshold))
    assert found <= near and len(found) >= 0.98 * len(near) > 5


def test_with_first_compares_every_document_with_the_first_of_its_group(tmp_path, monkeypatch, memory):
    monkeypatch.setattr(near_pairs, "_PAIRS_OF_BAND", 1000)
    signatures = np.stack([np.arange(128)] * 500 + [np.arange(128) + 1000]).astype(np.uint32)
    pairs = set(map(tuple, candidates_of(tmp_path, signatures, with_first=True).tolist()))
    assert {(0, k) for k in range(1, 500)} <= pairs
    assert pairs == {(0, k) for k in range(1, 500)} | {
        (k, k + j) for k in range(500) for j in range(1, 9) if k + j < 500
    }
