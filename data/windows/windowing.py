"""Windows of documents, with random access: where each value of WindowSpec.documents cuts, and their tokens.

Every token is in exactly one window of an epoch. If a seed is given, "join", "pack" and "split" cut the documents anew
in every epoch. Otherwise a position's place in its window would be the same for the whole run, and an objective that
predicts only a part of a window, such as the end, would never predict the rest of the text.
"""

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.rng import GOLDEN, argsort, mix64, parts, seed_bits
from contract.windows import BatchSpec, WindowSpec
from data.store.ranges import in_memory
from data.windows.document_filter import classes_of, eligible, sizes_of
from data.windows.documents import Documents, begins_of, members

# Keeps the draws of other windows independent of the objective's draws, which use the same keys.
_OTHERS = np.uint64(seed_bits(0, "others"))

_ONE_AT_A_TIME = threading.Lock()  # several reader threads need the same order at the same time

_BLOCK = 1 << 13  # documents packed at a time: enough to fill rows, few enough to compare each size with every row


class Slices(NamedTuple):
    """n slices of a token store. Windows consist of slices, each of a single document."""

    starts: np.ndarray  # int64 [n], the slice's first token in the store
    lengths: np.ndarray  # int64 [n], at least 1
    windows: np.ndarray  # int64 [n], non-decreasing: the window that the slice belongs to
    begins: np.ndarray  # bool [n], whether the slice begins an example; if False, it continues the one before
    documents: np.ndarray  # int64 [n], the document that the slice is of, an index into the documents


