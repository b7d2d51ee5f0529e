"""Where documents are cut into windows, for each value of WindowSpec.documents, with random access.

Every token is in exactly one window of an epoch. If a seed is given, "join", "pack" and "split" cut the documents anew
in every epoch. Otherwise a position's place in its window would be the same for the whole run, and an objective that
predicts only a part of a window, such as the end, would never predict the rest of the text.
"""

import abc
import functools
from typing import NamedTuple

import numpy as np

from contract.rng import GOLDEN, mix64, seed_bits
from contract.windows import WindowSpec
from data.windows.bin_packing import pack_documents
from data.windows.documents import Documents
from data.windows.eligible import sizes_of
from data.windows.epoch_orders import begins_of, lengths_of
from files.mapped_arrays import blocks, sums


class Slices(NamedTuple):
    """n slices of a token store. Windows consist of slices, each of a single document."""

    starts: np.ndarray  # int64 [n], the slice's first token in the store
    lengths: np.ndarray  # int64 [n], at least 1
    windows: np.ndarray  # int64 [n], non-decreasing: the window that the slice belongs to
    begins: np.ndarray  # bool [n], whether the slice begins an example; if False, it continues the one before
    documents: np.ndarray  # int64 [n], the document that the slice is of, an index into the documents


class Cut(abc.ABC):
    """The windows of documents that are eligible for a spec, numbered from 0 in every epoch. Thread-safe."""

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        self.documents = documents
        self.spec = spec
        self.seed = seed

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of windows in an epoch, the same in every epoch."""

    @abc.abstractmethod
    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        """The slices of windows `indices`, int64 [w], of `epochs`, int64 [w], in this order.

        Slices.windows indexes `indices`.
        """

    @abc.abstractmethod
    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first window with text of each of `documents`, int64 [n], and the number of such windows, int64 [n].

        The windows of a document are adjacent. Only for cuts without a seed.
        """

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """int64 [D]: where each document ends in the concatenated documents."""
        return self.documents.ends(self.spec.eos)

    def lengths_of(self, documents: np.ndarray) -> np.ndarray:
        """The number of tokens of each of `documents`, int64 [n]."""
        return lengths_of(self.ends, documents)

    def longest_document(self) -> int:
        """The number of tokens of the longest document."""
        of_blocks = (self.lengths_of(np.arange(block.start, block.stop)) for block in blocks(len(self.ends)))
        return max(int(lengths.max()) for lengths in of_blocks)

    def in_store(self, documents: np.ndarray) -> np.ndarray:
        """The first token in the store of each of `documents`, int64 [n]."""
        return self.documents.store.offsets[self.documents.index[documents]]


