"""Batches by number: selects the windows of batch n, reads them, and applies the objective's transform. Uses grain."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np

from contract.batch import Batch
from contract.windows import BatchSpec, Ramp, Windows
from data.windows.documents import Documents, MixedDocuments
from data.windows.examples import DrawnExamples, ExampleReader
from data.windows.order import DrawOrder, PlannedOrder
from data.windows.windowing import WindowReader

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

    Raises ConfigError for invalid weights and where the documents do not fill a window, ValueError for local_rows that
    are not ascending rows of the batch.
    """
    order: DrawOrder | PlannedOrder
    weights: Sequence[float] = [windows.weight for windows in spec.windows]
    ramps: Sequence[Ramp | None] = [None] * len(weights)
    if spec.plan is None:
        readers = [WindowReader(documents.by_corpus[windows.corpus], windows, seed) for windows in spec.windows]
        denoiser_ids = list(range(len(readers)))
        weights, ramps = example_weights(spec, readers, documents.factors)
        order = DrawOrder(list(map(len, readers)), weights, seed=seed, ramps=ramps)
    else:
        planned = np.stack([spec.plan.denoiser_ids.ravel(), spec.plan.raw_lengths.ravel()], axis=1)
        distinct, cycle = np.unique(planned, axis=0, return_inverse=True)
        denoiser_ids = distinct[:, 0].tolist()
        specs = [dataclasses.replace(spec.windows[k], raw_length=raw_length) for k, raw_length in distinct.tolist()]
        readers = [WindowReader(documents.by_corpus[windows.corpus], windows, seed) for windows in specs]
        order = PlannedOrder(list(map(len, readers)), cycle.ravel(), seed=seed)
    examples = ExampleReader(readers, denoiser_ids, order, spec, seed=seed)
    return Batches(examples, transform, batch_size=batch_size, local_rows=local_rows, weights=weights, ramps=ramps)


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


class Batches:
    """Batches by number, without mutable state.

    Attributes:
      num_rows: this process's rows of a batch.
      num_windows: this process's windows of a batch.
      end: the number of batches; for training more than any run reads.
      weights, ramps: the denoisers' shares of the windows, in any unit, and how they change.
      epoch_tokens: int64 [number of denoisers], the raw tokens of an epoch of each denoiser: of all its windows.
    """

    def __init__(
        self,
        examples: ExampleReader,
        transform: Transform,
        *,
        batch_size: int,
        local_rows: Sequence[int],
        total_windows: int = sys.maxsize,
        weights: Sequence[float] = (),
        ramps: Sequence[Ramp | None] = (),
    ):
        """
        Args:
          examples: the examples of windows by number.
          transform, batch_size, local_rows: as for `batches`.
          total_windows: the number of windows. The rows of the last batch that have no window are empty.
          weights, ramps: the attributes.
        """
        rows = np.asarray(local_rows, np.int64)
        if not rows.size or rows[0] < 0 or rows[-1] >= batch_size or (np.diff(rows) <= 0).any():
            raise ValueError(f"local_rows={rows.tolist()} must be ascending rows of a batch of {batch_size}")
        self._examples = examples
        self._transform = transform
        self._batch_size = batch_size
        self._local_rows = rows
        self._total_windows = total_windows
        self._per_row = examples.spec.examples_per_row
        self._per_batch = batch_size * self._per_row
        self.weights, self.ramps = weights, ramps
        self.epoch_tokens = examples.epoch_tokens
        self.num_rows = len(rows)
        self.num_windows = len(rows) * self._per_row
        self.end = -(-total_windows // self._per_batch)

    def __getitem__(self, n: int) -> Batch:
        return self.read(n, 1)

    def read(self, first: int, count: int) -> Batch:
        """Returns batches `first`, ..., `first` + `count` - 1 as one batch, with their rows concatenated."""
        rows = (np.arange(first, first + count)[:, None] * self._batch_size + self._local_rows).ravel()
        numbers = (rows[:, None] * self._per_row + np.arange(self._per_row)).ravel()
        exists = numbers < self._total_windows
        if not exists.any():  # this process has none of the last rows
            batch = self._transform(self._examples.read(numbers[:1] * 0, np.zeros(1, np.int64)), len(rows))
            return {name: np.zeros_like(array) for name, array in batch.items()}
        row_of_window = np.repeat(np.arange(len(rows)), self._per_row)
        return self._transform(self._examples.read(numbers[exists], row_of_window[exists]), len(rows))

    def draw(self, first: int, count: int) -> DrawnExamples:
        """Returns the examples of all rows, not of `local_rows` alone, of `count` batches from `first` on.

        They are therefore equal in all processes. DrawnExamples.windows counts the windows from the first batch on.
        """
        end = min((first + count) * self._per_batch, self._total_windows)
        return self._examples.draw(np.arange(first * self._per_batch, end))

    def count_windows(self, first: int, count: int) -> WindowCounts:
        """Returns the examples, raw tokens and windows of batches `first`, ..., `first` + `count` - 1.

        The counts are of all rows of these batches, and not of `local_rows` alone, so they are equal in all processes.
        No text is read; an example takes less than 1 us where many are counted.
        """
        num_denoisers = len(self._examples.spec.windows)
        examples, raw_tokens, windows = np.zeros((3, num_denoisers), np.int64)
        at_once = max(_COUNTED_AT_ONCE // self._per_batch, 1)
        for begin in range(first, first + count, at_once):
            drawn = self.draw(begin, min(at_once, first + count - begin))
            examples += np.bincount(drawn.denoiser_ids, minlength=num_denoisers)
            np.add.at(raw_tokens, drawn.denoiser_ids, drawn.lengths)
            windows += np.bincount(drawn.denoiser_ids[drawn.pieces == 0], minlength=num_denoisers)
        return WindowCounts(examples, raw_tokens, windows)
