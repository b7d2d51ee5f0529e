"""Signatures are those of datasketch, of the 5-grams of words."""

import numpy as np
import pytest

from data.duplicates.minhash import MinHasher, shingles


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
    text = " ".join(f"w{i}" for i in np.random.default_rng(0).integers(5000, size=3000))
    expected = datasketch.MinHash(128, seed=1, hashfunc=int)
    for value in shingles(text.encode()).tolist():
        expected.update(value)
    hasher = MinHasher()
    hasher.signature(b"another text first")
    signature, members = hasher.signature(text.encode())
    assert signature.tolist() == expected.hashvalues.tolist() and signature.dtype == np.uint32
    assert members.tolist() == sorted(set(shingles(text.encode()).tolist()))