class JoinedCut(Cut):
    """ "join" and "pack": the concatenated documents, closed to a ring, are cut into windows of raw_length tokens.

    An epoch has its own order of the documents and its own place on the ring where the first window begins. Its last
    window is shorter if raw_length does not divide the tokens.
    """

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        super().__init__(documents, spec, seed)
        self._orders = documents.epoch_orders(spec.eos)

    def __len__(self) -> int:
        return -(-int(self.ends[-1]) // self.spec.raw_length)

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        distinct = np.unique(epochs)
        if len(distinct) == 1:
            return self._slices(int(distinct[0]), indices)
        parts = []
        for epoch in distinct.tolist():
            chosen = np.flatnonzero(epochs == epoch)
            slices = self._slices(epoch, indices[chosen])
            parts.append(slices._replace(windows=chosen[slices.windows]))
        return in_order_of_windows(parts)

    def _slices(self, epoch: int, indices: np.ndarray) -> Slices:
        order, ends, ring_begin = self._ring(epoch)
        num_documents, num_tokens = len(ends), ends[-1]
        begin = ring_begin + indices * self.spec.raw_length
        end = np.minimum(begin + self.spec.raw_length, ring_begin + num_tokens)
        # Documents on the second lap of the ring have the numbers num_documents, num_documents + 1, ...
        first, last = self._document_at(ends, begin), self._document_at(ends, end - 1)
        counts = last - first + 1
        windows = np.repeat(np.arange(len(indices)), counts)
        nth = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        lap, document = np.divmod(first[windows] + nth, num_documents)
        document_begin = begins_of(ends, document) + lap * num_tokens
        begin = np.maximum(begin[windows], document_begin)
        lengths = np.minimum(end[windows], ends[document] + lap * num_tokens) - begin
        document_in_order = document if order is None else order[document]
        starts = self.in_store(document_in_order) + (begin - document_begin)
        begins = np.ones(len(windows), bool) if self.spec.documents == "pack" else nth == 0
        return Slices(starts, lengths, windows, begins, document_in_order)

    def _ring(self, epoch: int) -> tuple[np.ndarray | None, np.ndarray, int]:
        """The order of the documents, int64 [D]; where each ends, int64 [D]; and where the first window begins.

        The order is None where it is that of the documents.
        """
        if self.seed is None:
            return None, self.ends, 0
        order, ends = self._orders.of(self.seed, epoch)
        place = seed_bits(self.seed, f"cut {self.spec.name} {self.spec.raw_length} {epoch}")
        return order, ends, place % int(ends[-1])

    @staticmethod
    def _document_at(ends: np.ndarray, positions: np.ndarray) -> np.ndarray:
        lap, position = np.divmod(positions, ends[-1])
        return np.searchsorted(ends, position, side="right") + lap * len(ends)

    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = begins_of(self.ends, documents) // self.spec.raw_length
        return first, (self.ends[documents] - 1) // self.spec.raw_length - first + 1


class SplitCut(Cut):
    """ "split": each document is cut by itself, into as few windows of at most raw_length tokens as possible.

    An epoch has its own length of each document's first window. It is drawn uniformly from the lengths that do not need
    a further window, so the cuts of a document whose length is a multiple of raw_length do not move.
    """

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        super().__init__(documents, spec, seed)
        ends = self.ends

        def windows_of(block: slice) -> np.ndarray:
            return -(-lengths_of(ends, np.arange(block.start, block.stop)) // spec.raw_length)

        self._window_ends = sums(windows_of, len(documents), documents.store.folder)

    def __len__(self) -> int:
        return int(self._window_ends[-1])

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        raw_length = self.spec.raw_length
        document = np.searchsorted(self._window_ends, indices, side="right")
        first, count = self.windows_of(document)
        length = self.lengths_of(document)
        first_length = np.minimum(length, raw_length)
        if self.seed is not None:
            shorter_by = np.where(count > 1, count * raw_length - length, 0)  # at most
            keys = mix64(np.uint64(seed_bits(self.seed, f"cut {self.spec.name}")) + GOLDEN * epochs.astype(np.uint64))
            draws = mix64(keys ^ mix64(GOLDEN * document.astype(np.uint64)))
            first_length = first_length - (draws % (shorter_by + 1).astype(np.uint64)).astype(np.int64)
        end = np.minimum(first_length + (indices - first) * raw_length, length)
        begin = np.where(indices == first, 0, first_length + (indices - first - 1) * raw_length)
        windows = np.arange(len(indices))
        starts = self.in_store(document) + begin
        return Slices(starts, end - begin, windows, np.ones(len(indices), bool), document)

    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = begins_of(self._window_ends, documents)
        return first, self._window_ends[documents] - first


class WholeCut(Cut):
    """ "whole": a window is as many whole documents as fit a row, the same documents in every epoch."""

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        super().__init__(documents, spec, seed)
        self._row_documents, self._row_ends = _pack(documents, spec)

    def __len__(self) -> int:
        return len(self._row_ends)

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        first = begins_of(self._row_ends, indices)
        counts = self._row_ends[indices] - first
        windows = np.repeat(np.arange(len(indices)), counts)
        nth = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
        document = self._row_documents[first[windows] + nth]
        begins = np.ones(len(windows), bool)
        return Slices(self.in_store(document), self.lengths_of(document), windows, begins, document)

    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        row = np.empty(len(self._row_documents), np.int64)
        row[self._row_documents] = np.searchsorted(self._row_ends, np.arange(len(row)), side="right")
        return row[documents], np.ones(len(documents), np.int64)


CUTS: dict[str, type[Cut]] = {"join": JoinedCut, "pack": JoinedCut, "split": SplitCut, "whole": WholeCut}


def in_order_of_windows(parts: list[Slices]) -> Slices:
    """The slices of all parts, in the order of their windows."""
    joined = Slices(*map(np.concatenate, zip(*parts, strict=True)))
    in_order = np.argsort(joined.windows, kind="stable")
    return Slices(*(column[in_order] for column in joined))


@functools.lru_cache(maxsize=4)  # the two sides of a split: an evaluation must not pack its side again
def _pack(documents: Documents, spec: WindowSpec) -> tuple[np.ndarray, np.ndarray]:
    capacity = np.array([capacity.positions for capacity in spec.capacities])
    return pack_documents(sizes_of(documents, spec), len(documents), capacity, documents.store.folder)
