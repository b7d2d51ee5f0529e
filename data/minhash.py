"""Groups of near-identical documents, found by MinHash (Broder 1997) while a token store is written.

As in Lee et al. 2022 ("Deduplicating training data makes language models better", appendix A), a document is the set of
its 5-grams of words, which are what white space separates. Words, and not the tokens of the store: 5-grams of bytes are
shared by unrelated texts, and with words the groups are the same for every tokenizer. Text without spaces, such as
Chinese, is few and long words, so that only nearly equal documents of it are found.

Two documents are near-identical if the Jaccard similarity of their sets, estimated from their signatures, is at least
`JACCARD`. Documents are compared only where all signature values of one of `_BANDS` bands are equal (locality-sensitive
hashing): a pair of similarity .8 is compared with probability .9983, of similarity .9 with probability 1 - 1e-7.

The reference uses signatures of 9,000 values and verifies candidates by their edit similarity. Deviation: 128 values,
the default of datasketch, with which the estimate has a standard deviation of .035 at similarity .8.
"""

import zlib
from array import array

import numpy as np

from contract.rng import GOLDEN, mix64

JACCARD = 0.8  # Lee et al. 2022 use the same threshold, of the edit similarity
MAX_DOCUMENTS = 1 << 20  # a signature takes 512 bytes of memory while the store is written
_WORDS = 5
_PERMUTATIONS = 128
_BANDS, _ROWS = 21, 6  # values in a band
_CHUNK = 1024  # 5-grams that are hashed at once: 128 x 1024 values fit the processor's cache
_BLOCK = 1 << 14  # pairs that are compared at once


class Signatures:
    """The MinHash signatures of documents, in their order, for up to MAX_DOCUMENTS documents.

    Attributes:
      complete: whether every document has a signature. Beyond MAX_DOCUMENTS documents all signatures are discarded.
    """

    def __init__(self):
        from datasketch import MinHash  # imports SciPy, which takes longer than opening a store

        # update_batch calls `hashfunc` for every value of the batch. One value that is a whole array of hashes gives
        # the same signature as many values, without a Python call for each.
        self._minhash = MinHash(_PERMUTATIONS, seed=1, scheme="affine32", hashfunc=lambda hashes: hashes)
        self._values = array("I")
        self.complete = True

    def add(self, text: bytes) -> None:
        """Adds the signature of a document's text."""
        if len(self._values) >= MAX_DOCUMENTS * _PERMUTATIONS:
            self.complete, self._values = False, array("I")
        if not self.complete:
            return
        hashes = shingles(text)
        self._minhash.clear()
        for start in range(0, len(hashes), _CHUNK):
            self._minhash.update_batch([hashes[start : start + _CHUNK]])
        self._values.frombytes(self._minhash.hashvalues.tobytes())

    def groups(self) -> np.ndarray:
        """int64 [documents]: the first document of each document's group, the document itself if it has no other.

        A group is connected: each of its documents is near-identical to at least one other, not to all others. Raises
        ValueError if the signatures are not complete.
        """
        if not self.complete:
            raise ValueError(f"there are signatures for up to {MAX_DOCUMENTS} documents only")
        signatures = np.frombuffer(self._values, np.uint32).reshape(-1, _PERMUTATIONS)
        return _connected(_verified(_candidates(signatures), signatures), len(signatures))


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


def _candidates(signatures: np.ndarray) -> np.ndarray:
    """Pairs of documents that are equal in a band, int64 [pairs, 2], the smaller number first.

    Within the documents that are equal in one band, each document is paired with the one before it and with the first:
    all pairs would be quadratic in the copies of a document, and groups are connected without them.
    """
    pairs = []
    for band in range(_BANDS):
        key = np.zeros(len(signatures), np.uint64)
        for row in range(_ROWS):
            key = mix64(key * GOLDEN ^ signatures[:, band * _ROWS + row])
        order = np.argsort(key, kind="stable")
        is_equal = np.concatenate([[False], key[order][1:] == key[order][:-1]])
        first = np.maximum.accumulate(np.where(is_equal, 0, np.arange(len(order))))
        later = np.flatnonzero(is_equal)
        for earlier in (later - 1, first[later]):
            pairs.append(order[earlier] * len(order) + order[later])
    return np.stack(np.divmod(np.unique(np.concatenate(pairs)), len(signatures)), axis=1)


def _verified(pairs: np.ndarray, signatures: np.ndarray) -> np.ndarray:
    """The pairs whose estimated Jaccard similarity, the share of equal signature values, is at least JACCARD."""
    similar = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _BLOCK):
        a, b = signatures[pairs[start : start + _BLOCK].T]
        similar[start : start + _BLOCK] = (a == b).mean(axis=1) >= JACCARD
    return pairs[similar]


def _connected(pairs: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the smallest number in the connected component of each number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    return first_of_each(component)


def first_of_each(values: np.ndarray) -> np.ndarray:
    """int64 [n]: for each of `values`, any integers [n], the index of the first value that equals it."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]
