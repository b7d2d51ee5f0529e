"""Pairs of near-identical documents, found from their signatures (data/duplicates/minhash.py) with files in place of memory.

Two documents are near-identical if the Jaccard similarity of their sets of 5-grams is at least a threshold, `JACCARD`
by default. Candidates are pairs in which all signature values of one band are equal (locality-sensitive hashing), and
whose similarity as estimated from the signatures is not 4 standard deviations below the threshold. The similarity of a
candidate is then computed from the two sets. A pair of similarity .8 is a candidate with probability .998, of
similarity .9 with probability 1 - 1e-7.

Deviations from Lee et al. 2022: signatures of 128 values instead of 9,000; candidates are verified by their Jaccard
similarity instead of their edit similarity; and there are no clusters, which can contain documents that have nothing in
common, such as the first and the last of many versions.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contract.rng import GOLDEN, mix64
from data.duplicates.external_sort import RUN_ROWS, ExternalSort
from data.duplicates.minhash import PERMUTATIONS

JACCARD = 0.8  # Lee et al. 2022 use the same threshold, of the edit similarity
# Without data.filters.remove_duplicates="near", pairs are searched in corpora of up to this number of documents.
MAX_DOCUMENTS = 1 << 20
_RECALL = 0.99  # the least probability that a pair whose similarity is the threshold is a candidate
_CHUNK = 1 << 13  # documents whose signatures are in memory at the same time
_SLICE = 1 << 17  # documents of bands whose pairs are in memory at the same time
_BLOCK = 1 << 14  # pairs that are compared at once
_BLOCK_SHINGLES = 1 << 22  # 5-grams of the pairs whose sets are compared at once
_PAIRS_OF_BAND = 1 << 16  # candidates of a band, unless _LEAST_COMPARED are more
_LEAST_COMPARED = 8  # documents that each document of a group is compared with in such a band


class NearPairs:
    """Signatures and sets of 5-grams of any number of documents, in temporary files, and a search for pairs.

    The files have 520 bytes for each document, and 4 for each of its words. While `pairs` runs, others have 24
    bytes for each document that it compares, and 16 for each candidate.

    Attributes:
      is_partial: whether the last search compared only some of the documents that are equal in a band.
    """

    def __init__(self, folder: Path):
        """folder: of the temporary files, which are removed with the object."""
        self._folder = folder
        self._signatures, self._sets, self._ends = (_Numbers(folder, kind) for kind in (np.uint32, np.uint32, np.int64))
        self._ends.append(np.zeros(1, np.int64))
        self._num_shingles = 0
        self.is_partial = False

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._signatures) // PERMUTATIONS

    def add(self, signatures: np.ndarray, sets: np.ndarray, sizes: np.ndarray) -> None:
        """Adds n documents.

        signatures: uint32 [n, PERMUTATIONS]. sets: uint32 [N], the documents' sets of 5-grams one after another, each
        ascending. sizes: int64 [n], of the sets.

        Raises OSError.
        """
        self._signatures.append(signatures)
        self._sets.append(sets)
        self._ends.append(self._num_shingles + np.cumsum(sizes, dtype=np.int64))
        self._num_shingles += int(sizes.sum())

    def pairs(
        self, documents: np.ndarray, jaccard: float = JACCARD, *, with_first: bool = False
    ) -> Iterator[np.ndarray]:
        """Yields the near-identical pairs among `documents`, int64 [n], ascending.

        The pairs, int64 [P, 2], ascend over all that is yielded, and each has the smaller number first.

        A band in which equal documents form more than _PAIRS_OF_BAND pairs is searched in part: each document is
        compared with _LEAST_COMPARED others or more, at random, so that groups of up to 9 documents are searched
        whole. In a group of thousands, a document of similarity .8 to the others is compared with about 80 of them:
        it is practically always a pair with one of a tenth of the group, but not a pair with all others.

        with_first: compare each document with the first of its group in every band too, and with those that follow it
        instead of random ones. That finds most copies in large groups; but where the first of a group is itself a copy
        of another document, or is not near-identical to the others, these are compared with their followers alone, so
        that data/store/copies.py repeats the search among the documents that stay.

        Raises OSError where a temporary file cannot be written.
        """
        least = jaccard - 4 * math.sqrt(jaccard * (1 - jaccard) / PERMUTATIONS)
        for block in self.candidates(documents, *_banding(jaccard), with_first=with_first):
            estimated = [self._estimated(block[i : i + _BLOCK], least) for i in range(0, len(block), _BLOCK)]
            yield from self.verified(np.concatenate(estimated), jaccard)

    def candidates(
        self, documents: np.ndarray, bands: int, rows: int, *, with_first: bool = False
    ) -> Iterator[np.ndarray]:
        """Yields the pairs of documents that are equal in one of `bands` bands of `rows` values, as `pairs` does."""
        candidates = ExternalSort(self._folder, 2, unique=True)
        self.is_partial = False
        at_once = max(RUN_ROWS // max(len(documents), 1), 1)  # bands, of one pass over the signatures
        for first_band in range(0, bands, at_once):
            several = range(first_band, min(first_band + at_once, bands))
            for in_band in self._in_bands(documents, several, rows, with_first):
                most = _most_compared(in_band)
                self.is_partial |= most < _PAIRS_OF_BAND
                for first, second in _equal_in_band(in_band, most, with_first):
                    candidates.add(np.minimum(first, second), np.maximum(first, second))
        yield from (block.astype(np.int64) for block in candidates.blocks())

    def _in_bands(self, documents: np.ndarray, bands: range, rows: int, with_first: bool) -> list[ExternalSort]:
        """Returns rows (hash of the values in the band, order among equal ones, document) for each band."""
        in_bands, rank = [ExternalSort(self._folder, 3) for _ in bands], 0
        for start in range(0, len(self), _CHUNK):
            bounds = np.searchsorted(documents, [start, start + _CHUNK])
            chunk = np.asarray(documents[slice(*bounds)])
            if not len(chunk):
                continue
            signatures = self._signatures.read(start * PERMUTATIONS, _CHUNK * PERMUTATIONS)
            signatures = signatures.reshape(-1, PERMUTATIONS)[chunk - start]
            ranks = np.arange(rank, rank + len(chunk), dtype=np.uint64)
            rank += len(chunk)
            for band, in_band in zip(bands, in_bands, strict=True):
                key = np.full(len(chunk), band, np.uint64)
                for row in range(rows):
                    key = mix64(key * GOLDEN ^ signatures[:, band * rows + row])
                order = ranks if with_first else mix64(key ^ GOLDEN * ranks)  # random, without `with_first`
                in_band.add(key, order, chunk)
        return in_bands

    def _estimated(self, pairs: np.ndarray, least: float) -> np.ndarray:
        """The pairs whose estimated similarity, the share of equal signature values, is at least `least`."""
        documents, index = np.unique(pairs, return_inverse=True)
        read = [self._signatures.read(d * PERMUTATIONS, PERMUTATIONS) for d in documents.tolist()]
        a, b = np.stack(read)[index.reshape(-1, 2).T]
        return pairs[(a == b).mean(axis=1) >= least]

    def verified(self, pairs: np.ndarray, jaccard: float) -> Iterator[np.ndarray]:
        """Yields those of `pairs`, int64 [P, 2], whose Jaccard similarity is at least `jaccard`, in their order."""
        if not len(pairs):
            return
        sizes = np.array([self._bounds(d)[1] for d in pairs.ravel().tolist()]).reshape(-1, 2)
        work = np.cumsum(sizes.sum(axis=1)) // _BLOCK_SHINGLES
        for block in np.split(pairs, np.flatnonzero(np.diff(work)) + 1):
            documents, index = np.unique(block, return_inverse=True)
            sets = [self._sets.read(*self._bounds(d)) for d in documents.tolist()]
            found = block[_jaccard(index.reshape(-1, 2), sets) >= jaccard]
            if len(found):
                yield found

    def _bounds(self, document: int) -> tuple[int, int]:
        """Returns where a document's set begins, and its size."""
        start, end = self._ends.read(document, 2).tolist()
        return start, end - start


