"""Near-identical documents: signatures (MinHash, Broder 1997) of their words, and the pairs that are near-identical.

As in Lee et al. 2022 ("Deduplicating training data makes language models better", appendix A), a document is the set of
its 5-grams of words, which are what white space separates. Words, and not the tokens of the store: 5-grams of bytes are
shared by unrelated texts, and with words the pairs are the same for every tokenizer. Text without spaces, such as
Chinese, is few and long words, so that only nearly equal documents of it are found.

Two documents are near-identical if the Jaccard similarity of their sets of 5-grams is at least a threshold, `JACCARD`
by default. Candidates are pairs in which all signature values of one band are equal (locality-sensitive hashing, by
datasketch); the similarity of a candidate is then computed from the two sets. A pair of similarity .8 is a candidate
with probability .998, of similarity .9 with probability 1 - 1e-7.

Deviations from Lee et al. 2022: signatures of 128 values instead of 9,000; candidates are verified by their Jaccard
similarity instead of their edit similarity; and there are no clusters, which can contain documents that have nothing in
common, such as the first and the last of many versions.
"""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from contract.rng import GOLDEN, mix64

PERMUTATIONS = 128  # values of a signature, the default of datasketch
JACCARD = 0.8  # Lee et al. 2022 use the same threshold, of the edit similarity
# Without data.filters.remove_duplicates="near", pairs are searched in corpora of up to this number of documents.
MAX_DOCUMENTS = 1 << 20
MAX_PAIRS = 64  # a document that is near-identical to so many earlier ones is not compared with later ones
_RECALL = 0.99  # the least probability that a pair whose similarity is the threshold is a candidate
_WORDS = 5
_LOW_BITS = np.uint32(0xFFFF)  # a table of as many values fits the processor's cache
_CHUNK = 1024  # 5-grams that are hashed at once: 128 x 1024 values fit the processor's cache
_SCHEME = "affine32"  # of datasketch's permutations: 32 bits a value


