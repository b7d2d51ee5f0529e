"""Near-identical documents: the pairs are those of the exact similarity, and no others."""

import itertools

import datasketch
import numpy as np
import pytest

from data.duplicates.near import JACCARD, PERMUTATIONS, MinHasher, Signatures, banding, near_pairs, sharing_a_band


def words(generator, count, vocabulary=5000):
    return [f"w{i}" for i in generator.integers(vocabulary, size=count)]


def signatures_of(texts) -> Signatures:
    hasher = MinHasher()
    values, sets = zip(*(hasher.signature(text.encode()) for text in texts), strict=True)
    return Signatures(np.stack(values), np.concatenate(sets), np.append(0, np.cumsum([len(s) for s in sets])))


def pairs_of(texts, jaccard=JACCARD, **options):
    found = signatures_of(texts)
    candidates = sharing_a_band(found.values, np.arange(len(texts)), jaccard)
    return [tuple(pair) for pair in near_pairs(found, candidates, jaccard, **options).tolist()]


def similarities(texts):
    """The exact similarity of each pair of texts, from their 5-grams as tuples."""
    grams = [set(zip(*(text.split()[k:] for k in range(5)), strict=False)) for text in texts]
    pairs = itertools.combinations(range(len(texts)), 2)
    return {(a, b): len(grams[a] & grams[b]) / len(grams[a] | grams[b]) for a, b in pairs}


def near_by_brute_force(texts, jaccard=JACCARD):
    return {pair for pair, similarity in similarities(texts).items() if similarity >= jaccard}


def test_pairs_by_hand():
    generator = np.random.default_rng(1)
    text, other = (" ".join(words(generator, 400)) for _ in range(2))
    edited = text.replace(text.split()[200], "edited")  # changes 5 of 396 5-grams
    half = " ".join(text.split()[:200] + other.split()[:200])
    texts = [other, text, half, edited, text, "a b", "b a", "a b"]
    assert pairs_of(texts) == [(1, 3), (1, 4), (3, 4), (5, 7)]
    assert pairs_of([other]) == []


def test_a_signature_is_the_minimum_of_each_permutation():
    """MinHash: the share of equal values estimates the similarity; and it is datasketch's signature of the set."""
    generator = np.random.default_rng(0)
    text = words(generator, 3000)
    a, b = " ".join(text), " ".join(text[:2400] + words(generator, 600))
    found = signatures_of([a, b])
    assert (found.values[0] == found.values[1]).mean() == pytest.approx(similarities([a, b])[0, 1], abs=0.15)
    assert found.similarity(0, 1) == pytest.approx(similarities([a, b])[0, 1])
    members = found.sets[: found.bounds[1]]
    library = datasketch.MinHash(PERMUTATIONS, seed=1, scheme="affine32", hashfunc=lambda value: value)
    library.update_batch([members[k : k + 1] for k in range(len(members))])
    np.testing.assert_array_equal(found.values[0], library.hashvalues)
    assert np.diff(members.astype(np.int64)).min() > 0


@pytest.mark.parametrize("low_bits", [0, 0xF, 0xFFFF])
def test_similar_documents_are_those_of_the_exact_similarity(low_bits, monkeypatch):
    """However many 5-grams have equal low bits."""
    monkeypatch.setattr("data.duplicates.near._LOW_BITS", np.uint32(low_bits))
    generator = np.random.default_rng(6)
    template, texts = words(generator, 100), ["a b", "a b c d e f g"]
    for changed in generator.integers(1, 60, size=40):
        texts.append(" ".join(template[:40] + words(generator, changed) + template[40 + changed :]))
    found = signatures_of(texts)
    others = list(range(1, len(texts)))
    for jaccard in (0.3, 0.8, 1.0):
        similar = found.similar(5, others, jaccard)
        assert similar == [other for other in others if found.similarity(5, other) >= jaccard]
        assert 5 in similar
    assert 3 < len(found.similar(5, others, 0.3)) < 40 and found.similar(5, [], 0.3) == []


@pytest.mark.slow
@pytest.mark.parametrize(("jaccard", "most"), [(0.5, 350), (0.8, 120), (0.95, 25)])
@pytest.mark.parametrize("seed", [3, 4])
def test_pairs_are_those_of_brute_force(jaccard, most, seed):
    """Pairs on both sides of the threshold; 99% of those at it are found."""
    bands, rows = banding(jaccard)
    assert bands * rows <= PERMUTATIONS and 1 - (1 - jaccard**rows) ** bands >= 0.99
    generator = np.random.default_rng(seed)
    template, texts = words(generator, 800), []
    for changed in generator.integers(1, most, size=60):
        at = generator.integers(0, 800 - changed)
        texts.append(" ".join(template[:at] + words(generator, changed) + template[at + changed :]))
    near, found = near_by_brute_force(texts, jaccard), set(pairs_of(texts, jaccard, most=1000))
    assert len(near) < 60 * 59 / 2 * 0.9 and found <= near and len(found) >= 0.99 * len(near) > 30


def test_a_large_group_makes_a_bounded_number_of_pairs():
    """Each of 300 copies is compared with the first ones; the last is found to be a copy too."""
    texts = [" ".join(words(np.random.default_rng(5), 50))] * 300
    pairs = pairs_of(texts, most=8)
    assert len(pairs) == 8 * 7 // 2 + 8 * (300 - 8)  # the first 8 are those that are compared with later ones
    assert {second for _, second in pairs} == set(range(1, 300))
    assert pairs_of(texts, most=1) == [(0, k) for k in range(1, 300)]
