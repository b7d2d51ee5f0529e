"""Pairs of near-identical documents, found by MinHash (Broder 1997) while a token store is written.

As in Lee et al. 2022 ("Deduplicating training data makes language models better", appendix A), a document is the set of
its 5-grams of words, which are what white space separates. Words, and not the tokens of the store: 5-grams of bytes are
shared by unrelated texts, and with words the pairs are the same for every tokenizer. Text without spaces, such as
Chinese, is few and long words, so that only nearly equal documents of it are found.

Two documents are near-identical if the Jaccard similarity of their sets is at least `JACCARD`. Candidates are pairs in
which all signature values of one of `_BANDS` bands are equal (locality-sensitive hashing), and whose similarity as
estimated from the signatures is not below `_LEAST_ESTIMATE`. The similarity of a candidate is then computed from the
two sets. A pair of similarity .8 is a candidate with probability .998, of similarity .9 with probability 1 - 1e-7.

Deviations from the reference: signatures of 128 values, the default of datasketch, instead of 9,000; candidates are
verified by their Jaccard similarity instead of their edit similarity; and there are no clusters, which can contain
documents that have nothing in common, such as the first and the last of many versions.
"""

import tempfile
import zlib
from array import array
from pathlib import Path

import numpy as np

from contract.rng import GOLDEN, mix64

JACCARD = 0.8  # Lee et al. 2022 use the same threshold, of the edit similarity
MAX_DOCUMENTS = 1 << 20  # a signature takes 512 bytes of memory while the store is written
_WORDS = 5
_PERMUTATIONS = 128
_BANDS, _ROWS = 21, 6  # values in a band
_LEAST_ESTIMATE = JACCARD - 0.14  # 4 standard deviations of the estimate at similarity .8
_CHUNK = 1024  # 5-grams that are hashed at once: 128 x 1024 values fit the processor's cache
_BLOCK = 1 << 14  # pairs that are compared at once
_BLOCK_SHINGLES = 1 << 22  # 5-grams of the pairs whose sets are compared at once
_PAIRS_OF_BAND = 1 << 16  # candidates of a band, unless _LEAST_COMPARED are more
_LEAST_COMPARED = 8  # documents that each document of a group is compared with in such a band


class NearDuplicateSearch:
    """Collects documents, up to MAX_DOCUMENTS, and finds the pairs that are near-identical.

    Signatures are in memory. The sets of 5-grams are in a temporary file, of 4 bytes for each word.

    Attributes:
      complete: whether every document can be compared. Beyond MAX_DOCUMENTS documents all are discarded.
    """

    def __init__(self, folder: Path):
        """folder: of the temporary file, which is removed with the object."""
        from datasketch import MinHash  # imports SciPy, which takes longer than opening a store

        # update_batch calls `hashfunc` for every value of the batch. One value that is a whole array of hashes gives
        # the same signature as many values, without a Python call for each.
        self._minhash = MinHash(_PERMUTATIONS, seed=1, scheme="affine32", hashfunc=lambda hashes: hashes)
        self._signatures = array("I")
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  open as long as the object
        self._ends = array("q", [0])  # of the documents' sets in the file
        self.complete = True

    def add(self, text: bytes) -> None:
        """Adds a document's text."""
        if len(self._ends) > MAX_DOCUMENTS:
            self.complete, self._signatures, self._ends = False, array("I"), array("q", [0])
            self._file.truncate(0)
        if not self.complete:
            return
        hashes = np.unique(shingles(text))
        self._minhash.clear()
        for start in range(0, len(hashes), _CHUNK):
            self._minhash.update_batch([hashes[start : start + _CHUNK]])
        self._signatures.frombytes(self._minhash.hashvalues.tobytes())
        self._file.write(hashes.tobytes())
        self._ends.append(self._ends[-1] + len(hashes))

    def pairs(self, documents: np.ndarray) -> np.ndarray:
        """The near-identical pairs among `documents`, int64 [n], ascending: int64 [P, 2], ascending, smaller first.

        A band in which equal documents form more than _PAIRS_OF_BAND pairs is searched in part: each document is
        compared with _LEAST_COMPARED others or more, at random, so that groups of up to 9 documents are searched
        whole. In a group of thousands, a document of similarity .8 to the others is compared with about 80 of them:
        it is practically always a pair with one of a tenth of the group, but not a pair with all others.

        Raises ValueError if not all documents could be compared.
        """
        if not self.complete:
            raise ValueError(f"up to {MAX_DOCUMENTS} documents can be compared")
        signatures = np.frombuffer(self._signatures, np.uint32).reshape(-1, _PERMUTATIONS)[documents]
        candidates = _candidates(signatures)
        return self._verified(documents[_estimated(candidates, signatures)])

    def _verified(self, pairs: np.ndarray) -> np.ndarray:
        """The pairs whose Jaccard similarity is at least JACCARD."""
        self._file.flush()
        if not len(pairs):
            return pairs
        contents = np.memmap(self._file, np.uint32, "r")
        ends = np.asarray(self._ends)
        work = np.cumsum((ends[pairs + 1] - ends[pairs]).sum(axis=1)) // _BLOCK_SHINGLES
        blocks = np.split(pairs, np.flatnonzero(np.diff(work)) + 1)
        return np.concatenate([block[_jaccard(block, contents, ends) >= JACCARD] for block in blocks])


