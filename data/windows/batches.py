"""Batches by number: selects the windows of batch n, reads them, and applies the objective's transform. Uses grain."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np

from contract.batch import Batch
from contract.rng import example_keys, quantiles
from contract.windows import BatchSpec, Ramp, Windows
from data.windows.documents import Documents, MixedDocuments
from data.windows.order import Drawn, DrawOrder, PlannedOrder
from data.windows.windowing import Slices, WindowReader, gather, make_reader, slices_of_groups

Transform = Callable[[Windows, int], Batch]

_WINDOWS_AT_ONCE = 1024  # read together if batches are smaller
_COUNTED_AT_ONCE = 1 << 16  # windows, so that the memory for counting is bounded


class WindowCounts(NamedTuple):
    """What some batches are made from, by denoiser. All int64 [number of denoisers]."""

    examples: np.ndarray  # examples, as Windows has them: a window, or each document's piece of it
    raw_tokens: np.ndarray  # tokens of these examples before corruption, without second texts ("others")
    windows: np.ndarray  # windows that were drawn


def batches(
    documents: Documents | MixedDocuments,
    spec: BatchSpec,
    transform: Transform,
    *,
    batch_size: int,
    local_rows: Sequence[int],
    seed: int,
    evenly_over: int = 0,
) -> "Batches":
    """Returns a sequence of training batches without end, of which element n is this process's rows of batch n.

    Element n is a function of the arguments and n alone: window i of the run is in row i // spec.examples_per_row,
    counted over all batches, and data/windows/order.py determines which window that is. So neither the number of
    processes nor the number of threads changes the contents of a row. Each denoiser reads each of its windows once per
    epoch, in a new order, and every epoch cuts the documents elsewhere (data/windows/windowing.py). In planned rows
    this holds for each window length of a denoiser, so the same text may recur at another length. A window is text of
    one corpus; the windows of a row may be of several.

    Args:
      documents: the documents to read, of every corpus that `spec` names.
      spec: the windows of each denoiser, and how many share a row. A denoiser of weight 0 is never drawn.
      transform: windows, number of rows -> batch. Each row must depend on its own windows alone, because `loader`
        transforms several batches at once. Must be thread-safe.
      batch_size: rows of the global batch.
      local_rows: this process's rows of the global batch, ascending; they need not be adjacent.
      seed: any int. It determines the order, the cuts and the examples' keys.
      evenly_over: how many windows the column "quantiles" is evenly spread over; 0: those of a batch.

    Raises ConfigError for invalid weights and where the documents do not fill a window.
    """
    weights: Sequence[float] = [windows.weight for windows in spec.windows]
    ramps: Sequence[Ramp | None] = [None] * len(weights)
    specs, denoiser_ids = list(spec.windows), list(range(len(weights)))
    if spec.plan is not None:
        planned = np.stack([spec.plan.denoiser_ids.ravel(), spec.plan.raw_lengths.ravel()], axis=1)
        distinct, cycle = np.unique(planned, axis=0, return_inverse=True)
        denoiser_ids = distinct[:, 0].tolist()
        specs = [dataclasses.replace(spec.windows[k], raw_length=raw_length) for k, raw_length in distinct.tolist()]
    readers = [make_reader(documents.by_corpus[windows.corpus], windows, seed) for windows in specs]
    lengths = list(map(len, readers))
    if spec.plan is None:
        weights, ramps = example_weights(spec, readers, documents.factors)
        draw = DrawOrder(lengths, weights, seed=seed, ramps=ramps).draw
    else:
        draw = PlannedOrder(lengths, cycle.ravel(), seed=seed).draw
    sizes = {"batch_size": batch_size, "local_rows": local_rows}
    sizes["evenly_over"] = evenly_over or batch_size * spec.examples_per_row
    return Batches(readers, denoiser_ids, draw, spec, transform, seed=seed, weights=weights, ramps=ramps, **sizes)


def example_weights(
    spec: BatchSpec, readers: Sequence[WindowReader], factors: Sequence[float]
) -> tuple[list[float], list[Ramp | None]]:
    """The weights and ramps of the denoisers as shares of the windows, from one reader for each denoiser.

    factors: MixedDocuments.factors.

    If spec.mix_by is "token", the weights of `spec` are shares of the raw tokens: each is divided by the mean length of
    the denoiser's windows, which with "split" and "whole" depends on the documents. If it is "example", a weight of
    whole documents is a share of the documents where there are several corpora, as in T5, which mixes examples before
    it packs them: it is divided by the mean number of documents in a window. In one corpus it is one of the windows.
    """
    sizes = [1.0] * len(readers)
    if spec.mix_by == "token":
        sizes = [reader.mean_length for reader in readers]
    elif len(factors) > 1:
        sizes = [reader.mean_documents for reader in readers]
    weights = [windows.weight * factors[windows.corpus] / n for windows, n in zip(spec.windows, sizes, strict=True)]
    ramps = [
        windows.ramp and windows.ramp._replace(weight=windows.ramp.weight * factors[windows.corpus] / n)
        for windows, n in zip(spec.windows, sizes, strict=True)
    ]
    return weights, ramps


def loader(batches: "Batches", *, start: int, threads: int, prefetch: int) -> Iterator[Batch]:
    """Yields batches `start`, `start` + 1, ..., in that order, made in advance by reader threads.

    Several small batches are made at once, which does not change their contents. NumPy calls are then long relative to
    the Python code between them, and threads wait less for each other.

    Args:
      batches: batches whose transform makes arrays [rows, ...].
      start: the first batch. A run that resumes passes the number of its next batch.
      threads: reader threads; 0 makes batches on demand.
      prefetch: how many batches may be made in advance; of small batches as many by each thread.
    """
    _keep_freed_arrays()
    at_once = max(min(_WINDOWS_AT_ONCE // batches.num_windows, prefetch), 1)
    blocks = grain.MapDataset.range(start, batches.end, at_once).map(
        lambda first: batches.read(first, min(at_once, batches.end - first))
    )
    ahead = max(prefetch // at_once, min(threads, prefetch))  # blocks
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead if threads else 0)
    return itertools.chain.from_iterable(_split(block, batches.num_rows) for block in blocks.to_iter_dataset(options))


def _split(block: Batch, num_rows: int) -> Iterator[Batch]:
    """Yields the batches of `num_rows` rows whose concatenation is `block`."""
    total = len(next(iter(block.values())))
    for begin in range(0, total, num_rows):
        yield {name: array[begin : begin + num_rows] for name, array in block.items()}


def _keep_freed_arrays() -> None:
    """Makes the process reuse the memory of a batch's arrays for the next batch.

    By default glibc returns large freed blocks to the system, and clearing new pages takes as long as all other work on
    a batch. Freeing a block of 31 MB once makes glibc keep up to 62 MB: mallopt(3), M_MMAP_THRESHOLD. With other C
    libraries this function has no effect.
    """
    np.empty(31 << 20, np.uint8)


class DrawnExamples(NamedTuple):
    """The E examples in some windows, without their text. The examples are in the order of the windows."""

    slices: Slices  # of the windows; Slices.documents are indices into the documents of the example's reader
    windows: np.ndarray  # int [E], the example's window, an index into the requested numbers
    pieces: np.ndarray  # int [E], which of its window's examples it is
    lengths: np.ndarray  # int64 [E], tokens
    reader_ids: np.ndarray  # int32 [E]
    denoiser_ids: np.ndarray  # int32 [E]
    documents: np.ndarray  # int64 [E], the number in the stores of the document in which the example begins
    key_numbers: np.ndarray  # int64 [E], as in Drawn


class Batches:
    """Batches by number, without mutable state.

    Attributes:
      readers: the readers that the windows are drawn from, of one token store for each corpus.
      spec: the windows of each denoiser, and how many share a row.
      num_rows: this process's rows of a batch.
      num_windows: this process's windows of a batch.
      end: the number of batches; for training more than any run reads.
      weights, ramps: the denoisers' shares of the windows, in any unit, and how they change.
      epoch_tokens: int64 [number of denoisers], the raw tokens of an epoch of each denoiser: of all its windows.
    """

    def __init__(
        self,
        readers: Sequence[WindowReader],
        denoiser_ids: Sequence[int],
        order: Callable[[np.ndarray], Drawn],
        spec: BatchSpec,
        transform: Transform,
        *,
        seed: int,
        batch_size: int,
        local_rows: Sequence[int],
        total_windows: int = sys.maxsize,
        evenly_over: int | None,
        weights: Sequence[float] = (),
        ramps: Sequence[Ramp | None] = (),
    ):
        """
        Args:
          readers, spec, weights, ramps: the attributes.
          denoiser_ids: the denoiser of each reader.
          order: numbers of windows, int64 [n] -> which windows these are.
          transform, batch_size, local_rows: as for `batches`.
          seed: any int, which determines the examples' keys.
          evenly_over: how many windows "quantiles" is evenly spread over; None: any number (contract/rng.py).
          total_windows: the number of windows. The rows of the last batch that have no window are empty.
        """
        self.readers, self.spec, self.weights, self.ramps = readers, spec, weights, ramps
        self._denoiser_ids = np.asarray(denoiser_ids, np.int32)
        self._order, self._transform, self._seed = order, transform, seed
        self._batch_size, self._local_rows = batch_size, np.asarray(local_rows, np.int64)
        self._total_windows, self._evenly_over = total_windows, evenly_over
        self._per_batch = batch_size * spec.examples_per_row
        self.num_rows = len(local_rows)
        self.num_windows = self.num_rows * spec.examples_per_row
        self.end = -(-total_windows // self._per_batch)
        self.epoch_tokens = np.zeros(len(spec.windows), np.int64)
        # Readers of one denoiser with windows of different lengths read the same text.
        self.epoch_tokens[self._denoiser_ids] = [reader.num_tokens for reader in readers]
        self._width = max(reader.longest for reader in readers)
        self._columns = tuple(dict.fromkeys(name for reader in readers for name in reader.spec.extra_columns))

    def __getitem__(self, n: int) -> Batch:
        return self.read(n, 1)

    def read(self, first: int, count: int) -> Batch:
        """Returns batches `first`, ..., `first` + `count` - 1 as one batch, with their rows concatenated."""
        rows = (np.arange(first, first + count)[:, None] * self._batch_size + self._local_rows).ravel()
        per_row = self.spec.examples_per_row
        numbers = (rows[:, None] * per_row + np.arange(per_row)).ravel()
        exists = numbers < self._total_windows
        if not exists.any():  # this process has none of the last rows
            batch = self._transform(self._windows(numbers[:1] * 0, np.zeros(1, np.int64)), len(rows))
            return {name: np.zeros_like(array) for name, array in batch.items()}
        row_of_window = np.repeat(np.arange(len(rows)), per_row)
        row_steps = rows * per_row // (self._evenly_over or self._per_batch)
        windows = self._windows(numbers[exists], row_of_window[exists])._replace(row_steps=row_steps)
        return self._transform(windows, len(rows))

    def draw(self, first: int, count: int) -> DrawnExamples:
        """Returns the examples of all rows, not of `local_rows` alone, of `count` batches from `first` on.

        They are therefore equal in all processes. DrawnExamples.windows counts the windows from the first batch on.
        """
        end = min((first + count) * self._per_batch, self._total_windows)
        return self.draw_windows(np.arange(first * self._per_batch, end))

    def draw_windows(self, numbers: np.ndarray) -> DrawnExamples:
        """The examples in windows `numbers`, int64 [w], at least one. No text is read."""
        drawn = self._order(numbers)
        slices = slices_of_groups(
            drawn.reader_ids, lambda k, chosen: self.readers[k].slices(drawn.epochs[chosen], drawn.indices[chosen])
        )
        first_slice = np.flatnonzero(slices.begins)
        windows = slices.windows[first_slice]
        reader_ids = drawn.reader_ids[windows]
        return DrawnExamples(
            slices=slices,
            windows=windows,
            pieces=np.arange(len(windows)) - np.searchsorted(windows, windows, side="left"),
            lengths=np.add.reduceat(slices.lengths, first_slice),
            reader_ids=reader_ids,
            denoiser_ids=self._denoiser_ids[reader_ids],
            documents=self.in_store(reader_ids, slices.documents[first_slice]),
            key_numbers=drawn.key_numbers[windows],
        )

    def count_windows(self, first: int, count: int) -> WindowCounts:
        """Returns the examples, raw tokens and windows of batches `first`, ..., `first` + `count` - 1.

        The counts are of all rows of these batches, and not of `local_rows` alone, so they are equal in all processes.
        No text is read; an example takes less than 1 us where many are counted.
        """
        num_denoisers = len(self.spec.windows)
        examples, raw_tokens, windows = np.zeros((3, num_denoisers), np.int64)
        at_once = max(_COUNTED_AT_ONCE // self._per_batch, 1)
        for begin in range(first, first + count, at_once):
            drawn = self.draw(begin, min(at_once, first + count - begin))
            examples += np.bincount(drawn.denoiser_ids, minlength=num_denoisers)
            np.add.at(raw_tokens, drawn.denoiser_ids, drawn.lengths)
            windows += np.bincount(drawn.denoiser_ids[drawn.pieces == 0], minlength=num_denoisers)
        return WindowCounts(examples, raw_tokens, windows)

    def in_store(self, reader_ids: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """The numbers in the stores, int64 [n], of `documents`, int64 [n], of readers int [n].

        The documents of all stores are numbered together (data/windows/documents.py, MixedDocuments).
        """
        numbers = np.empty(len(documents), np.int64)
        for reader_id in np.unique(reader_ids).tolist():
            chosen = reader_ids == reader_id
            of_reader = self.readers[reader_id].documents
            numbers[chosen] = of_reader.first_number + of_reader.index[documents[chosen]]
        return numbers

    def _windows(self, numbers: np.ndarray, rows: np.ndarray) -> Windows:
        """The examples in windows `numbers`, int64 [w], at least one. rows: int [w], each window's row."""
        examples = self.draw_windows(numbers)
        slices, variant_ids = examples.slices, None
        reader_of_slice = examples.reader_ids[np.cumsum(slices.begins) - 1]
        stores = [self.readers[k].tokens for k in reader_of_slice.tolist()]
        tokens, lengths = gather(stores, slices, self._width, self.spec.pad_id)
        if self.spec.plan is not None:
            cycle = self.spec.plan.variant_ids.ravel()
            variant_ids = cycle[numbers[examples.windows] % cycle.size]
        windows = Windows(
            tokens=tokens,
            lengths=lengths,
            row_ids=rows[examples.windows].astype(np.int32),
            keys=example_keys(self._seed, examples.key_numbers, examples.pieces),
            denoiser_ids=examples.denoiser_ids,
            variant_ids=variant_ids,
        )
        return windows._replace(**self._extra_columns(windows, examples)) if self._columns else windows

    def _extra_columns(self, windows: Windows, examples: DrawnExamples) -> dict[str, np.ndarray]:
        """The columns of Windows that readers request (WindowSpec.extra_columns); 0 for other readers' examples."""
        count = len(windows.lengths)
        dtypes = {"begins_document": bool, "ends_document": bool, "quantiles": np.float64}
        columns = {name: np.zeros(count, dtypes.get(name, np.int32)) for name in self._columns if name != "others"}
        if "others" in self._columns:
            columns["others_tokens"] = np.full((count, self._width), self.spec.pad_id, np.int32)
            columns["others_lengths"] = np.zeros(count, np.int32)
        starts, _, _, begins, documents = examples.slices
        starts, documents = starts[begins], documents[begins]
        for reader_id, reader in enumerate(self.readers):
            chosen, requested = np.flatnonzero(examples.reader_ids == reader_id), reader.spec.extra_columns
            store, number = reader.documents.store, reader.documents.index[documents[chosen]]
            if "others" in requested and len(chosen):
                slices = reader.others(documents[chosen], windows.keys[chosen])
                others = gather([reader.tokens] * len(slices.starts), slices, self._width, self.spec.pad_id)
                columns["others_tokens"][chosen], columns["others_lengths"][chosen] = others
            if "prompt_lengths" in requested:
                columns["prompt_lengths"][chosen] = store.prompt_lengths[number]
            if "quantiles" in requested:
                numbers = examples.key_numbers[chosen], examples.pieces[chosen]
                columns["quantiles"][chosen] = quantiles(self._seed, *numbers, self._evenly_over)
            if "labels" in requested:
                columns["labels"][chosen] = reader.classes[documents[chosen]]
            if "begins_document" in requested:
                columns["begins_document"][chosen] = starts[chosen] == store.offsets[number]
            if "ends_document" in requested:
                end = store.offsets[number + 1] - (not reader.spec.eos)
                columns["ends_document"][chosen] = starts[chosen] + windows.lengths[chosen] == end
        return columns
