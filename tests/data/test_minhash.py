"""Signatures are datasketch's, and groups contain the near-identical documents and no others."""

import itertools

import numpy as np
import pytest

from data import minhash
from data.minhash import JACCARD, Signatures, shingles


def words(generator, count, vocabulary=5000):
    return [f"w{i}" for i in generator.integers(vocabulary, size=count)]


def groups_of(texts):
    signatures = Signatures()
    for text in texts:
        signatures.add(text.encode())
    return signatures.groups().tolist()


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


def test_signatures_are_those_of_one_update_for_each_hash():
    datasketch = pytest.importorskip("datasketch")
    text = " ".join(words(np.random.default_rng(0), 3000)).encode()
    expected = datasketch.MinHash(128, seed=1, hashfunc=int)
    for value in shingles(text).tolist():
        expected.update(value)
    signatures = Signatures()
    signatures.add(b"another text first")
    signatures.add(text)
    assert signatures._values[128:].tolist() == expected.hashvalues.tolist()


def test_groups_by_hand():
    generator = np.random.default_rng(1)
    text, other = (" ".join(words(generator, 400)) for _ in range(2))
    edited = text.replace(text.split()[200], "edited")  # changes 5 of 396 5-grams
    half = " ".join(text.split()[:200] + other.split()[:200])
    assert groups_of([other, text, half, edited, text, "a b", "b a", "a b"]) == [0, 1, 2, 1, 1, 5, 6, 5]


def test_a_group_is_connected():
    """Each version has one more part replaced: neighbours are near-identical, the first and the last are not."""
    generator = np.random.default_rng(2)
    version = words(generator, 2000)
    versions = [list(version)]
    for k in range(12):
        version[k * 100 : (k + 1) * 100] = words(generator, 100)
        versions.append(list(version))
    texts = [" ".join(version) for version in versions]
    assert jaccard(texts[0], texts[1]) > 0.88 and jaccard(texts[0], texts[-1]) < 0.3
    assert groups_of(texts) == [0] * 13


def test_pairs_far_above_the_threshold_are_found_and_pairs_far_below_it_are_not():
    generator = np.random.default_rng(3)
    found = {True: [], False: []}
    for changed in np.repeat([5, 10, 15, 40, 60, 80], 20):
        text = words(generator, 500)
        other = list(text)
        for place in generator.choice(500, changed, replace=False):
            other[place] = "changed"
        a, b = " ".join(text), " ".join(other)
        similarity = jaccard(a, b)
        if abs(similarity - JACCARD) > 0.1:
            found[similarity > JACCARD].append(groups_of([a, b]) == [0, 0])
    assert len(found[True]) > 15 and all(found[True])
    assert len(found[False]) > 40 and not any(found[False])


def test_many_copies_make_few_candidates():
    """All pairs of 2,000 copies would be two million."""
    signatures = np.repeat(np.arange(128, dtype=np.uint32)[None], 2000, axis=0)
    pairs = minhash._candidates(signatures)
    assert len(pairs) < 2 * 2000 and (pairs[:, 0] < pairs[:, 1]).all()
    assert minhash._connected(pairs, 2000).tolist() == [0] * 2000


def test_candidates_are_the_pairs_that_are_equal_in_a_band():
    generator = np.random.default_rng(4)
    signatures = generator.integers(2, size=(40, 128)).astype(np.uint32)  # each band is equal by chance in 1 of 64
    bands = signatures[:, : 21 * 6].reshape(40, 21, 6)
    equal = {(i, j) for i, j in itertools.combinations(range(40), 2) if (bands[i] == bands[j]).all(-1).any()}
    pairs = {tuple(pair) for pair in minhash._candidates(signatures).tolist()}
    assert pairs <= equal
    # Groups are those of all pairs.
    assert (
        minhash._connected(np.array(sorted(pairs)), 40).tolist()
        == minhash._connected(np.array(sorted(equal)), 40).tolist()
    )


def test_signatures_beyond_the_limit_are_discarded(monkeypatch):
    monkeypatch.setattr(minhash, "MAX_DOCUMENTS", 2)
    signatures = Signatures()
    for count in range(4):
        signatures.add(b"a")
        assert signatures.complete == (count < 2)
    assert len(signatures._values) == 0
    with pytest.raises(ValueError, match="up to 2 documents"):
        signatures.groups()