class WindowReader(abc.ABC):
    """All windows of a spec over some documents, numbered from 0 in every epoch. Every token is in exactly one window.

    Reading a window takes two binary searches, for any number of documents. A reader is thread-safe. `make_reader`
    makes the one for WindowSpec.documents.

    Attributes:
      spec: the spec.
      documents: the documents that are eligible for the spec (data/windows/document_filter.py).
      seed: any int. Every epoch then cuts the documents elsewhere; None: all epochs are equal.
      tokens: the tokens of the documents' store.
      num_tokens: the number of tokens of the documents.
    """

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        self.spec, self.documents, self.seed = spec, documents, seed
        self.tokens, self.num_tokens = documents.store.tokens, documents.num_tokens(spec.eos)

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

        The windows of a document are adjacent. Only for readers without a seed, and for "split".
        """

    @property
    def longest(self) -> int:
        """The length of the longest possible example."""
        return self.spec.raw_length

    @property
    def mean_length(self) -> float:
        """The mean number of tokens in a window."""
        return self.num_tokens / len(self)

    @property
    def mean_documents(self) -> float:
        """The mean number of documents in a window of whole documents; 1 for other windows."""
        return 1.0

    @functools.cached_property
    def classes(self) -> np.ndarray:
        """int32 [D]: the class of each document among those of the spec."""
        return classes_of(self.documents, self.spec)

    def in_store(self, documents: np.ndarray) -> np.ndarray:
        """The first token in the store of each of `documents`, int64 [n]."""
        return self.documents.store.offsets[self.documents.index[documents]]

    def others(self, documents: np.ndarray, keys: np.ndarray) -> Slices:
        """For each of `documents`, int64 [n], a window of another document, drawn by its key in `keys`, uint64 [n].

        All windows of all other documents are equally likely, so their lengths have the distribution of the reader's
        windows. Deviation: BERT draws the document first, which favors windows of short documents.

        The spec must request the column "others".
        """
        first, count = self.windows_of(documents)
        draws = mix64(keys ^ _OTHERS)
        drawn = (draws % (len(self) - count).astype(np.uint64)).astype(np.int64)
        # Any function of the key is as good as an epoch: the window is cut where some epoch cuts it.
        epochs = (mix64(draws) >> np.uint64(1)).astype(np.int64)
        return self.slices(epochs, drawn + np.where(drawn >= first, count, 0))


class JoinedReader(WindowReader):
    """ "join" and "pack": the concatenated documents, closed to a ring, are cut into windows of raw_length tokens.

    An epoch has its own order of the documents and its own place on the ring where the first window begins. The last
    window of an epoch is shorter if raw_length does not divide the tokens.
    """

    def __len__(self) -> int:
        return -(-self.num_tokens // self.spec.raw_length)

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        return slices_of_groups(epochs, lambda epoch, chosen: self._slices(epoch, indices[chosen]))

    def _slices(self, epoch: int, indices: np.ndarray) -> Slices:
        order, ends, ring_begin = self._ring(epoch)
        num_documents, num_tokens = len(ends), self.num_tokens
        begin = ring_begin + indices * self.spec.raw_length
        end = np.minimum(begin + self.spec.raw_length, ring_begin + num_tokens)
        # Documents on the second lap of the ring have the numbers num_documents, num_documents + 1, ...
        first, last = self._document_at(ends, begin), self._document_at(ends, end - 1)
        windows, nth = members(last - first + 1)
        lap, document = np.divmod(first[windows] + nth, num_documents)
        document_begin = begins_of(ends, document) + lap * num_tokens
        begin = np.maximum(begin[windows], document_begin)
        lengths = np.minimum(end[windows], ends[document] + lap * num_tokens) - begin
        document_in_order = document if order is None else order[document].astype(np.int64)
        starts = self.in_store(document_in_order) + (begin - document_begin)
        begins = np.ones(len(windows), bool) if self.spec.documents == "pack" else nth == 0
        return Slices(starts, lengths, windows, begins, document_in_order)

    def _ring(self, epoch: int) -> tuple[np.ndarray | None, np.ndarray, int]:
        """The order of the documents, int [D]; where each ends, int64 [D]; and where the first window begins.

        The order is None where it is that of the documents.
        """
        if self.seed is None:
            return None, self.documents.ends(self.spec.eos), 0
        with _ONE_AT_A_TIME:
            order, ends = _epoch_order(self.documents, self.spec.eos, self.seed, epoch)
        place = seed_bits(self.seed, f"cut {self.spec.name} {self.spec.raw_length} {epoch}")
        return order, ends, place % self.num_tokens

    def _document_at(self, ends: np.ndarray, positions: np.ndarray) -> np.ndarray:
        lap, position = np.divmod(positions, self.num_tokens)
        return np.searchsorted(ends, position, side="right") + lap * len(ends)

    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = self.documents.ends(self.spec.eos)
        first = begins_of(ends, documents) // self.spec.raw_length
        return first, (ends[documents] - 1) // self.spec.raw_length - first + 1


class SplitReader(WindowReader):
    """ "split": each document is cut by itself, into as few windows of at most raw_length tokens as possible.

    An epoch has its own length of each document's first window, drawn uniformly from the lengths that do not need a
    further window, so the cuts of a document whose length is a multiple of raw_length do not move.
    """

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        super().__init__(documents, spec, seed)
        self._window_ends = np.cumsum(-(-documents.lengths(spec.eos) // spec.raw_length))

    def __len__(self) -> int:
        return int(self._window_ends[-1])

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        raw_length = self.spec.raw_length
        document = np.searchsorted(self._window_ends, indices, side="right")
        first, count = self.windows_of(document)
        length = self.documents.lengths(self.spec.eos, document)
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


class WholeReader(WindowReader):
    """ "whole": a window is as many whole documents as fit a row, the same documents in every epoch."""

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None):
        super().__init__(documents, spec, seed)
        self._row_documents, self._row_ends = _pack(documents, spec)

    def __len__(self) -> int:
        return len(self._row_ends)

    @property
    def longest(self) -> int:
        return int(self.documents.lengths(self.spec.eos).max())

    @property
    def mean_documents(self) -> float:
        return len(self.documents) / len(self)

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        first = begins_of(self._row_ends, indices)
        windows, nth = members(self._row_ends[indices] - first)
        document = self._row_documents[first[windows] + nth]
        lengths = self.documents.lengths(self.spec.eos, document)
        return Slices(self.in_store(document), lengths, windows, np.ones(len(windows), bool), document)

    def windows_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        row = np.empty(len(self._row_documents), np.int64)
        row[self._row_documents] = np.searchsorted(self._row_ends, np.arange(len(row)), side="right")
        return row[documents], np.ones(len(documents), np.int64)


def make_reader(documents: Documents, spec: WindowSpec, seed: int | None = None) -> WindowReader:
    """Returns the reader of the windows of the documents that are eligible for `spec`.

    seed: any int. Every epoch then cuts the documents elsewhere; None: all epochs are equal.

    Raises ConfigError where the documents do not fill one window of "join" or "pack", and as `eligible` does.
    """
    documents, _ = eligible(documents, spec)
    if "others" in spec.extra_columns:
        _check_others(documents, spec)
    if spec.documents == "split":
        return SplitReader(documents, spec, seed)
    if spec.documents == "whole":
        return WholeReader(documents, spec, seed)
    reader = JoinedReader(documents, spec, seed)
    if reader.num_tokens < spec.raw_length:
        raise ConfigError(
            f"the {documents.label} documents have {reader.num_tokens} tokens, fewer than one window of "
            f"{spec.raw_length} for {spec.name!r}: set a smaller data.inputs_length, a data.path with more "
            "text, or another data.heldout_fraction"
        )
    return reader


def _check_others(documents: Documents, spec: WindowSpec) -> None:
    if spec.documents != "split":
        raise ValueError(f"{spec.name!r} requests 'others', which needs documents='split', not {spec.documents!r}")
    if len(documents) < 2:
        raise ConfigError(
            f"{spec.name!r} pairs texts of different documents, and there is one {documents.label} document: add "
            "documents to data.path, or set data.document_per='paragraph' or another data.heldout_fraction"
        )


def slices_of_groups(groups: np.ndarray, slices_of: Callable[[int, np.ndarray], Slices]) -> Slices:
    """The slices of windows in groups, int [w], in the order of the windows.

    slices_of: a group and its windows, int64 [n] -> their slices, whose Slices.windows indexes these windows.
    """
    parts = []
    for group in np.unique(groups).tolist():
        chosen = np.flatnonzero(groups == group)
        slices = slices_of(group, chosen)
        parts.append(slices._replace(windows=chosen[slices.windows]))
    if len(parts) == 1:
        return parts[0]
    joined = Slices(*map(np.concatenate, zip(*parts, strict=True)))
    in_order = np.argsort(joined.windows, kind="stable")
    return Slices(*(column[in_order] for column in joined))


@functools.lru_cache(maxsize=4)  # the two sides of a split: an evaluation must not pack its side again
def _pack(documents: Documents, spec: WindowSpec) -> tuple[np.ndarray, np.ndarray]:
    return pack_documents(sizes_of(documents, spec), np.array([capacity.positions for capacity in spec.capacities]))


@functools.lru_cache(maxsize=32)  # readers share the orders of the epochs that they are in
def _epoch_order(documents: Documents, eos: bool, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random order of documents, as argsort, and where each ends in that order, int64 [D]."""
    key, n = np.uint64(seed_bits(seed, f"documents {epoch}")), len(documents)
    order = argsort(lambda numbers: mix64(key + GOLDEN * numbers.astype(np.uint64)), n)
    ends = np.empty(n, np.int64)
    for numbers in parts(n):
        ends[numbers] = documents.lengths(eos, order[numbers])
    return order, np.cumsum(ends, out=ends)


