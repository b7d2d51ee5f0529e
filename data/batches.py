"""Batches by number: selects the windows of batch n, reads them, and applies the objective's transform. Uses grain."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np

from contract.batch import Batch
from contract.rng import example_keys
from contract.windows import BatchSpec, Windows
from data.columns import Columns
from data.documents import Documents
from data.order import DrawOrder, PlannedOrder
from data.windows import Slices, WindowReader, gather

Transform = Callable[[Windows, int], Batch]

_WINDOWS_AT_ONCE = 512  # read together if batches are smaller; more would exceed the processor's caches
_COUNTED_AT_ONCE = 1 << 16  # windows, so that the memory for counting is bounded


class WindowCounts(NamedTuple):
    """What some batches are made from, by denoiser. Both int64 [number of denoisers]."""

    examples: np.ndarray  # examples, as Windows has them: a window, or each document's piece of it
    raw_tokens: np.ndarray  # tokens of these examples before corruption, without second texts ("others")


def batches(
    documents: Documents,
    spec: BatchSpec,
    transform: Transform,
    *,
    batch_size: int,
    local_rows: Sequence[int],
    seed: int,
    shuffle: bool,
) -> "Batches":
    """Returns a sequence of batches without end, of which element n is this process's rows of batch n.

    Element n is a function of the arguments and n alone: window i of the run is in row i // spec.examples_per_row,
    counted over all batches, and data/order.py determines which window that is. So neither the number of processes nor
    the number of threads changes the contents of a row. Each denoiser reads each of its windows once per epoch. In
    planned rows this holds for each window length of a denoiser, so the same text may recur at another length.

    Args:
      documents: the documents to read.
      spec: the windows of each denoiser, and how many share a row. A denoiser of weight 0 is never drawn.
      transform: windows, number of rows -> batch. Each row must depend on its own windows alone, because `loader`
        transforms several batches at once. Must be thread-safe.
      batch_size: rows of the global batch.
      local_rows: this process's rows of the global batch, ascending; they need not be adjacent.
      seed: any int. It determines the order and the examples' keys.
      shuffle: whether each epoch has a new order. If False, every epoch has the documents' order, and weights that
        change are replaced by the mean of their initial and final values.

    Raises ConfigError for invalid weights and where the documents do not fill a window, ValueError for local_rows that
    are not ascending rows of the batch.
    """
    rows = np.asarray(local_rows, np.int64)
    if not rows.size or rows[0] < 0 or rows[-1] >= batch_size or (np.diff(rows) <= 0).any():
        raise ValueError(f"local_rows={rows.tolist()} must be ascending rows of a batch of {batch_size}")
    order: DrawOrder | PlannedOrder
    if spec.plan is None:
        readers = [WindowReader(documents, windows) for windows in spec.windows]
        weights, ramps = [windows.weight for windows in spec.windows], [windows.ramp for windows in spec.windows]
        if not shuffle:  # held-out batches, whose loss at one step is compared with that at another
            weights, ramps = [windows.mean_weight for windows in spec.windows], []
        order = DrawOrder(list(map(len, readers)), weights, seed=seed, shuffle=shuffle, ramps=ramps)
    else:
        planned = np.stack([spec.plan.denoiser_ids.ravel(), spec.plan.raw_lengths.ravel()], axis=1)
        distinct, cycle = np.unique(planned, axis=0, return_inverse=True)
        readers = [
            WindowReader(documents, dataclasses.replace(spec.windows[denoiser_id], raw_length=raw_length))
            for denoiser_id, raw_length in distinct.tolist()
        ]
        order = PlannedOrder(list(map(len, readers)), cycle.ravel(), seed=seed, shuffle=shuffle)
    return Batches(readers, order, transform, spec, batch_size=batch_size, local_rows=rows, seed=seed)


def loader(batches: "Batches", *, start: int, threads: int, prefetch: int) -> Iterator[Batch]:
    """Yields batches `start`, `start` + 1, ..., in that order, made in advance by reader threads.

    Several small batches are made at once, which does not change their contents. NumPy calls are then long relative to
    the Python code between them, and threads wait less for each other.

    Args:
      batches: batches whose transform makes arrays [rows, ...].
      start: the first batch. A run that resumes passes the number of its next batch.
      threads: reader threads; 0 makes batches on demand.
      prefetch: how many batches may be made in advance.
    """
    _keep_freed_arrays()
    at_once = max(min(_WINDOWS_AT_ONCE // batches.num_windows, prefetch // max(threads, 1)), 1)
    blocks = grain.MapDataset.range(start, batches.end, at_once).map(lambda first: batches.read(first, at_once))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch // at_once if threads else 0)
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


class Batches:
    """Batches by number, without mutable state.

    Attributes:
      num_rows: this process's rows of a batch.
      num_windows: this process's windows of a batch.
      end: the number of batches, more than any run reads.
    """

    def __init__(
        self,
        readers: Sequence[WindowReader],
        order: DrawOrder | PlannedOrder,
        transform: Transform,
        spec: BatchSpec,
        *,
        batch_size: int,
        local_rows: np.ndarray,
        seed: int,
    ):
        self._readers = readers
        self._order = order
        self._transform = transform
        self._spec = spec
        self._batch_size = batch_size
        self._local_rows = local_rows
        self._seed = seed
        self._width = max(reader.longest for reader in readers)
        self._columns = Columns(readers, self._width, spec.pad_id)
        self.num_rows = len(local_rows)
        self.num_windows = len(local_rows) * spec.examples_per_row
        self.end = sys.maxsize // (batch_size * spec.examples_per_row)

    def __getitem__(self, n: int) -> Batch:
        return self.read(n, 1)

    def read(self, first: int, count: int) -> Batch:
        """Returns batches `first`, ..., `first` + `count` - 1 as one batch, with their rows concatenated."""
        spec = self._spec
        rows = (np.arange(first, first + count)[:, None] * self._batch_size + self._local_rows).ravel()
        numbers = (rows[:, None] * spec.examples_per_row + np.arange(spec.examples_per_row)).ravel()
        slices, window, reader_ids, denoiser_ids = self._draw(numbers)
        tokens, lengths = gather(self._readers[0].tokens, slices, self._width, spec.pad_id)
        piece = np.arange(len(window)) - np.searchsorted(window, window, side="left")
        parts = None if spec.plan is None else spec.plan.parts.ravel()[numbers[window] % spec.plan.parts.size]
        windows = Windows(
            tokens=tokens,
            lengths=lengths,
            row_ids=(window // spec.examples_per_row).astype(np.int32),
            keys=example_keys(self._seed, numbers[window], piece),
            denoiser_ids=denoiser_ids,
            parts=parts,
        )
        begins = slices.begins
        windows = self._columns.add(windows, reader_ids, slices.documents[begins], slices.starts[begins])
        return self._transform(windows, len(rows))

    def count_windows(self, first: int, count: int) -> WindowCounts:
        """Returns the examples and raw tokens of batches `first`, ..., `first` + `count` - 1.

        The counts are of all rows of these batches, and not of `local_rows` alone, so they are equal in all processes.
        No text is read; an example takes less than 1 us where many are counted.
        """
        per_batch, num_denoisers = self._batch_size * self._spec.examples_per_row, len(self._spec.windows)
        examples, raw_tokens = np.zeros((2, num_denoisers), np.int64)
        for begin in range(first * per_batch, (first + count) * per_batch, _COUNTED_AT_ONCE):
            numbers = np.arange(begin, min(begin + _COUNTED_AT_ONCE, (first + count) * per_batch))
            slices, _, _, denoiser_ids = self._draw(numbers)
            lengths = np.add.reduceat(slices.lengths, np.flatnonzero(slices.begins))
            examples += np.bincount(denoiser_ids, minlength=num_denoisers)
            np.add.at(raw_tokens, denoiser_ids, lengths)
        return WindowCounts(examples, raw_tokens)

    def _draw(self, numbers: np.ndarray) -> tuple[Slices, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the E examples in windows `numbers`, int64 [w], of the run: their slices and three arrays, int [E].

        The arrays are, of each example, the index of its window among `numbers`, its reader and its denoiser.
        """
        reader_of_window, indices = self._order.draw(numbers)
        slices = self._slices(reader_of_window, indices)
        window = slices.windows[slices.begins]
        reader_ids, plan = reader_of_window[window], self._spec.plan
        if plan is None:
            return slices, window, reader_ids, reader_ids
        return slices, window, reader_ids, plan.denoiser_ids.ravel()[numbers[window] % plan.denoiser_ids.size]

    def _slices(self, reader_ids: np.ndarray, indices: np.ndarray) -> Slices:
        """The slices of windows `indices`, int64 [w], of readers `reader_ids`, int32 [w], in that order."""
        parts = []
        for reader_id in np.unique(reader_ids).tolist():
            drawn = np.flatnonzero(reader_ids == reader_id)
            slices = self._readers[reader_id].slices(indices[drawn])
            parts.append(slices._replace(windows=drawn[slices.windows]))
        joined = Slices(*map(np.concatenate, zip(*parts, strict=True)))
        in_order = np.argsort(joined.windows, kind="stable")
        return Slices(*(column[in_order] for column in joined))