class MinHasher:
    """Computes the signatures of documents."""

    def __init__(self) -> None:
        from datasketch import MinHash  # imports SciPy, which takes longer than opening a store

        # update_batch calls `hashfunc` for every value of the batch. One value that is a whole array of hashes gives
        # the same signature as many values, without a Python call for each.
        self._minhash = MinHash(PERMUTATIONS, seed=1, scheme=_SCHEME, hashfunc=lambda hashes: hashes)

    def signature(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns a document's signature, uint32 [PERMUTATIONS], and its set of 5-grams, uint32 [n], ascending."""
        hashes = np.unique(shingles(text))
        self._minhash.clear()
        for start in range(0, len(hashes), _CHUNK):
            self._minhash.update_batch([hashes[start : start + _CHUNK]])
        return self._minhash.hashvalues.astype(np.uint32), hashes


def shingles(text: bytes) -> np.ndarray:
    """uint32 [n]: a hash of each 5-gram of words of a UTF-8 text; of all words, if there are fewer than five."""
    words = text.split() or [text]
    hashes = np.fromiter(map(zlib.crc32, words), np.uint64, len(words))
    size = min(_WORDS, len(words))
    count = len(words) - size + 1
    combined = np.full(count, size, np.uint64)
    for k in range(size):
        combined *= GOLDEN
        combined ^= hashes[k : k + count]
    return (mix64(combined) >> np.uint64(32)).astype(np.uint32)


@dataclasses.dataclass(frozen=True)
class Signatures:
    """Signatures and sets of 5-grams of n documents, possibly memory maps of files.

    Attributes:
      values: uint32 [n, PERMUTATIONS].
      sets: uint32 [N], the documents' sets one after another, each ascending.
      bounds: int64 [n + 1]: the set of document d is sets[bounds[d] : bounds[d + 1]].
    """

    values: np.ndarray
    sets: np.ndarray
    bounds: np.ndarray

    def similarity(self, first: int, second: int) -> float:
        """Returns the Jaccard similarity of two documents."""
        a, b = self._set(first), self._set(second)
        shared = len(np.intersect1d(a, b, assume_unique=True))
        return shared / (len(a) + len(b) - shared)

    def similar(self, document: int, others: Sequence[int], jaccard: float) -> list[int]:
        """Returns those of `others` whose Jaccard similarity to `document` is at least `jaccard`.

        Only pairs are computed whose upper bound, which takes 5-grams of equal low bits as equal, is not below it. The
        bounds take a fifth of the time, and thousands of documents with one template are all candidates of each other.
        """
        if not others:
            return []
        own, sets = self._set(document), [self._set(other) for other in others]
        lengths = np.array([len(values) for values in sets])
        is_own = np.zeros(int(_LOW_BITS) + 1, bool)
        is_own[own & _LOW_BITS] = True
        shared = np.add.reduceat(is_own[np.concatenate(sets) & _LOW_BITS], np.cumsum(lengths) - lengths, dtype=int)
        shared = np.minimum(shared, len(own))
        possible = np.flatnonzero(shared / (len(own) + lengths - shared) >= jaccard)
        return [others[k] for k in possible if self.similarity(others[k], document) >= jaccard]

    def _set(self, document: int) -> np.ndarray:
        return self.sets[self.bounds[document] : self.bounds[document + 1]]


def near_pairs(
    signatures: Signatures,
    documents: np.ndarray,
    jaccard: float = JACCARD,
    *,
    most: int = MAX_PAIRS,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Returns pairs of near-identical documents, int64 [P, 2], ascending, the smaller number first in each.

    Args:
      signatures: of all documents.
      documents: int64 [n], ascending: the documents that are compared, as of `sharing_a_band`.
      jaccard: the least similarity of a pair.
      most: with how many earlier documents a document may be near-identical and still be compared with later ones. In
        a group of thousands of copies, each is so compared with its first members alone. With most=1, the first of
        a pair is never the second of another one: without the seconds, each has a copy that stays.
      groups: uint64 [all documents]: both documents of a pair are of one group; None: all documents are.
    """
    from datasketch import LeanMinHash, MinHashLSH

    search = MinHashLSH(num_perm=PERMUTATIONS, params=banding(jaccard))
    pairs: list[tuple[int, int]] = []
    for document in documents.tolist():
        signature = LeanMinHash(seed=1, hashvalues=signatures.values[document], scheme=_SCHEME)
        found = [other for other in search.query(signature) if groups is None or groups[other] == groups[document]]
        near = signatures.similar(document, found, jaccard)
        pairs += [(other, document) for other in near]
        if len(near) < most:
            search.insert(document, signature)
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


def sharing_a_band(values: np.ndarray, documents: np.ndarray, jaccard: float = JACCARD) -> np.ndarray:
    """Returns those of `documents`, int64 [n], whose signature is equal to another one's in a band: the candidates.

    They are few in most corpora, and datasketch takes 10 kB of memory for each that it compares.

    values: uint32 [all documents, PERMUTATIONS].
    """
    bands, rows = banding(jaccard)
    shares = np.zeros(len(documents), bool)
    for band in range(bands):
        keys = band_keys(values, documents, band, rows)
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        shares |= counts[inverse] > 1
    return documents[shares]


def band_keys(values: np.ndarray, documents: np.ndarray, band: int, rows: int) -> np.ndarray:
    """Returns a hash of the signature values of `documents` in a band of `rows` values, uint64 [n]."""
    keys = np.full(len(documents), band, np.uint64)
    for row in range(band * rows, (band + 1) * rows):
        keys = mix64(keys * GOLDEN ^ values[documents, row])
    return keys


def banding(jaccard: float) -> tuple[int, int]:
    """Returns the number of bands, and the values in each: as many as `_RECALL` allows, in two bands or more."""
    for rows in range(PERMUTATIONS // 2, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - jaccard**rows) ** bands >= _RECALL:
            return bands, rows
    return PERMUTATIONS, 1