def windows_per_epoch(documents: Documents, spec: BatchSpec) -> int:
    """Returns how many windows are one pass over `documents`; with data.documents="whole" windows are rows.

    The denoisers of a mixture have a common epoch where their windows are alike: they have the same length, the same
    document handling and the same eligible documents. Each denoiser draws from all windows in an order of its own. As
    many draws as there are windows, over all denoisers, then read every window once on average.

    Raises ConfigError where windows are not alike: the same text would be read more often by one denoiser than by
    another, so the number of passes over the text depends on the denoiser. Raises as `make_reader` does.
    """
    drawn = _drawn_specs(spec)
    alike = {dataclasses.replace(windows, name="", weight=0.0, ramp=None) for windows in drawn}
    if len(alike) > 1:
        lengths = ", ".join(dict.fromkeys(f"{windows.name} {windows.raw_length}" for windows in drawn[:8]))
        raise ConfigError(
            f"train.epochs needs windows of one kind, and the windows of this config differ ({lengths} raw tokens): "
            "set train.steps instead, and train.epochs=0"
        )
    return len(make_reader(documents, drawn[0]))


def _drawn_specs(spec: BatchSpec) -> list[WindowSpec]:
    """The specs that windows are drawn from: one for each denoiser, or for each denoiser and length of a row plan."""
    if spec.plan is None:
        return [windows for windows in spec.windows if windows.weight > 0 or windows.final_weight > 0]
    return [
        dataclasses.replace(windows, raw_length=length)
        for denoiser_id, windows in enumerate(spec.windows)
        for length in spec.plan.lengths_of(denoiser_id).tolist()
    ]