class _Numbers:
    """A temporary file of numbers, which grows at its end and is read anywhere."""

    def __init__(self, folder: Path, dtype: type):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  open as long as the object
        self._dtype = np.dtype(dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, numbers: np.ndarray) -> None:
        self._file.write(numbers.astype(self._dtype, copy=False).tobytes())
        self._count += numbers.size

    def read(self, start: int, count: int) -> np.ndarray:
        """Returns up to `count` numbers from number `start` on."""
        self._file.flush()
        size = self._dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), count * size, start * size), self._dtype)


def _banding(jaccard: float) -> tuple[int, int]:
    """Returns the number of bands, and the values in each: as many as `_RECALL` allows."""
    for rows in range(PERMUTATIONS, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - jaccard**rows) ** bands >= _RECALL:
            return bands, rows
    return PERMUTATIONS, 1


def _equal_in_band(in_band: ExternalSort, most: int, with_first: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields pairs of documents that are equal in a band, in any order; see NearPairs.pairs.

    most: with how many of those that follow in its group each document is compared.
    """
    # Where a band is searched whole, a group has fewer documents than this, and otherwise `most` is less.
    lookahead = math.isqrt(2 * _PAIRS_OF_BAND) + 2
    rest = np.zeros((0, 3), np.uint64)
    group, first_of_group = None, np.uint64(0)  # the key of the row before, and the first document that has it
    for block, is_last in _slices(in_band):
        rows = np.concatenate([rest, block])
        count = len(rows) if is_last else max(len(rows) - lookahead, 0)
        starts = np.flatnonzero(_is_first(rows))
        ends = np.append(starts[1:], len(rows))
        sizes = ends - starts
        later = np.minimum(np.repeat(ends, sizes) - 1 - np.arange(len(rows)), most)[:count]
        first = np.repeat(np.arange(count), later)
        second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
        yield rows[first, 2], rows[second, 2]
        if with_first and count:
            firsts = rows[starts, 2]
            if group == rows[0, 0]:
                firsts[0] = first_of_group
            of_each = np.repeat(firsts, sizes)
            others = np.flatnonzero(of_each[:count] != rows[:count, 2])
            yield of_each[others], rows[others, 2]
            group, first_of_group = rows[count - 1, 0], of_each[count - 1]
        rest = rows[count:]


def _most_compared(in_band: ExternalSort) -> int:
    """Returns with how many of the documents that follow in its group each document of a band is compared."""
    num_pairs = num_with_later = size = 0
    group = None
    for rows in in_band.blocks():
        starts = np.flatnonzero(_is_first(rows))
        before = np.zeros(len(starts), np.int64)  # documents of a group in earlier blocks
        before[0] = size if group == rows[0, 0] else 0
        whole = before + np.diff(np.append(starts, len(rows)))
        num_pairs += int((whole * (whole - 1) // 2 - before * (before - 1) // 2).sum())
        num_with_later += int((whole - 1 - np.maximum(before - 1, 0)).sum())
        group, size = rows[-1, 0], int(whole[-1])
    if num_pairs <= _PAIRS_OF_BAND:
        return _PAIRS_OF_BAND
    return max(_PAIRS_OF_BAND // num_with_later, _LEAST_COMPARED)


def _is_first(rows: np.ndarray) -> np.ndarray:
    """bool [n]: whether a row has another key than the one before it."""
    return np.concatenate([[True], rows[1:, 0] != rows[:-1, 0]])


def _slices(in_band: ExternalSort) -> Iterator[tuple[np.ndarray, bool]]:
    """Yields the rows of a band in order, up to _SLICE at a time, and whether they are the last ones."""
    before = None
    for block in in_band.blocks():
        for start in range(0, len(block), _SLICE):
            if before is not None:
                yield before, False
            before = block[start : start + _SLICE]
    if before is not None:
        yield before, True


def _jaccard(pairs: np.ndarray, sets: list[np.ndarray]) -> np.ndarray:
    """float64 [P]: the similarity of each of `pairs`, int64 [P, 2], indices of `sets`, each uint32 [n], ascending."""
    from scipy.sparse import csr_array

    sizes = np.array([len(members) for members in sets])
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    members = np.concatenate(sets).astype(np.int64)
    table = csr_array((np.ones(len(members), np.int8), members, bounds), shape=(len(sets), 1 << 32))
    first, second = pairs.T
    shared = np.diff(table[first].multiply(table[second]).indptr)
    return shared / (sizes[first] + sizes[second] - shared)
