"""The windows of a WindowSpec over documents, with random access."""

import functools
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from contract.windows import WindowSpec
from data.bin_packing import pack_documents
from data.documents import Documents
from data.eligible import eligible, sizes_of
from data.order import permute

_LABELLED = np.uint64(seed_bits(0, "labelled"))
# Keeps the draws of other windows independent of the objective's draws, which use the same keys.
_OTHERS = np.uint64(seed_bits(0, "others"))


class Slices(NamedTuple):
    """n slices of a token store. Windows consist of slices, each of a single document."""

    starts: np.ndarray  # int64 [n], the slice's first token in the store
    lengths: np.ndarray  # int64 [n], at least 1
    windows: np.ndarray  # int64 [n], non-decreasing: the window that the slice belongs to
    begins: np.ndarray  # bool [n], whether the slice begins an example; if False, it continues the one before
    documents: np.ndarray  # int64 [n], the document that the slice is of, an index into the reader's documents


class WindowReader:
    """All windows of a spec over some documents, numbered from 0. Every token is in exactly one window.

    Reading a window takes two binary searches, for any number of documents. A reader is thread-safe.

    Attributes:
      spec: the spec.
      documents: the documents that are eligible for the spec (data/eligible.py).
      tokens: the tokens of the documents' store.
      longest: the length of the longest possible example.
    """

    def __init__(self, documents: Documents, spec: WindowSpec):
        """Raises ConfigError where the documents do not fill one window of "join" or "pack", and as `eligible` does."""
        self.spec = spec
        self.documents, _ = eligible(documents, spec)
        self.tokens = documents.store.tokens
        self.longest = spec.raw_length
        self._ends = self.documents.ends(spec.eos)
        num_tokens = int(self._ends[-1])
        if "others" in spec.extra_columns:
            self._check_others()
        if spec.documents == "whole":
            self.longest = int(np.diff(self._ends, prepend=0).max())
            self._row_documents, self._row_ends = _pack(documents, spec)
            self._len = len(self._row_ends)
        elif spec.documents == "split":
            counts = -(-np.diff(self._ends, prepend=0) // spec.raw_length)
            self._window_ends = np.cumsum(counts)
            self._len = int(self._window_ends[-1])
        else:
            self._len = -(-num_tokens // spec.raw_length)
            if num_tokens < spec.raw_length:
                raise ConfigError(
                    f"the {documents.label} documents have {num_tokens} tokens, fewer than one window of "
                    f"{spec.raw_length} for {spec.name!r}: set a smaller data.inputs_length, a data.path with more "
                    "text, or another data.heldout_fraction"
                )

    def __len__(self) -> int:
        return self._len

    def slices(self, indices: np.ndarray) -> Slices:
        """The slices of windows `indices`, int64 [w], in the windows' order; Slices.windows indexes `indices`."""
        if "labels" in self.spec.extra_columns:
            # Adjacent windows are of one document and so of one class. Held-out batches are not shuffled: without this
            # permutation an evaluation would read only the first few documents.
            indices = permute(indices, np.full(len(indices), self._len), np.full(len(indices), _LABELLED))
        if self.spec.documents == "split":
            return self._split_slices(indices)
        if self.spec.documents == "whole":
            return self._whole_slices(indices)
        begin = indices * self.spec.raw_length
        end = np.minimum(begin + self.spec.raw_length, self._ends[-1])
        first = np.searchsorted(self._ends, begin, side="right")
        counts = np.searchsorted(self._ends, end, side="left") - first + 1
        windows = np.repeat(np.arange(len(indices)), counts)
        nth = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        document = first[windows] + nth
        document_begin = self._begin(document)
        begin = np.maximum(begin[windows], document_begin)
        lengths = np.minimum(end[windows], self._ends[document]) - begin
        starts = self._in_store(document) + (begin - document_begin)
        begins = np.ones(len(windows), bool) if self.spec.documents == "pack" else nth == 0
        return Slices(starts, lengths, windows, begins, document)

    def _split_slices(self, indices: np.ndarray) -> Slices:
        document = np.searchsorted(self._window_ends, indices, side="right")
        length = self._ends[document] - self._begin(document)
        offset = (indices - self._windows_before(document)) * self.spec.raw_length
        lengths = np.minimum(length - offset, self.spec.raw_length)
        windows = np.arange(len(indices))
        return Slices(self._in_store(document) + offset, lengths, windows, np.ones(len(indices), bool), document)

    def _whole_slices(self, indices: np.ndarray) -> Slices:
        first = np.where(indices > 0, self._row_ends[indices - 1], 0)
        counts = self._row_ends[indices] - first
        windows = np.repeat(np.arange(len(indices)), counts)
        nth = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        document = self._row_documents[first[windows] + nth]
        lengths = self._ends[document] - self._begin(document)
        return Slices(self._in_store(document), lengths, windows, np.ones(len(windows), bool), document)

    def others(self, documents: np.ndarray, keys: np.ndarray) -> Slices:
        """For each of `documents`, int64 [n], a window of another document, drawn by its key in `keys`, uint64 [n].

        All windows of all other documents are equally likely, so their lengths have the distribution of the reader's
        windows. Deviation: BERT draws the document first, which favors windows of short documents.

        The spec must request the column "others".
        """
        first, end = self._windows_before(documents), self._window_ends[documents]
        drawn = (mix64(keys ^ _OTHERS) % (self._len - (end - first)).astype(np.uint64)).astype(np.int64)
        return self._split_slices(drawn + np.where(drawn >= first, end - first, 0))

    def _check_others(self) -> None:
        if self.spec.documents != "split":
            raise ValueError(
                f"{self.spec.name!r} requests 'others', which needs documents='split', not {self.spec.documents!r}"
            )
        if len(self.documents) < 2:
            raise ConfigError(
                f"{self.spec.name!r} pairs texts of different documents, and there is one {self.documents.label} "
                "document: add documents to data.path, or set data.document_per='paragraph' or another "
                "data.heldout_fraction"
            )

    def _windows_before(self, document: np.ndarray) -> np.ndarray:
        return np.where(document > 0, self._window_ends[document - 1], 0)

    def _begin(self, document: np.ndarray) -> np.ndarray:
        return np.where(document > 0, self._ends[document - 1], 0)

    def _in_store(self, document: np.ndarray) -> np.ndarray:
        return self.documents.store.offsets[self.documents.index[document]]


@functools.lru_cache(maxsize=4)  # the two sides of a split: an evaluation must not pack its side again
def _pack(documents: Documents, spec: WindowSpec) -> tuple[np.ndarray, np.ndarray]:
    documents, _ = eligible(documents, spec)
    return pack_documents(sizes_of(documents, spec), np.array([capacity.positions for capacity in spec.capacities]))


def gather(tokens: np.ndarray, slices: Slices, width: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of `slices` of a store's `tokens`: int32 [E, width], padded with pad_id, and lengths, int32 [E]."""
    ends = np.cumsum(slices.lengths)
    index = np.ones(int(ends[-1]), np.int64)  # the step from token to token; the sum of the steps is the index
    index[0] = slices.starts[0]
    index[ends[:-1]] += slices.starts[1:] - slices.starts[:-1] - slices.lengths[:-1]
    np.cumsum(index, out=index)
    lengths = np.add.reduceat(slices.lengths, np.flatnonzero(slices.begins)).astype(np.int32)
    padded = np.full((len(lengths), width), pad_id, np.int32)
    padded[np.arange(width) < lengths[:, None]] = tokens.take(index)
    return padded, lengths
