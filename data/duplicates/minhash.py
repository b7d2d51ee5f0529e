"""Signatures of documents (MinHash, Broder 1997), from which data/duplicates/near_pairs.py finds near-identical documents.

As in Lee et al. 2022 ("Deduplicating training data makes language models better", appendix A), a document is the set of
its 5-grams of words, which are what white space separates. Words, and not the tokens of the store: 5-grams of bytes are
shared by unrelated texts, and with words the pairs are the same for every tokenizer. Text without spaces, such as
Chinese, is few and long words, so that only nearly equal documents of it are found.
"""

import zlib

import numpy as np

from contract.rng import GOLDEN, mix64

PERMUTATIONS = 128  # values of a signature, the default of datasketch
_WORDS = 5
_CHUNK = 1024  # 5-grams that are hashed at once: 128 x 1024 values fit the processor's cache


class MinHasher:
    """Computes the signatures of documents."""

    def __init__(self) -> None:
        from datasketch import MinHash  # imports SciPy, which takes longer than opening a store

        # update_batch calls `hashfunc` for every value of the batch. One value that is a whole array of hashes gives
        # the same signature as many values, without a Python call for each.
        self._minhash = MinHash(PERMUTATIONS, seed=1, scheme="affine32", hashfunc=lambda hashes: hashes)

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
