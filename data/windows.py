"""Windows of fixed length over documents, read at random: what one WindowSpec asks for."""

import functools
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from contract.windows import WindowSpec
from data.bin_packing import plan_rows
from data.documents import Documents
from data.eligible import eligible, sizes_of
from data.order import permute

_LABELLED = np.uint64(seed_bits(0, "labelled"))
_OTHERS = np.uint64(seed_bits(0, "others"))  # keeps these draws apart from what the objective draws by the same keys


class Segments(NamedTuple):
    """Runs of the token store, in order, that make up the windows asked for."""

    starts: np.ndarray  # int64 [n], the run's first token in the store
    lengths: np.ndarray  # int64 [n], at least 1
    windows: np.ndarray  # int64 [n], non-decreasing: which of the windows asked for it belongs to
    begins: np.ndarray  # bool [n], whether it begins an example; the others carry on the example before
    documents: np.ndarray  # int64 [n], the document it is of, as Documents numbers them


class WindowReader:
    """All windows of a spec over some documents, numbered 0..len-1; every token is in exactly one of them.

    A window costs two binary searches, however many documents there are. Safe to use from any number of threads.

    Attributes: spec; documents, those that the spec can use (data/eligible.py); tokens, of their store; longest, tokens
    that an example can have.
    """

    def __init__(self, documents: Documents, spec: WindowSpec):
        """Raises ConfigError where the documents do not fill one window ("join" and "pack" take none that is shorter),
        and as `usable` does."""
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
            self._in_rows, self._row_ends = _plan(documents, spec)
            self._len = len(self._row_ends)
        elif spec.documents == "split":
            counts = -(-np.diff(self._ends, prepend=0) // spec.raw_length)
            self._window_ends = np.cumsum(counts)
            self._len = int(self._window_ends[-1])
        else:
            self._len = -(-num_tokens // spec.raw_length)
            if num_tokens < spec.raw_length:
                raise ConfigError(
                    f"the {documents.label} documents hold {num_tokens} tokens, fewer than one window of "
                    f"{spec.raw_length} for {spec.name!r}: set a smaller data.inputs_length, a data.path with more "
                    "text, or another data.heldout_fraction"
                )

    def __len__(self) -> int:
        return self._len

    def segments(self, indices: np.ndarray) -> Segments:
        """The runs that windows `indices`, int64 [w], are made of, window by window."""
        if "labels" in self.spec.extra_columns:
            # Neighbours are of one document and so of one class; held-out batches, which are not shuffled, would judge
            # by the first few documents.
            indices = permute(indices, np.full(len(indices), self._len), np.full(len(indices), _LABELLED))
        if self.spec.documents == "split":
            return self._split_segments(indices)
        if self.spec.documents == "whole":
            return self._whole_segments(indices)
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
        return Segments(starts, lengths, windows, begins, document)

    def _split_segments(self, indices: np.ndarray) -> Segments:
        document = np.searchsorted(self._window_ends, indices, side="right")
        length = self._ends[document] - self._begin(document)
        offset = (indices - self._windows_before(document)) * self.spec.raw_length
        lengths = np.minimum(length - offset, self.spec.raw_length)
        windows = np.arange(len(indices))
        return Segments(self._in_store(document) + offset, lengths, windows, np.ones(len(indices), bool), document)

    def _whole_segments(self, indices: np.ndarray) -> Segments:
        first = np.where(indices > 0, self._row_ends[indices - 1], 0)
        counts = self._row_ends[indices] - first
        windows = np.repeat(np.arange(len(indices)), counts)
        nth = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        document = self._in_rows[first[windows] + nth]
        lengths = self._ends[document] - self._begin(document)
        return Segments(self._in_store(document), lengths, windows, np.ones(len(windows), bool), document)

    def others(self, documents: np.ndarray, keys: np.ndarray) -> Segments:
        """A window of another document for each of `documents`, int64 [n], drawn by its key, uint64 [n].

        All windows of all other documents are equally likely, so that it is like the reader's own in everything but
        where it is from. (BERT draws the document first: windows of short ones would come up more often than here.)
        Of a spec that reads them; the constructor has seen to it that there are others.
        """
        first, end = self._windows_before(documents), self._window_ends[documents]
        drawn = (mix64(keys ^ _OTHERS) % (self._len - (end - first)).astype(np.uint64)).astype(np.int64)
        return self._split_segments(drawn + np.where(drawn >= first, end - first, 0))

    def _check_others(self) -> None:
        if self.spec.documents != "split":
            raise ValueError(f"{self.spec.name!r} reads others, and its documents={self.spec.documents!r}, not 'split'")
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

    def read(self, index: int) -> list[np.ndarray]:
        """The examples that one window gives, each int32 [length]."""
        padded, lengths = gather(self.tokens, self.segments(np.array([index])), self.longest, 0)
        return [tokens[:length] for tokens, length in zip(padded, lengths, strict=True)]


@functools.lru_cache(maxsize=4)  # both sides of a run's split: an evaluation must not plan them again
def _plan(documents: Documents, spec: WindowSpec) -> tuple[np.ndarray, np.ndarray]:
    documents, _ = eligible(documents, spec)
    return plan_rows(sizes_of(documents, spec), np.array([room.positions for room in spec.capacities]))


def gather(tokens: np.ndarray, segments: Segments, width: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads E examples out of a store's `tokens`: int32 [E, width], padded by pad_id, and their lengths, int32 [E]."""
    ends = np.cumsum(segments.lengths)
    index = np.ones(int(ends[-1]), np.int64)  # steps from token to token; their sum is where each token is
    index[0] = segments.starts[0]
    index[ends[:-1]] += segments.starts[1:] - segments.starts[:-1] - segments.lengths[:-1]
    np.cumsum(index, out=index)
    lengths = np.add.reduceat(segments.lengths, np.flatnonzero(segments.begins)).astype(np.int32)
    padded = np.full((len(lengths), width), pad_id, np.int32)
    padded[np.arange(width) < lengths[:, None]] = tokens.take(index)
    return padded, lengths