def _jaccard(pairs: np.ndarray, contents: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """float64 [P]: the similarity of each of `pairs`, int64 [P, 2].

    contents, ends: set d is contents[ends[d] : ends[d + 1]], uint32, ascending.
    """
    from scipy.sparse import csr_array

    documents, index = np.unique(pairs, return_inverse=True)
    sizes = ends[documents + 1] - ends[documents]
    members = np.concatenate([contents[ends[d] : ends[d + 1]] for d in documents.tolist()]).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    sets = csr_array((np.ones(len(members), np.int8), members, bounds), shape=(len(documents), 1 << 32))
    first, second = index.reshape(-1, 2).T
    shared = np.diff(sets[first].multiply(sets[second]).indptr)
    return shared / (sizes[first] + sizes[second] - shared)


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
    """Pairs of documents that are equal in a band, int64 [P, 2], ascending, the smaller number first.

    All such pairs, except in bands with more than _PAIRS_OF_BAND of them; see NearDuplicateSearch.pairs.
    """
    count, packed = len(signatures), []
    for band in range(_BANDS):
        key = np.full(count, band, np.uint64)
        for row in range(_ROWS):
            key = mix64(key * GOLDEN ^ signatures[:, band * _ROWS + row])
        order = np.lexsort((mix64(key ^ GOLDEN * np.arange(count, dtype=np.uint64)), key))  # random among equal keys
        is_first = np.concatenate([[True], key[order][1:] != key[order][:-1]])
        sizes = np.diff(np.append(np.flatnonzero(is_first), count))
        later = np.repeat(np.cumsum(sizes), sizes) - 1 - np.arange(count)  # documents that follow with the same key
        if later.sum() > _PAIRS_OF_BAND:
            later = np.minimum(later, max(_PAIRS_OF_BAND // np.count_nonzero(later), _LEAST_COMPARED))
        first = np.repeat(np.arange(count), later)
        second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
        a, b = order[first], order[second]
        packed.append(np.minimum(a, b) * count + np.maximum(a, b))
    return np.stack(np.divmod(np.unique(np.concatenate(packed)), max(count, 1)), axis=1)


def _estimated(pairs: np.ndarray, signatures: np.ndarray) -> np.ndarray:
    """The pairs whose estimated similarity, the share of equal signature values, is at least _LEAST_ESTIMATE."""
    similar = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _BLOCK):
        a, b = signatures[pairs[start : start + _BLOCK].T]
        similar[start : start + _BLOCK] = (a == b).mean(axis=1) >= _LEAST_ESTIMATE
    return pairs[similar]


def first_of_each(values: np.ndarray) -> np.ndarray:
    """int64 [n]: for each of `values`, any integers [n], the index of the first value that equals it."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]