def gather(stores: Sequence[Any], slices: Slices, width: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of `slices`: int32 [E, width], padded with pad_id, and lengths, int32 [E].

    stores: the tokens of the store that each slice is of, which data/store/ranges.py may have to read.
    """
    ends, example = np.cumsum(slices.lengths), np.cumsum(slices.begins) - 1
    begins = ends - slices.lengths
    lengths = np.add.reduceat(slices.lengths, np.flatnonzero(slices.begins)).astype(np.int32)
    padded = np.full((len(lengths), width), pad_id, np.int32)
    places = example * width + begins - begins[slices.begins][example]
    flat, starts, sizes = padded.ravel(), slices.starts, slices.lengths
    if set(map(type, stores)) != {np.ndarray}:
        stores, starts = in_memory(stores, starts, sizes)
    for tokens, start, size, place in zip(stores, starts.tolist(), sizes.tolist(), places.tolist(), strict=True):
        flat[place : place + size] = tokens[start : start + size]
    return padded, lengths


def pack_documents(sizes: np.ndarray, capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packs whole documents into few rows. The result depends on the sizes and the capacity alone.

    Best-fit decreasing, in one pass over the distinct sizes, as in longest-pack-first histogram-packing (Krell et al.
    2021, arXiv:2107.02027). Deviation: a size is a vector, the positions in each stack.

    Args:
      sizes: int64 [D, S], 1..capacity: the positions that each document takes in each stack.
      capacity: int64 [S], the positions of a row in each stack.

    Returns the documents row by row, int64 [D], and where each row ends in that array, int64 [rows]. The rows are in a
    random order, because best-fit decreasing puts the longest documents into the first rows.
    """
    row, num_rows = np.empty(len(sizes), np.int64), 0
    for begin in range(0, len(sizes), _BLOCK):
        row_in_block = _pack_block(sizes[begin : begin + _BLOCK], capacity)
        row[begin : begin + _BLOCK] = num_rows + row_in_block
        num_rows += int(row_in_block.max()) + 1
    places = np.empty(num_rows, np.int64)
    places[argsort(lambda rows: mix64(rows.astype(np.uint64)), num_rows)] = np.arange(num_rows)
    row = places[row]
    return np.argsort(row, kind="stable"), np.cumsum(np.bincount(row, minlength=num_rows))


def _pack_block(sizes: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """The row of each document, int64 [D], with rows numbered from 0."""
    row = np.empty(len(sizes), np.int64)
    distinct, size_id, counts = np.unique(sizes, axis=0, return_inverse=True, return_counts=True)
    documents_of_size = np.split(np.argsort(size_id.ravel(), kind="stable"), np.cumsum(counts)[:-1])
    free, num_rows = np.repeat(capacity[:, None], len(sizes), axis=1), 0  # [S, rows], the free positions of each row
    for k in np.argsort(-(distinct / capacity).max(axis=1), kind="stable"):
        size, documents = distinct[k][:, None], documents_of_size[k]
        free_in_open = free[:, :num_rows]
        fitting = np.flatnonzero((free_in_open >= size).all(axis=0))
        free_after = free_in_open[:, fitting] - size
        tightest = np.argsort((free_after / capacity[:, None]).sum(axis=0), kind="stable")[: len(documents)]
        copies = 1 + (free_after[:, tightest] // size).min(axis=0)
        rows = np.repeat(fitting[tightest], copies)[: len(documents)]
        remaining = len(documents) - len(rows)
        rows = np.concatenate([rows, num_rows + np.arange(remaining) // int((capacity // distinct[k]).min())])
        row[documents] = rows
        np.subtract.at(free, (slice(None), rows), size)
        num_rows = max(num_rows, int(rows[-1]) + 1)
    return row
